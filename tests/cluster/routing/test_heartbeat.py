"""Heartbeat: what is said each second, and all of it where the store has forgotten."""

import anyio
import pytest

from app.cluster.routing._session_counts import TURN_BEATS
from app.cluster.routing.heartbeat import LOT, RENEW_S, Heartbeat
from app.cluster.routing.memory_store import MemoryStore
from app.errors import OwnershipUnknown, RoutesUnavailable
from app.sessions.routes import CALLER, LEASE_S, NodeRecord, Quota, Route
from tests.cluster.routing.rig import NODES, open_store, record, route
from tests.redis_servers import RedisServer

A, B, C = NODES


class FlakyStore(MemoryStore):
    """Forgets, fails and keeps a list of what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.forgets = self.fails = False
        self.fails_after = 10**9
        self.refreshed: list[list[str]] = []

    async def beat(self, node: NodeRecord) -> bool:
        if self.fails:
            raise RoutesUnavailable
        return await super().beat(node) and not self.forgets

    async def refresh(self, routes):
        if self.fails or len(self.refreshed) >= self.fails_after:
            raise RoutesUnavailable
        self.refreshed.append([each.key for each in routes])
        return await super().refresh(routes)


class Node:
    """A heartbeat, and what it works on."""

    def __init__(self, count: int, store: MemoryStore | None = None) -> None:
        self.store = FlakyStore()
        self.routes = [route(f"k{number}") for number in range(count)]
        self.lost: list[Route] = []
        self.now = 0.0
        self.heart = Heartbeat(
            store or self.store, lambda: record(A), lambda: self.routes, self._lose, lambda: self.now
        )

    def _lose(self, lost: Route) -> None:
        self.lost.append(lost)
        self.routes = [each for each in self.routes if each.key != lost.key]

    async def beat_and_see(self) -> list[str]:
        self.store.refreshed.clear()
        await self.heart.beat()
        return [key for lot in self.store.refreshed for key in lot]


async def test_the_first_beat_says_everything():
    node = Node(2 * LOT + 1)
    assert await node.beat_and_see() == [each.key for each in node.routes]
    assert [len(lot) for lot in node.store.refreshed] == [LOT, LOT, 1]


async def test_later_beats_say_each_route_once_within_a_minute():
    node = Node(3 * LOT)
    await node.heart.beat()
    said = [await node.beat_and_see() for _ in range(TURN_BEATS)]
    assert [key for lot in said for key in lot] == [each.key for each in node.routes]
    assert {len(lot) for lot in said} == {3 * LOT // TURN_BEATS}


async def test_a_route_that_only_the_store_knows_is_said_with_each_beat():
    """That of a caller, and of a session that this node has not given out the id of."""
    node = Node(2)
    node.routes += [route("caller", transport=CALLER), route("taken over", token=2)]
    await node.heart.beat()
    said = [await node.beat_and_see() for _ in range(3)]
    assert said == [["caller", "taken over", key] for key in ("k0", "k1", "k0")]


async def test_many_that_only_the_store_knows_are_said_a_lot_at_a_time():
    node = Node(0)
    node.routes = [route(f"t{number}", token=2) for number in range(LOT + 10)]
    await node.heart.beat()
    keys = [each.key for each in node.routes]
    assert [await node.beat_and_see() for _ in range(3)] == [keys[:LOT], keys[LOT:], keys[:LOT]]


async def test_routes_that_come_and_go_are_all_said_in_the_end_and_none_that_is_gone():
    node = Node(3 * LOT)
    await node.heart.beat()
    seen: set[str] = set()
    for turn in range(TURN_BEATS):
        node.routes = [*node.routes[7:], route(f"new{turn}")]
        held = {each.key for each in node.routes}
        said = set(await node.beat_and_see())
        assert said <= held
        seen |= said
    assert {each.key for each in node.routes[:-TURN_BEATS]} <= seen


async def test_what_is_gone_is_not_said_in_its_turn():
    node = Node(2 * TURN_BEATS)
    await node.heart.beat()
    await node.heart.beat()  # the turn has begun
    node.routes = node.routes[::2]
    said = [await node.beat_and_see() for _ in range(TURN_BEATS)]
    assert [key for lot in said[:-1] for key in lot] == [each.key for each in node.routes[1:]]
    assert node.heart.is_ok


async def test_all_are_said_where_the_store_has_forgotten_the_node():
    node = Node(2 * LOT)
    await node.heart.beat()
    node.store.forgets = True
    assert len(await node.beat_and_see()) == 2 * LOT
    node.store.forgets = False
    assert 0 < len(await node.beat_and_see()) < LOT


async def test_a_full_refresh_that_broke_off_is_begun_again():
    node = Node(3 * LOT)
    node.store.fails_after = 1
    assert len(await node.beat_and_see()) == LOT
    assert node.heart.is_ok is False
    node.store.fails_after = 10**9
    assert len(await node.beat_and_see()) == 3 * LOT
    assert node.heart.is_ok is True


async def test_what_was_released_during_a_full_refresh_is_not_said():
    node = Node(2 * LOT)
    say = node.store.refresh

    async def release_the_last(routes):
        lost = await say(routes)
        node.routes = node.routes[:-1] if len(node.store.refreshed) == 1 else node.routes
        return lost

    node.store.refresh = release_the_last  # type: ignore[method-assign]
    assert len(await node.beat_and_see()) == 2 * LOT - 1


async def test_the_lease_is_renewed_during_a_long_full_refresh():
    node = Node(5 * LOT)
    say, beat, beats = node.store.refresh, node.store.beat, []

    async def slow(routes):
        node.now += 0.6
        return await say(routes)

    async def counted(of):
        beats.append(node.now)
        return await beat(of)

    node.store.refresh, node.store.beat = slow, counted  # type: ignore[method-assign]
    await node.heart.beat()
    assert beats == pytest.approx([0.0, 1.2, 2.4])


async def test_what_others_have_taken_is_told_once():
    node = Node(3)
    await node.heart.beat()
    await node.store.refresh([route("k1", B, token=2)])
    await node.heart.beat()
    await node.heart.beat()
    assert [each.key for each in node.lost] == ["k1"]


async def test_peers_are_the_others_and_stay_known_while_the_store_is_away():
    node = Node(0)
    await node.store.beat(record(B))
    peers = node.heart.peers
    node.now = 5.0
    await node.heart.beat()
    assert peers == {B: record(B)}
    node.store.fails, node.now = True, 6.0
    await node.heart.beat()
    assert (node.heart.is_ok, node.heart.last_ok, peers) == (False, 5.0, {B: record(B)})


async def test_nodes_that_are_not_heard_of_any_more_stay_known_as_departed_until_they_are_back():
    node = Node(0)
    await node.store.beat(record(B))
    await node.heart.beat()
    await node.store.leave(B)
    await node.heart.beat()
    assert (list(node.heart.peers), list(node.heart.departed)) == ([], [B])
    await node.store.beat(record(B))
    await node.heart.beat()
    assert (list(node.heart.peers), list(node.heart.departed)) == ([B], [])


async def test_proving_fails_aloud_and_is_done_by_the_next_beat():
    node = Node(3)
    await node.heart.beat()
    node.store.fails = True
    with pytest.raises(RoutesUnavailable):
        await node.heart.prove()
    node.store.fails = False
    await node.store.refresh([route("k2", B, token=2)])
    await node.heart.prove()
    assert [each.key for each in node.lost] == ["k2"]


async def test_an_error_of_any_kind_does_not_end_it(caplog: pytest.LogCaptureFixture):
    node = Node(1)
    with anyio.move_on_after(0.05):
        node.heart._node = None  # type: ignore[assignment]
        await node.heart.run()
    assert "Heartbeat failed" in caplog.text


async def test_it_goes_on_through_the_loss_of_a_real_redis(redis_server: RedisServer):
    node = Node(10)
    async with open_store(redis_server.url) as store, anyio.create_task_group() as tasks:
        for each in node.routes:
            await store.claim(each, Quota())
        node.heart._store = store
        tasks.start_soon(node.heart.run)
        with anyio.fail_after(60):
            while not node.heart.is_ok:
                await anyio.sleep(0.01)
            redis_server.kill()
            while node.heart.is_ok:
                await anyio.sleep(0.01)
            redis_server.start()
            while not node.heart.is_ok:
                await anyio.sleep(0.01)
            assert await store.nodes() == [record(A)]
            while (await store.find("k9")).route is None:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


class Reconnecting(FlakyStore):
    """Says in which order it was asked what."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses = 0
        self.node: Node | None = None

    async def reconnect(self, within_s: float) -> None:
        self.asked.append("reconnect")
        assert self.node is not None
        if self.refuses:
            self.refuses -= 1
            self.node.now += within_s / 2
            raise RoutesUnavailable

    async def beat(self, node: NodeRecord) -> bool:
        self.asked.append("beat")
        return await super().beat(node)

    async def refresh(self, routes):
        self.asked.append("refresh")
        return await super().refresh(routes)


async def test_after_a_gap_a_new_connection_then_the_lease_and_then_every_route():
    """While the lease is over, a route can be taken in the moment after it was proved."""
    store = Reconnecting()
    store.node = node = Node(LOT + 1, store)
    await node.heart.prove_anew(node.now)
    assert store.asked == ["reconnect", "beat", "refresh", "refresh"]
    assert node.heart.is_ok


async def test_after_a_gap_it_tries_again_and_then_gives_up():
    store = Reconnecting()
    store.node = node = Node(1, store)
    store.refuses = 2
    await node.heart.prove_anew(node.now)
    assert store.asked == ["reconnect"] * 3 + ["beat", "refresh"]
    store.refuses, began_at = 10**6, node.now
    with pytest.raises(RoutesUnavailable):
        await node.heart.prove_anew(node.now)
    assert node.now - began_at == pytest.approx(RENEW_S)


async def after_a_gap(node: Node, began: float, ended: float) -> None:
    node.now = ended
    await node.heart.prove_anew(began)


@pytest.mark.parametrize(
    ("began", "ended", "may_be_lost"),
    [
        pytest.param(0.5, LEASE_S - 0.1, False, id="shorter than the lease"),
        pytest.param(0.5, LEASE_S, True, id="the lease ended in it"),
        pytest.param(LEASE_S - 0.1, 60.0, True, id="the lease ended in a long one"),
        pytest.param(LEASE_S, 60.0, False, id="the node had gone on without the store before"),
    ],
)
async def test_what_nobody_says_after_a_gap_is_lost_perhaps_where_the_lease_ended_in_it(began, ended, may_be_lost):
    store = Reconnecting()
    store.node = node = Node(1, store)
    await node.heart.beat()
    store.refuses = 10**6
    with pytest.raises(RoutesUnavailable) as told:
        await after_a_gap(node, began, ended)
    assert isinstance(told.value, OwnershipUnknown) is may_be_lost


async def test_a_lease_begins_when_it_is_asked_for():
    """The answer may be read only after the gap."""
    store = Reconnecting()
    store.node = node = Node(1, store)
    nodes = store.nodes

    async def late() -> list[NodeRecord]:
        node.now = 60.0
        return await nodes()

    store.nodes = late  # type: ignore[method-assign]
    await node.heart.beat()
    store.refuses = 10**6
    with pytest.raises(OwnershipUnknown):
        await after_a_gap(node, 0.5, 60.0)


async def test_a_new_lease_alone_proves_nothing():
    store = Reconnecting()
    store.node = node = Node(1, store)
    await node.heart.beat()
    node.now, store.forgets, store.fails_after = 60.0, True, 0
    await node.heart.beat()
    store.refuses = 10**6
    with pytest.raises(OwnershipUnknown):
        await after_a_gap(node, 0.5, 60.0)
    store.refuses, store.forgets, store.fails_after = 0, False, 10**9
    await after_a_gap(node, 0.5, 60.0)
    store.refuses = 10**6
    with pytest.raises(RoutesUnavailable) as told:
        await after_a_gap(node, 60.0, 60.0 + LEASE_S - 0.1)
    assert type(told.value) is RoutesUnavailable
