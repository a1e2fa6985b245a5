"""CallerCounts: what callers have used over all nodes, in a real Redis."""

import time
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from app.cluster.caller_counts import KEY, CallerCounts
from app.cluster.redis.connection import RedisConnection
from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import RateLimited, RoutesUnavailable
from app.limits.caller_limits import CallerLimits
from app.telemetry.metrics import Metrics
from tests.cluster.routing.rig import connected
from tests.redis_servers import RedisServer

LATER = int(time.time()) + 3600
TOMORROW = (LATER // 86_400 + 1.5) * 86_400  # at noon: what ends then is kept by Redis
BOB = ("acme", "key", "bob")
ENTRY = AccessEntry(Who(everyone=True), ("*",), limits=CallLimits(calls_per_day=3))


@pytest.fixture
async def redis(empty_redis: str) -> AsyncIterator[RedisConnection]:
    async with connected(empty_redis) as connection:
        yield connection


async def test_counts_add_up_and_are_told_in_the_order_of_the_question(redis):
    counts = CallerCounts(redis)
    assert await counts.add([("a", 2, LATER), ("b", 1, LATER)]) == [2, 1]
    assert await counts.add([("b", 3, LATER), ("c", 0, LATER), ("a", 1, LATER)]) == [4, 0, 3]


async def test_a_count_goes_after_its_window(redis):
    counts = CallerCounts(redis)
    await counts.add([("a", 1, LATER)])
    assert 3000 < int(await redis.execute("TTL", KEY + "a")) <= 3600
    await counts.add([("a", 1, 1_000_000_000)])
    assert await redis.execute("EXISTS", KEY + "a") == 0


def passed(limits: CallerLimits) -> int:
    for count in range(100):
        try:
            limits.spend([limits.of("acme", "backends/db", BOB, ENTRY)])
        except RateLimited:
            return count
    raise AssertionError("no limit")


async def told(nodes: Sequence[CallerLimits], counts: CallerCounts) -> None:
    for each in nodes:
        await each.tell(counts)


async def test_nodes_share_what_a_caller_has_and_one_that_starts_later_knows_it(redis):
    counts = CallerCounts(redis)
    here, there, later = (CallerLimits(Metrics("test").rate_limited, lambda: TOMORROW) for _ in range(3))
    for each in (here, there):
        each.spend([each.of("acme", "backends/db", BOB, ENTRY)])
    await told([here, there], counts)
    assert passed(there) == 1
    await told([there, here], counts)
    later.spend([later.of("acme", "backends/db", BOB, ENTRY)])
    await told([later], counts)
    assert passed(later) == 0


async def test_a_redis_that_is_away_is_told_when_it_is_back():
    limits = CallerLimits(Metrics("test").rate_limited, lambda: TOMORROW)
    limits.spend([limits.of("acme", "backends/db", BOB, ENTRY)])
    with RedisServer() as server:
        async with connected(server.url) as redis:
            counts = CallerCounts(redis)
            server.kill()
            with pytest.raises(RoutesUnavailable):
                await counts.add([("a", 1, LATER)])
            await limits.tell(counts)
            server.start()
            with anyio.fail_after(30), server.client() as client:
                while client.dbsize() < 2:
                    await limits.tell(counts)
                    await anyio.sleep(0.005)
                assert [int(client.get(name)) for name in client.keys(f"{KEY}*")] == [1, 1]
