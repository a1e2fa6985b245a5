"""A Redis belongs to the nodes whose secret key came first; one with another key gets and does nothing there."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from app.auth.sealing import Sealer
from app.cluster.opening import open_routing
from app.cluster.redis.connection import RedisConnection
from app.cluster.redis.key_check import KEPT_MS, NAME, check_value
from app.cluster.routing.redis_store import RedisStore
from app.errors import RoutesUnavailable, SettingsError
from app.sessions.routes import Quota
from app.telemetry.metrics import Metrics
from tests.cluster.routing.rig import NODES, PATIENT, errors, record, route
from tests.redis_servers import RedisServer, client_of

A, B, _ = NODES
OURS, THEIRS = b"k" * 32, b"another " * 4
NONE = Quota()


@asynccontextmanager
async def opened(url: str, key: bytes = OURS) -> AsyncIterator[tuple[RedisConnection, RedisStore]]:
    async with RedisConnection(url, errors(), PATIENT, check=check_value(key)) as redis:
        await until(lambda: redis.is_up or redis.has_other_key)
        yield redis, RedisStore(redis, Sealer(key), errors())


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


def test_the_value_tells_keys_apart_and_is_no_other_key_of_ours() -> None:
    assert check_value(OURS) == check_value(OURS) != check_value(THEIRS)
    assert len(check_value(OURS)) == 64


async def test_the_first_key_stays_and_another_is_kept_out(empty_redis: str) -> None:
    async with opened(empty_redis) as (_, ours):
        await ours.beat(record(A))
        await ours.claim(route("k"), NONE)
        async with opened(empty_redis, THEIRS) as (redis, theirs):
            await redis.first_attempt(30)
            assert (redis.has_other_key, redis.is_up) == (True, False)
            assert "another TRUNKLINE_SECRET_KEY" in (redis.problem or "")
            for attempt in (theirs.beat(record(B)), theirs.find("k"), theirs.claim(route("k2", B), NONE)):
                with pytest.raises(RoutesUnavailable):
                    await attempt
        assert (await ours.find("k")).route == route("k")
        assert [each.id for each in await ours.nodes()] == [A]
    async with opened(empty_redis) as (redis, _):
        await redis.first_attempt(30)
        assert (redis.has_other_key, redis.is_up) == (False, True)


async def test_a_node_with_another_key_does_not_start(empty_redis: str) -> None:
    async with opened(empty_redis) as (redis, _):
        await redis.first_attempt(30)
    with pytest.raises(SettingsError, match="have another one") as refusal:
        async with open_routing(B, "http://b", empty_redis, THEIRS, Sealer(THEIRS), Metrics("test")):
            raise AssertionError("it has started")
    assert "\n" not in str(refusal.value)


async def test_after_a_flush_whoever_comes_first_has_it_and_the_other_is_kept_out_with_its_next_beat(
    redis_server: RedisServer,
) -> None:
    async with opened(redis_server.url) as (mine, ours):
        await ours.beat(record(A))
        redis_server.flush()
        async with opened(redis_server.url, THEIRS) as (_, theirs):
            await theirs.beat(record(B))
            await theirs.claim(route("k", B), NONE)
            with pytest.raises(RoutesUnavailable):
                await ours.beat(record(A))
            await until(lambda: mine.has_other_key)
            with pytest.raises(RoutesUnavailable):
                await ours.find("k")
            assert (await theirs.find("k")).route == route("k", B)
            redis_server.flush()
        await until(lambda: mine.is_up)  # theirs are gone
        await ours.beat(record(A))
        assert not mine.has_other_key


async def test_a_record_that_does_not_open_stays_where_redis_is_others_meanwhile(redis_server: RedisServer) -> None:
    """Between a flush and the next beat."""
    async with opened(redis_server.url) as (_, ours):
        await ours.beat(record(A))
        redis_server.flush()
        async with opened(redis_server.url, THEIRS) as (_, theirs):
            await theirs.beat(record(B))
            await theirs.claim(route("k", B), NONE)
            assert (await ours.find("k")).route is None
            assert (await theirs.find("k")).route == route("k", B)


async def test_it_is_kept_as_long_as_routes_by_every_beat_and_written_again(empty_redis: str) -> None:
    with client_of(empty_redis) as client:
        async with opened(empty_redis) as (redis, ours):
            await redis.first_attempt(30)
            client.pexpire(NAME, 1000)
            await ours.beat(record(A))
            assert 1000 < client.pttl(NAME) <= KEPT_MS
            for spoil in (lambda: client.delete(NAME), lambda: (client.delete(NAME), client.hset(NAME, "a", "b"))):
                spoil()
                await ours.beat(record(A))
                assert client.get(NAME) == check_value(OURS)
