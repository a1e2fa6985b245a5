"""A line to Redis with faults: refusals in time, and never another session's route (security.md S3)."""

import asyncio
import random

import anyio
import pytest

from app.cluster.redis._waiting_commands import USUAL_DEADLINES, Deadlines
from app.cluster.redis.connection import RedisConnection, Script
from app.errors import RoutesUnavailable
from app.sessions.routes import Quota
from tests.cluster.redis.faulty_line import altering, faulty_line
from tests.cluster.routing.rig import NODES, errors, open_store, record, refused_after, route

A, B, _ = NODES
ECHO = Script("return ARGV[1]")
KEYS = [f"k{number}" for number in range(50)]


async def test_a_redis_that_is_too_slow_refuses_in_time_and_keeps_its_connection(empty_redis: str):
    deadlines = Deadlines(command_s=0.05, silence_s=60)
    async with faulty_line(empty_redis) as line, RedisConnection(line.url, errors(), deadlines) as redis:
        assert await redis.run(ECHO, [], ["here"], patience_s=30) == b"here"
        line.may_answer.clear()
        assert max([await refused_after(redis.execute("PING")) for _ in range(10)]) <= 0.1
        assert redis.is_up
        line.may_answer.set()
        assert await redis.run(ECHO, [], ["mine"], patience_s=30) == b"mine"
        assert redis.generation == 1


async def test_a_new_session_waits_for_a_redis_that_is_slow(empty_redis: str):
    async with (
        faulty_line(empty_redis) as line,
        open_store(empty_redis) as other,
        open_store(line.url, patience_s=30, deadlines=USUAL_DEADLINES) as store,
    ):
        await other.beat(record(A))
        line.delay_s = 0.3
        owned = [await store.claim(route(f"k{number}"), Quota(sessions=5)) for number in range(3)]
        assert [each.key for each in owned] == ["k0", "k1", "k2"]
        with pytest.raises(RoutesUnavailable):
            await store.find("k0")


@pytest.mark.parametrize("kind", ["altered", "cut"])
async def test_a_line_that_spoils_answers_never_gives_a_wrong_route(empty_redis: str, kind: str):
    chance = random.Random(2)
    outcomes = {"right": 0, "none": 0, "refused": 0}
    async with (
        faulty_line(empty_redis) as line,
        open_store(empty_redis) as owner,
        open_store(line.url, deadlines=USUAL_DEADLINES) as store,
    ):
        await owner.beat(record(A))
        for key in KEYS:
            await owner.claim(route(key), Quota())
        spoil = altering(0.05)
        line.fault = spoil if kind == "altered" else lambda piece: None if chance.random() < 0.05 else piece

        async def look() -> None:
            answers = 0
            while answers < 40:  # while the breaker is open there is none
                key = chance.choice(KEYS)
                try:
                    found = (await store.find(key)).route
                except RoutesUnavailable:
                    outcomes["refused"] += 1
                    await anyio.sleep(0.01)
                    continue
                assert found in (None, route(key))
                outcomes["none" if found is None else "right"] += 1
                answers += 1

        with anyio.fail_after(90):
            await asyncio.gather(*(look() for _ in range(10)))
        assert await owner.refresh([route(key) for key in KEYS]) == []
        line.fault = bytes
        with anyio.fail_after(30):
            while True:
                try:
                    assert (await store.find(KEYS[0])).route == route(KEYS[0])
                    break
                except RoutesUnavailable:
                    await anyio.sleep(0.01)
    assert outcomes["right"] > 50
    assert outcomes["refused"] + outcomes["none"] > 0


@pytest.mark.parametrize(("right", "wrong"), [(b":1", b"+1"), (b"*5", b"*4")])
async def test_an_answer_that_no_script_gives_is_no_route_and_no_error_of_ours(
    empty_redis: str, right: bytes, wrong: bytes
):
    async with faulty_line(empty_redis) as line, open_store(line.url) as store:
        await store.beat(record(A))
        await store.claim(route("k"), Quota())
        line.fault = lambda piece: piece.replace(right, wrong)
        with pytest.raises(RoutesUnavailable):
            await store.find("k")


async def test_an_outcome_of_a_claim_that_there_is_not_is_none(empty_redis: str):
    async with faulty_line(empty_redis) as line, open_store(line.url) as store:
        line.fault = lambda piece: piece.replace(b"won", b"wun")
        with pytest.raises(RoutesUnavailable):
            await store.claim(route("k"), Quota())
