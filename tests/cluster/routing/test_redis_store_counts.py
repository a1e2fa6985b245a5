"""How many sessions Redis counts, and how many there are: the same within a few beats, whatever has happened."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from app.cluster.routing import redis_store
from app.cluster.routing.heartbeat import Heartbeat
from app.cluster.routing.records import principal_count_name, tenant_count_name
from app.cluster.routing.redis_store import RedisStore
from app.errors import RoutesUnavailable
from app.sessions.routes import Quota, Route
from tests.cluster.routing.rig import NODES, open_store, record, route
from tests.redis_servers import client_of

A, B, _ = NODES
TENANTS = [f"tenant-{number}" for number in range(20)]
ONE = Quota(sessions=1, sessions_per_principal=1)
FEW_BEATS = 3


class Node:
    """A store, a heartbeat, and what the node holds."""

    def __init__(self, name: str, store: RedisStore) -> None:
        self.name, self.store = name, store
        self.held: dict[str, Route] = {}
        self.heart = Heartbeat(store, lambda: record(name), lambda: list(self.held.values()), self._lost, lambda: 0.0)

    def _lost(self, theirs: Route) -> None:
        self.held.pop(theirs.key, None)

    async def claim(self, tenant: str) -> None:
        mine = route(f"key-{tenant}-{self.name}", self.name, tenant=tenant, identity=(tenant, "key", "alice"))
        self.held[mine.key] = await self.store.claim(mine, ONE)

    async def take(self, other: Route) -> None:
        taken = await self.store.take_over(other, self.name, f"http://{self.name}")
        assert taken is not None
        self.held[taken.key] = taken

    async def release(self, *, hand_over: bool = False) -> None:
        """Everything."""
        while self.held:
            _, mine = self.held.popitem()
            await self.store.release(mine, hand_over=hand_over)


class Pair:
    """Two nodes and what Redis says of them."""

    def __init__(self, url: str, nodes: list[Node]) -> None:
        self.first, self.second = nodes
        self.client = client_of(url)

    def lapse(self, node: Node) -> None:
        """What five seconds of a pause do."""
        self.client.delete(f"trunkline:node:{node.name}")

    def counted(self) -> Counter[tuple[str, str]]:
        """By name and node, those without a lease left out: they count for nobody."""
        found = Counter[tuple[str, str]]()
        for key in self.client.scan_iter("trunkline:used:*"):
            for node, sessions in self.client.hgetall(key).items():
                if self.client.exists(f"trunkline:node:{node.decode()}"):
                    found[key.decode(), node.decode()] = int(sessions)
        return found

    def real(self) -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        for node in (self.first, self.second):
            for held in node.held.values():
                names = tenant_count_name(held.tenant), principal_count_name(held.tenant, held.identity)
                found.update((name, node.name) for name in names)
        return found

    async def settles(self) -> None:
        for _ in range(FEW_BEATS):
            await self.first.heart.beat()
            await self.second.heart.beat()
        assert self.counted() == self.real()


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say when one lapses; on a busy machine five seconds may pass by themselves."""
    monkeypatch.setattr(redis_store, "LEASE_MS", 60_000)


@pytest.fixture
async def pair(empty_redis: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(empty_redis)) for _ in range(2)]
        pair = Pair(empty_redis, [Node(name, store) for name, store in zip((A, B), stores, strict=True)])
        stack.callback(pair.client.close)
        await pair.settles()
        for tenant in TENANTS:
            await pair.first.claim(tenant)
        yield pair


async def test_a_node_that_was_paused_and_taken_over_holds_no_tenants_place(pair: Pair):
    await pair.settles()
    asleep = list(pair.first.held.values())
    pair.lapse(pair.first)
    for theirs in asleep:
        await pair.second.take(theirs)
    await pair.second.release()
    await pair.settles()
    assert not pair.first.held
    for tenant in TENANTS:
        await pair.second.claim(tenant)  # else QuotaExceeded
    await pair.settles()


async def test_half_of_it_was_taken_over(pair: Pair):
    asleep = list(pair.first.held.values())
    pair.lapse(pair.first)
    for theirs in asleep[::2]:
        await pair.second.take(theirs)
    await pair.settles()
    assert (len(pair.first.held), len(pair.second.held)) == (10, 10)


async def test_a_node_that_was_killed_counts_no_more_at_once_for_whoever_takes_over(pair: Pair):
    pair.lapse(pair.first)
    dead = pair.first
    pair.first = Node("node-again", pair.second.store)  # nobody beats for the other any more
    for theirs in list(dead.held.values()):
        await pair.second.take(theirs)
    assert not [key for key in pair.client.scan_iter("trunkline:used:*") if pair.client.hexists(key, dead.name)]
    assert pair.counted() == pair.real()


async def test_routes_that_redis_has_lost_are_counted_back_when_they_end(pair: Pair):
    for key in list(pair.first.held)[:10]:
        pair.client.delete(f"trunkline:route:{key}")
    await pair.first.release()
    await pair.settles()


async def test_counts_that_redis_has_lost_are_said_again_for_who_comes_and_goes(pair: Pair):
    for key in pair.client.scan_iter("trunkline:used:*"):
        pair.client.delete(key)
    await pair.first.release(hand_over=True)
    await pair.settles()


@pytest.mark.parametrize("what", ["claim", "release", "take_over"])
async def test_a_change_whose_answer_was_lost_and_that_came_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
):
    """Said in between, as a beat does it: the second attempt counts from a number that was right already."""
    node, run = pair.first, pair.first.store._redis.run
    if what == "take_over":
        pair.lapse(pair.first)
        node, run = pair.second, pair.second.store._redis.run
    loses = True

    async def lossy(*arguments: object, **options: object) -> object:
        answer = await run(*arguments, **options)  # type: ignore[arg-type]
        if loses:
            raise RoutesUnavailable
        return answer

    asked: Route = next(iter(pair.first.held.values()))
    for loses in (True, False):
        monkeypatch.setattr(node.store._redis, "run", lossy)
        try:
            if what == "claim":
                asked = route("key-new", A, tenant="new", identity=("new", "key", "alice"))
                node.held[asked.key] = await node.store.claim(asked, ONE)
            elif what == "release":
                pair.first.held.pop(asked.key, None)
                await node.store.release(asked)
            else:
                await node.take(asked)
        except RoutesUnavailable:
            assert loses
        monkeypatch.setattr(node.store._redis, "run", run)
        await pair.second.heart.beat()
        if what != "take_over":
            await pair.first.heart.beat()
    await pair.settles()


async def test_a_route_that_nobody_holds_and_nobody_released_counts_no_more(pair: Pair):
    """Of the releases that wait for a store that is away, the oldest goes when there are too many."""
    pair.first.held.popitem()
    await pair.settles()
    assert len(pair.first.held) == 19


async def test_a_store_that_is_flushed_while_sessions_come_and_go(pair: Pair):
    for number in range(4):
        pair.client.flushdb()
        await pair.first.release()
        for tenant in TENANTS[number:]:
            await pair.second.claim(tenant)
        await pair.settles()
        await pair.second.release()


async def test_half_of_it_was_taken_over_and_the_next_beat_says_so(pair: Pair) -> None:
    """Without a second look at what the node holds."""
    asleep = list(pair.first.held.values())
    pair.lapse(pair.first)
    for theirs in asleep[::2]:
        await pair.second.take(theirs)
    for _ in range(2):  # says what it believes, hears of what it has lost, says that
        await pair.first.heart.beat()
    assert pair.counted()[tenant_count_name(asleep[0].tenant), A] == 0
    assert len(pair.first.store._counts) == len(pair.first.held) == 10
