"""RedisStore: what only a store that can be lost, emptied and written to by others has to promise."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from app.auth.sealing import Sealer
from app.cluster.routing import redis_store
from app.cluster.routing._node_list import READ_A_BEAT
from app.cluster.routing.redis_store import LEASE_MS, ROUTE_TTL_MS, SETTLING_MS, RedisStore
from app.errors import QuotaExceeded, RoutesUnavailable
from app.sessions.routes import NodeRecord, NodeStore, Quota
from tests.cluster.routing.rig import (
    NODES,
    SECRET_KEY,
    Rig,
    connected,
    counted,
    errors,
    open_store,
    record,
    rig_on_redis,
    route,
)  # fmt: skip
from tests.redis_servers import RedisServer, client_of

A, B, C = NODES
NONE = Quota()


@pytest.fixture
async def rig(empty_redis: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    # Tests say when a lease lapses; on a busy machine five seconds may pass by themselves.
    monkeypatch.setattr(redis_store, "LEASE_MS", 60_000)
    monkeypatch.setattr(redis_store, "SETTLING_MS", 61_000)
    async with rig_on_redis(empty_redis) as rig:
        await rig.all_beat()
        yield rig


@pytest.fixture
def inside(empty_redis: str):
    with client_of(empty_redis) as client:
        yield client


def name(key: str) -> str:
    return f"trunkline:route:{key}"


async def test_a_lease_ends_on_its_own_and_a_route_long_after_it(
    rig: Rig, inside: Any, monkeypatch: pytest.MonkeyPatch
):
    await rig[A].claim(route("k"), NONE)
    assert LEASE_MS < inside.pttl(f"trunkline:node:{A}") <= 60_000
    monkeypatch.setattr(redis_store, "LEASE_MS", LEASE_MS)
    await rig[A].beat(record(A))
    assert 0 < inside.pttl(f"trunkline:node:{A}") <= LEASE_MS == 5000
    assert LEASE_MS < inside.pttl(name("k")) <= ROUTE_TTL_MS
    for key in inside.keys("trunkline:used:*"):
        assert 0 < inside.pttl(key) <= ROUTE_TTL_MS


async def test_nothing_in_redis_says_who_has_a_session_with_what(rig: Rig, inside: Any):
    await rig[A].claim(route("k", backend="a-backend", identity=("acme", "issuer-x", "alice-x")), Quota(5, 5))
    dump = b"".join(inside.dump(key) or b"" for key in inside.keys("*")) + b"".join(inside.keys("*"))
    for word in (b"alice-x", b"issuer-x", b"a-backend", b"http://", b"streamable"):
        assert word not in dump


async def test_a_store_that_was_just_emptied_says_so_until_every_node_has_spoken(rig: Rig, inside: Any):
    inside.delete("trunkline:settling")
    assert (await rig[A].find("k")).is_settling is False
    inside.flushdb()
    assert (await rig[A].find("k")).is_settling is True
    await rig[B].beat(record(B))
    assert (await rig[A].find("k")).is_settling is True
    assert 30_000 < inside.pttl("trunkline:settling") <= 61_000
    assert LEASE_MS < SETTLING_MS == 6000
    inside.delete("trunkline:settling")  # what six seconds do
    await rig[A].beat(record(A))
    assert (await rig[A].find("k")).is_settling is False


async def test_what_was_flushed_is_there_again_after_one_refresh(rig: Rig, inside: Any):
    quota = Quota(sessions=1000)
    mine = [await rig[A].claim(route(f"k{n}"), quota) for n in range(1000)]
    inside.flushdb()
    assert await rig[A].beat(record(A)) is False
    assert await rig[A].refresh(mine) == []
    assert {(await rig[B].find(each.key)).route for each in mine} == set(mine)
    with pytest.raises(QuotaExceeded):
        await rig[B].claim(route("one more", B), quota)


async def test_routes_that_a_failover_has_lost_are_written_again(rig: Rig, inside: Any):
    mine = [await rig[A].claim(route(f"k{n}"), NONE) for n in range(20)]
    inside.delete(*(name(f"k{n}") for n in range(10)))
    inside.hset(name("k15"), mapping={"t": 0})
    assert await rig[A].refresh(mine) == []
    assert {(await rig[B].find(each.key)).route for each in mine} == set(mine)


async def test_an_old_record_that_comes_back_does_not_bring_its_owner_back(rig: Rig, inside: Any):
    await rig[A].claim(route("k"), NONE)
    old = inside.hgetall(name("k"))
    await rig.lapse(A)
    taken = await rig[B].take_over(route("k"), B, "http://b")
    assert taken is not None
    inside.hset(name("k"), mapping=old)  # as a replica that lags would have it
    assert await rig[B].refresh([taken]) == []
    assert await rig[A].refresh([route("k")]) == [route("k")]


async def test_counts_that_redis_has_wrong_are_right_after_a_beat_or_two(rig: Rig, inside: Any):
    quota = Quota(sessions=2)
    await rig[A].claim(route("k"), quota)
    inside.hset("trunkline:used:acme", A, 40)
    with pytest.raises(QuotaExceeded):
        await rig[B].claim(route("b", B), quota)
    await rig[A].beat(record(A))
    await rig[A].beat(record(A))
    await rig[B].claim(route("b", B), quota)


async def test_a_release_that_was_not_carried_out_is_made_good_by_the_next_beat(rig: Rig, inside: Any):
    quota = Quota(sessions=1)
    await rig[A].claim(route("k"), quota)
    inside.delete(name("k"))  # so that the release finds nothing to count back
    await rig[A].release(route("k"))
    await rig[A].beat(record(A))
    await rig[B].claim(route("b", B), quota)


async def test_a_refresh_does_not_bring_back_what_was_released_meanwhile(rig: Rig, inside: Any):
    first, second = [await rig[A].claim(route(f"k{n}"), NONE) for n in range(2)]
    inside.delete(name("k0"), name("k1"))
    await asyncio.gather(rig[A].refresh([first, second]), rig[A].release(second))
    assert [(await rig[B].find(key)).route for key in ("k0", "k1")] == [first, None]


@pytest.mark.parametrize("field", ["n", "t", "v"])
async def test_a_record_that_was_tampered_with_is_absent_counted_and_healed(
    empty_redis: str, inside: Any, field: str, caplog: pytest.LogCaptureFixture
):
    counter = errors()
    async with open_store(empty_redis, counter) as store:
        await store.beat(record(A))
        await store.claim(route("k"), NONE)
        value = inside.hget(name("k"), field)
        assert value is not None
        forged = {"n": B.encode(), "t": b"9", "v": value[:-1] + bytes([value[-1] ^ 1])}
        inside.hset(name("k"), field, forged[field])
        with caplog.at_level(logging.ERROR):
            assert (await store.find("k")).route is None
        assert counted(counter) == {"poisoned": 1}
        assert "Ignored a record of a route" in caplog.text
        assert await store.refresh([route("k")]) == []
        assert (await store.find("k")).route == route("k")


async def test_records_that_were_swapped_are_both_absent(rig: Rig, inside: Any):
    await rig[A].claim(route("k"), NONE)
    await rig[A].claim(route("k2", tenant="zenith"), NONE)
    inside.rename(name("k"), "aside")
    inside.rename(name("k2"), name("k"))
    inside.rename("aside", name("k2"))
    assert [(await rig[B].find(key)).route for key in ("k", "k2")] == [None, None]


async def test_a_forged_later_token_ends_no_session(rig: Rig, inside: Any):
    await rig[A].claim(route("k"), NONE)
    inside.hset(name("k"), mapping={"n": B, "t": "99", "v": "x"})
    assert await rig[A].refresh([route("k")]) == []
    assert (await rig[B].find("k")).route == route("k")


@pytest.mark.parametrize("token", ["x", "", "1e400", "-1", "nan"])
async def test_a_claim_is_not_kept_out_by_a_forged_record(rig: Rig, inside: Any, token: str):
    inside.hset(name("k"), mapping={"n": B, "t": token, "v": "x"})
    assert await rig[A].claim(route("k"), NONE) == route("k")


async def test_keys_of_another_type_count_as_absent(rig: Rig, inside: Any):
    for key in (name("k"), "trunkline:used:acme", "trunkline:nodes", "trunkline:changes"):
        inside.delete(key)
        inside.set(key, "junk")
    inside.delete(f"trunkline:node:{B}")
    inside.hset(f"trunkline:node:{B}", "junk", "junk")
    assert (await rig[A].find("k")).route is None
    await rig.all_beat()
    assert await rig[A].claim(route("k"), Quota(1, 1)) == route("k")
    assert len(await rig[A].nodes()) == 3


async def test_a_node_with_another_secret_key_is_no_peer_and_reads_no_route(rig: Rig, empty_redis: str):
    await rig[A].claim(route("k"), NONE)
    async with open_store(empty_redis, key=b"another" * 8) as stranger:
        await stranger.beat(record("stranger"))
        assert await stranger.nodes() == [record("stranger")]
        assert "stranger" not in [node.id for node in await rig[A].nodes()]
        assert (await stranger.find("k")).route is None


async def test_a_new_connection_means_that_everything_must_be_said_again(redis_server: RedisServer):
    async with open_store(redis_server.url) as store:
        assert await store.beat(record(A)) is False
        assert await store.beat(record(A)) is True
        with redis_server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        while True:  # the lease still runs; what the connection lost is not known
            try:
                assert await store.beat(record(A)) is False
                break
            except RoutesUnavailable:
                continue
        assert await store.beat(record(A)) is True


async def test_a_store_that_was_put_back_to_what_it_held_means_the_same(rig: Rig, inside: Any):
    """As a snapshot has it, or a replica behind a proxy: the lease runs, and the connection is the same."""
    lease = f"trunkline:node:{A}"
    earlier = inside.get(lease)
    assert [await rig[A].beat(record(A)) for _ in range(2)] == [True, True]
    inside.set(lease, earlier, px=5000)
    assert await rig[A].beat(record(A)) is False
    assert await rig[A].beat(record(A)) is True


async def test_beats_that_overlap_do_not_take_each_other_for_a_loss(rig: Rig):
    assert await asyncio.gather(*(rig[A].beat(record(A)) for _ in range(10))) == [True] * 10


async def beat_and_read(store: NodeStore, node: NodeRecord) -> dict[str, NodeRecord]:
    await store.beat(node)
    return {each.id: each for each in await store.nodes()}


async def hears(rig: Rig) -> dict[str, NodeRecord]:
    """What B reads where it is not its turn: what it has read before, unless there is news."""
    store = rig[B]
    assert isinstance(store, RedisStore)
    store._list._looks = 0
    return await beat_and_read(store, record(B))


@pytest.fixture
async def large(rig: Rig, empty_redis: str) -> Rig:
    """Two lots of nodes that are there besides, and the three of the rig, which have read them."""
    async with connected(empty_redis) as connection:
        for number in range(2 * READ_A_BEAT):
            await RedisStore(connection, Sealer(SECRET_KEY), errors()).beat(record(f"other-{number}"))
    for node in NODES:
        assert len(await beat_and_read(rig[node], record(node))) == 2 * READ_A_BEAT + 3
    return rig


async def test_a_large_cluster_hears_in_turn_how_much_each_has_to_do(large: Rig):
    heard = [(await beat_and_read(large[B], record(B)))[A].sessions]
    for sessions in range(1, 7):
        await large[A].beat(record(A, sessions))
        heard.append((await beat_and_read(large[B], record(B)))[A].sessions)
    assert len({*heard}) - 1 == 2  # each third beat reads
    assert all(now - then in (0, 1, 2, 3) for then, now in pairwise(heard))


async def test_a_large_cluster_hears_at_once_who_comes_leaves_or_drains(large: Rig, empty_redis: str):
    async with open_store(empty_redis) as newcomer:
        await newcomer.beat(record("new"))
        assert "new" in await hears(large)
        await newcomer.leave("new")
        assert "new" not in await hears(large)
    await large[A].beat(record(A, 7))
    assert (await hears(large))[A].sessions == 0
    await large[A].beat(replace(record(A, 7), draining=True))
    assert (await hears(large))[A].draining


async def test_a_large_cluster_hears_who_was_found_dead_and_that_it_is_back(large: Rig):
    await large.lapse(A)
    assert A in await hears(large)
    for _ in range(3):  # one of them is C's turn
        await beat_and_read(large[C], record(C))
    assert A not in await hears(large)
    await large[A].beat(record(A))
    assert A in await hears(large)


async def test_in_a_large_cluster_who_was_forgotten_believes_nothing_that_it_has_read(large: Rig, inside: Any):
    earlier = inside.get(f"trunkline:node:{B}")
    await hears(large)
    await large[A].beat(record(A, 7))
    inside.set(f"trunkline:node:{B}", earlier, px=5000)
    assert (await hears(large))[A].sessions == 7
    inside.flushdb()
    assert list(await hears(large)) == [B]
    await large[A].beat(record(A))
    assert list(await hears(large)) == [A, B]


async def test_the_owner_is_told_where_a_script_was_forgotten(redis_server: RedisServer):
    async with open_store(redis_server.url) as store:
        await store.claim(route("k"), NONE)
        with redis_server.client() as client:
            client.script_flush()
        assert (await store.find("k")).route == route("k")


async def test_operators_are_told_of_a_redis_that_is_full_until_it_has_room(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    """It answers, so it was taken for well: only the log said that nothing could be opened, five times a second."""
    async with connected(redis_server.url) as redis:
        store = RedisStore(redis, Sealer(SECRET_KEY), errors())
        await store.beat(record("a"))
        assert redis.problem is None
        with redis_server.client() as inside:
            inside.config_set("maxmemory", 1)
            for _ in range(3):
                with pytest.raises(RoutesUnavailable):
                    await store.beat(record("a"))
                with pytest.raises(RoutesUnavailable):
                    await store.claim(route("k"), NONE)
                with pytest.raises(RoutesUnavailable):
                    await redis.execute("SET", "a", 1)
            assert len(caplog.records) == 1
            assert "it refuses commands: " in str(redis.problem)
            assert "maxmemory" in str(redis.problem)
            assert (await store.find("no route")).route is None
            assert redis.problem is not None
            inside.config_set("maxmemory", 0)
        await store.beat(record("a"))
        assert redis.problem is None
