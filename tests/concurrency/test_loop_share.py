"""What a reader makes the loop do is charged in pieces, and the next piece waits for its turn."""

import asyncio
from typing import Any

import pytest

from app.concurrency.loop_share import PIECE_S, LoopShare, charged


class Shares:
    """Fulfils Shares: the tenant is over its share when a test says so."""

    def __init__(self) -> None:
        self.charges = list[tuple[str, float]]()
        self.over = False
        self.turns, self.gate = 0, asyncio.Event()

    def charge(self, tenant: str, seconds: float) -> None:
        self.charges.append((tenant, seconds))

    def is_over(self, tenant: str) -> bool:
        return self.over

    async def turn(self, tenant: str) -> None:
        self.turns += 1
        await self.gate.wait()


async def test_short_pieces_are_added_up_until_they_are_charged() -> None:
    shares = Shares()
    share = LoopShare(shares, "acme")
    for _ in range(5):
        share.took(PIECE_S / 4)
    ((tenant, charged_s),) = shares.charges
    assert tenant == "acme"
    assert charged_s == pytest.approx(PIECE_S)


async def test_a_tenant_within_its_share_waits_for_no_turn() -> None:
    shares = Shares()
    share = LoopShare(shares, "acme")
    share.took(PIECE_S)
    await share.turn()
    assert shares.turns == 0


async def test_each_piece_of_a_tenant_that_is_over_its_share_needs_a_turn() -> None:
    shares = Shares()
    share, shares.over = LoopShare(shares, "acme"), True
    await share.turn()  # nothing was done yet
    share.took(PIECE_S)
    waiting = asyncio.create_task(share.turn())
    await asyncio.sleep(0)
    assert (shares.turns, waiting.done()) == (1, False)
    shares.gate.set()
    await waiting
    await share.turn()
    assert shares.turns == 1


async def test_what_a_coroutine_does_is_charged_and_what_it_waits_is_not() -> None:
    took, now = list[float](), [0.0]

    async def step(seconds: float) -> None:
        now[0] += seconds
        await asyncio.sleep(0)

    async def work() -> str:
        await step(1.0)
        await step(2.0)
        with pytest.raises(RuntimeError, match="no"):
            await failing()
        return "done"

    async def failing() -> None:
        now[0] += 4.0
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, RuntimeError("no"))
        await future

    async def others() -> None:
        while True:
            now[0] += 100.0
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    assert await charged(work(), took.append, lambda: now[0]) == "done"
    busy.cancel()
    assert sum(took) == 7.0


async def test_a_coroutine_that_is_charged_is_cancelled_and_fails_as_others() -> None:
    took, cleaned = list[float](), list[str]()

    async def work(fails: bool) -> None:
        try:
            if fails:
                raise ValueError("wrong")
            await asyncio.sleep(3600)
        finally:
            cleaned.append("up")

    async def awaited(*, fails: bool) -> Any:
        return await charged(work(fails), took.append)

    task = asyncio.create_task(awaited(fails=False))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="wrong"):
        await awaited(fails=True)
    assert cleaned == ["up", "up"]
