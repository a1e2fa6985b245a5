"""loop_timeout: who is late itself waits longer, and for others no longer than it says."""

import asyncio
import time

import pytest

from app.concurrency.loop_timeout import STEPS, loop_timeout


async def test_what_takes_too_long_is_given_up() -> None:
    began_at = time.monotonic()
    with pytest.raises(TimeoutError):
        async with loop_timeout(0.1):
            await asyncio.sleep(30)
    assert 0.05 < time.monotonic() - began_at < 20


async def test_what_is_done_in_time_is_not_touched_later() -> None:
    async with loop_timeout(0.02):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


async def test_a_loop_that_stands_still_uses_up_one_step_each_time() -> None:
    turns = 0

    async def dawdle() -> None:
        nonlocal turns
        async with loop_timeout(0.04):
            while True:
                time.sleep(0.04)  # as long as the whole deadline
                turns += 1
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await dawdle()
    assert turns >= STEPS - 1


async def test_an_error_within_it_and_a_cancellation_are_their_own() -> None:
    with pytest.raises(LookupError):
        async with loop_timeout(5):
            raise LookupError
    waiting = asyncio.ensure_future(_wait_for_ever())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _wait_for_ever() -> None:
    async with loop_timeout(60):
        await asyncio.Event().wait()
