"""When a server is read: not while its session is held up, and no faster than a flood may come."""

import asyncio

import pytest

from app.backends.upstreams._flow import FLOOD_BURST_BYTES, FLOOD_BYTES_PER_S, LEAST_BYTES, Flow


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def flow(clock):
    return Flow(clock=lambda: clock[0])


async def may_read(flow) -> bool:
    task = asyncio.ensure_future(flow.turn())
    for _ in range(5):
        await asyncio.sleep(0)
    done = task.done()
    task.cancel()
    return done


async def test_a_session_that_is_held_up(flow):
    assert await may_read(flow)
    flow.pause()
    flow.pause()
    assert not await may_read(flow)
    flow.resume()
    assert await may_read(flow)


async def test_a_flood_is_read_at_its_own_pace(flow, clock):
    flow.came(FLOOD_BURST_BYTES - 1)
    assert await may_read(flow)
    flow.came(FLOOD_BYTES_PER_S)
    assert not await may_read(flow)
    clock[0] = 1.1
    assert await may_read(flow)


async def test_small_messages_count_as_if_they_were_larger(flow):
    for _ in range(FLOOD_BURST_BYTES // LEAST_BYTES):
        flow.came(1)
    assert not await may_read(flow)


async def test_large_answers_do_not_count(flow):
    for _ in range(3):
        flow.came(FLOOD_BURST_BYTES - 1)
        flow.asked_for(FLOOD_BURST_BYTES - 1)
    assert await may_read(flow)
