"""at_once: two waits take as long as the longer one."""

import anyio
import pytest

from app.concurrency.at_once import at_once


async def test_both_wait_at_the_same_time():
    here, there = anyio.Event(), anyio.Event()

    async def one() -> str:
        here.set()
        await there.wait()
        return "one"

    async def other() -> int:
        there.set()
        await here.wait()
        return 2

    with anyio.fail_after(20):
        assert await at_once(one(), other()) == ("one", 2)


async def test_what_fails_ends_both_and_is_raised_as_it_is():
    async def fails() -> None:
        raise ValueError("no")

    for one, other in ((anyio.sleep_forever(), fails()), (fails(), anyio.sleep_forever())):
        with anyio.fail_after(20), pytest.raises(ValueError, match="no"):
            await at_once(one, other)
