"""CallerRouting: which node serves a client whose requests name no session."""

from collections.abc import AsyncIterator

import anyio
import pytest

from app.domain import BackendSpec, Principal
from app.errors import NodeUnavailable, StateRefused
from app.http.errors import HttpRefusal
from app.http.remote import remote_sessions
from app.http.remote.caller_routing import CallerRouting
from app.http.remote.forwarding import NotOwner
from app.sessions.directory import BackendDirectory
from app.sessions.routes import CALLER, Found, NodeRecord, Route, caller_key
from app.sessions.sessionless.suspended_calls import Place
from tests.cluster.rig import HERE, THERE, Cluster, running_cluster
from tests.cluster.routing.rig import record
from tests.http.remote.test_remote_sessions import Rig
from tests.sessions.fakes import FakeStore

ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
KEY = caller_key(ALICE.identity, "acme", "echo")
THEIR_PLACE = Place(THERE, record(THERE).url)


class CallerRig(Rig):
    """Requests of one caller, at the node HERE."""

    def __init__(self, cluster: Cluster, backends: FakeStore, directory: BackendDirectory) -> None:
        super().__init__(cluster, backends, directory)
        sending = self.remote._forwarding
        self.callers = CallerRouting(cluster.registry, cluster.ownership, self.router, sending, self.remote)

    async def claim(self, *, forwarded: bool = False) -> bool:
        with anyio.fail_after(30):
            return await self.callers.claim(self.client.request(ALICE, backend="echo", forwarded=forwarded), b"body")

    async def leave(self, *, keeps_state: bool = True, forwarded: bool = False) -> bool:
        request = self.client.request(ALICE, backend="echo", forwarded=forwarded)
        with anyio.fail_after(30):
            return await self.callers.leave(request, b"body", keeps_state=keeps_state)

    async def retry(self, place: Place = THEIR_PLACE, *, forwarded: bool = False) -> None:
        with anyio.fail_after(30):
            await self.callers.suspended(self.client.request(ALICE, forwarded=forwarded), b"body", place)

    async def is_theirs(self) -> Route:
        """THERE has the caller, and lives."""
        await self.cluster.store.beat(record(THERE))
        route = Route(KEY, THERE, record(THERE).url, 1, "acme", "echo", ALICE.identity, CALLER)
        return await self.cluster.store.claim(route, None)

    async def owner(self) -> tuple[str, int]:
        route = (await self.cluster.store.find(KEY)).route
        assert route is not None
        return route.node, route.token


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CallerRig]:
    monkeypatch.setattr(remote_sessions, "AGAIN_S", 0.001)
    monkeypatch.setattr(remote_sessions, "PATIENCE_S", 60.0)  # on a busy machine the usual seven seconds may pass
    store = FakeStore(BackendSpec("acme", "echo", "echo-server"))
    directory = BackendDirectory(store.get_backend, store.get_tenant)
    async with running_cluster(directory, ALICE) as cluster:
        yield CallerRig(cluster, store, directory)


async def test_a_new_caller_is_ours(rig: CallerRig) -> None:
    assert await rig.claim()
    assert await rig.owner() == (HERE, 1)


async def test_of_many_requests_at_once_one_claims(rig: CallerRig) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(rig.claim)
    assert rig.cluster.store.asked.count("claim") == 1


async def test_the_node_that_has_the_caller_answers(rig: CallerRig) -> None:
    await rig.is_theirs()
    assert not await rig.claim()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_a_caller_that_its_node_has_just_given_up_is_ours(rig: CallerRig) -> None:
    route = await rig.is_theirs()
    rig.forwarding.errors = [NotOwner()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.claim)
        with anyio.fail_after(30):
            while rig.forwarding.asked < 1:
                await anyio.lowlevel.checkpoint()
        await rig.cluster.store.release(route)
    assert not rig.forwarding.answered
    assert await rig.owner() == (HERE, 1)


async def test_one_hop(rig: CallerRig) -> None:
    await rig.is_theirs()
    with pytest.raises(HttpRefusal) as caught:
        await rig.claim(forwarded=True)
    assert caught.value.status == 421


async def test_a_request_that_was_sent_here_for_a_caller_without_a_node_makes_it_ours(rig: CallerRig) -> None:
    assert await rig.claim(forwarded=True)


async def test_the_caller_of_a_dead_node_is_ours_with_the_next_token(rig: CallerRig) -> None:
    await rig.is_theirs()
    await rig.there_dies()
    assert await rig.claim()
    assert await rig.owner() == (HERE, 2)


async def test_a_node_that_answers_keeps_its_callers_though_its_lease_has_lapsed(rig: CallerRig) -> None:
    await rig.is_theirs()
    await rig.there_dies()
    rig.answers = True
    assert not await rig.claim()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_in_a_store_that_was_just_emptied_the_owner_is_waited_for(
    rig: CallerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, find = 0, rig.cluster.store.find

    async def settling(key: str) -> Found:
        nonlocal asked
        asked += 1
        if asked == 3:
            await rig.is_theirs()  # it says so at its next beat
        return Found((await find(key)).route, owner_lives=asked >= 3, is_settling=True)

    monkeypatch.setattr(rig.cluster.store, "find", settling)
    assert not await rig.claim()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_a_node_that_leaves_has_any_other_answer(rig: CallerRig) -> None:
    assert await rig.leave()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_a_node_that_leaves_sends_a_caller_to_the_node_that_has_it_by_now(rig: CallerRig) -> None:
    other = NodeRecord("c" * 16, "http://127.0.0.1:3", "1", record(THERE).started_at, sessions=-1)
    rig.peers[other.id] = other
    assert await rig.leave(keeps_state=False)
    await rig.is_theirs()
    assert await rig.leave()
    assert [node for node, _ in rig.forwarding.answered] == [other.id, THERE]


async def test_a_node_that_leaves_goes_on_alone_where_there_is_no_other(rig: CallerRig) -> None:
    rig.peers.clear()
    assert not await rig.leave()


async def test_a_node_that_leaves_is_asked_for_nothing_by_others(rig: CallerRig) -> None:
    with pytest.raises(HttpRefusal) as caught:
        await rig.leave(forwarded=True)
    assert caught.value.status == 421


async def test_a_retry_goes_to_the_node_that_holds_the_call(rig: CallerRig) -> None:
    await rig.retry()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_a_retry_goes_to_a_node_that_was_not_heard_of_yet(rig: CallerRig) -> None:
    rig.peers.clear()
    rig.answers = True
    await rig.retry()
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_a_retry_for_a_node_that_is_gone_is_lost(rig: CallerRig) -> None:
    rig.peers.clear()
    with pytest.raises(StateRefused) as caught:
        await rig.retry()
    assert caught.value.reason == "state_lost"


async def test_a_retry_waits_until_a_node_that_takes_no_connection_is_known_to_be_dead(rig: CallerRig) -> None:
    rig.forwarding.is_unreachable = True
    async with anyio.create_task_group() as tasks:

        async def retry() -> None:
            with pytest.raises(StateRefused):
                await rig.retry()

        tasks.start_soon(retry)
        with anyio.fail_after(30):
            while rig.forwarding.asked < 3:
                await anyio.lowlevel.checkpoint()
        await rig.there_dies()


async def test_a_retry_waits_no_longer_than_it_takes_to_know(rig: CallerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_sessions, "PATIENCE_S", 0.02)
    rig.forwarding.is_unreachable = True
    with pytest.raises(NodeUnavailable):
        await rig.retry()


async def test_a_retry_that_was_sent_here_for_another_node_is_lost(rig: CallerRig) -> None:
    with pytest.raises(StateRefused):
        await rig.retry(forwarded=True)
