"""RemoteSessions: who answers a request whose session is not here, how long it waits, and what waiting holds."""

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from app.auth.authenticator import CredentialExpiry
from app.cluster.peers.client import PeerUnreachable
from app.cluster.peers.passing import Passing
from app.cluster.routing.memory_store import MemoryStore
from app.cluster.routing.router import Router
from app.domain import BackendSpec, Principal
from app.errors import (
    GatewayError,
    NodeUnavailable,
    RateLimited,
    RoutesUnavailable,
    SessionNotFound,
    ShuttingDown,
    Unauthenticated,
)
from app.http.errors import HttpRefusal
from app.http.remote import remote_sessions
from app.http.remote.forwarding import NotOwner
from app.http.remote.remote_sessions import Attempt, RemoteSessions
from app.http.transports.request import ClientGone, McpRequest
from app.limits.caller_rates import RateLimiter
from app.sessions.directory import BackendDirectory
from app.sessions.routes import NodeRecord
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.telemetry.metrics import Metrics
from tests.cluster.rig import HERE, THERE, Cluster, running_cluster
from tests.cluster.routing.rig import record
from tests.http.transports.conftest import ALICE
from tests.sessions.fakes import FakeStore


class FakeForwarding:
    """Answers whatever it is given, unless it is to raise first."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.is_unreachable, self.asked = False, 0
        self.answered: list[tuple[str, bytes]] = []
        self.passing = Passing()

    async def forward(self, request: McpRequest, body: bytes, node: NodeRecord) -> None:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        if self.is_unreachable:
            raise PeerUnreachable
        if self.errors:
            raise self.errors.pop(0)
        self.answered.append((node.id, body))


class Client:
    """Who sends a request, and may leave."""

    def __init__(self) -> None:
        self.left = anyio.Event()

    def request(
        self, principal: Principal, *, backend: str = "stateless", tenant: str = "acme", forwarded: bool = False
    ) -> McpRequest:
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}

        async def send(message: Any) -> None:
            raise AssertionError("nothing is answered here")

        request = McpRequest(scope, self._receive, send, (tenant, backend, "mcp"))
        request.principal, request.is_forwarded = principal, forwarded
        return request

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


class Rig:
    """The node HERE. THERE is known as long as it lives, and answers probes while `answers`."""

    def __init__(self, cluster: Cluster, backends: FakeStore, directory: BackendDirectory) -> None:
        self.cluster, self.forwarding, self.client = cluster, FakeForwarding(), Client()
        self.backends, self.directory, self.watch = backends, directory, CredentialExpiry()
        self.peers: dict[str, NodeRecord] = {THERE: record(THERE)}
        self.answers = False
        self.router = Router(cluster.store, HERE, self.peers, {}, self._probe)
        self.unknown = RateLimiter("unknown_sessions", Metrics("test").rate_limited, lambda: 0.0)
        self.passing = self.forwarding.passing
        forwarding: Any = self.forwarding
        self.remote = RemoteSessions(
            cluster.registry, cluster.ownership, self.router, forwarding, cluster.take_over, self.unknown
        )

    async def _probe(self, url: str) -> str | None:
        return THERE if self.answers and url == record(THERE).url else None

    async def ask(self, session_id: str, body: bytes = b"body", **request: Any) -> Session | None:
        made = self.client.request(request.pop("principal", self.cluster.principal), **request)
        with anyio.fail_after(30):
            return await self.remote.session(made, session_id, body)

    async def there_dies(self) -> None:
        self.peers.clear()
        await self.cluster.store.leave(THERE)

    async def abandoned(self) -> str:
        """A durable session that nobody has; its id."""
        session = await self.cluster.open("stateless")
        assert session.journal is not None
        await self.cluster.registry.give_away(session)
        assert await self.cluster.ownership.flush(30)
        return session.id


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(remote_sessions, "AGAIN_S", 0.001)
    monkeypatch.setattr(remote_sessions, "PATIENCE_S", 60.0)  # on a busy machine the usual seven seconds may pass
    specs = [BackendSpec("acme", "echo", "echo-server"), BackendSpec("acme", "stateless", "s", recovery="respawn")]
    store = FakeStore(*specs)
    directory = BackendDirectory(store.get_backend, store.get_tenant)
    async with running_cluster(directory, Principal("acme", "key", "k1", frozenset({"mcp:connect"}))) as cluster:
        yield Rig(cluster, store, directory)


async def test_the_node_that_has_the_session_answers(rig):
    await rig.cluster.elsewhere("s")
    assert await rig.ask("s") is None
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_there_is_no_such_session(rig):
    with pytest.raises(SessionNotFound):
        await rig.ask("s")


async def test_who_asks_for_too_many_that_there_are_not_is_slowed_and_nobody_else(rig):
    await rig.cluster.elsewhere("s")
    stranger = Principal("acme", "key", "k2", frozenset({"mcp:connect"}))
    for number in range(1000):
        assert await rig.ask("s") is None  # what there is costs nothing
        with pytest.raises(SessionNotFound):
            await rig.ask(f"no-{number}")
    with pytest.raises(RateLimited):
        await rig.ask("no")
    assert await rig.ask("s") is None  # of a session that is known to be there nothing is counted, so nothing refused
    with pytest.raises(SessionNotFound):
        await rig.ask("no", principal=stranger)


async def test_without_the_store_nobody_says_that_there_is_none(rig, monkeypatch):
    async def find(key: str) -> None:
        raise RoutesUnavailable

    monkeypatch.setattr(rig.cluster.store, "find", find)
    with pytest.raises(RoutesUnavailable):
        await rig.ask("s")


async def test_one_hop(rig):
    await rig.cluster.elsewhere("s")
    with pytest.raises(HttpRefusal) as caught:
        await rig.ask("s", forwarded=True)
    assert caught.value.status == 421
    assert not rig.forwarding.answered


async def test_a_session_that_nobody_has_goes_on_here(rig):
    session_id = await rig.abandoned()
    session = await rig.ask(session_id)
    assert (session.id, session.state) == (session_id, SessionState.OPEN)
    assert not rig.forwarding.answered


@pytest.mark.parametrize(
    "stranger",
    [{"principal": ALICE}, {"backend": "echo"}, {"tenant": "zenith"}],
    ids=["another principal", "another backend", "another tenant"],
)
async def test_it_does_not_for_anybody_else_nor_at_another_address(rig, stranger):
    session_id = await rig.abandoned()
    with pytest.raises(SessionNotFound):
        await rig.ask(session_id, **stranger)
    assert (await rig.ask(session_id)).id == session_id


async def test_requests_that_come_while_it_is_taken_over_get_it_when_it_is_here(rig):
    """Also those that see our own name in the store before the session is rebuilt."""
    session_id = await rig.abandoned()
    found: list[Session | None] = []
    rig.cluster.journals.inner.take, take = held(rig.cluster.journals.inner.take)

    async def ask() -> None:
        found.append(await rig.ask(session_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        with anyio.fail_after(30):
            while (await rig.cluster.store.find(session_key(session_id))).route.node != HERE:
                await anyio.lowlevel.checkpoint()
        for _ in range(5):
            tasks.start_soon(ask)
        with anyio.fail_after(30):
            while not rig.remote._waiting:
                await anyio.lowlevel.checkpoint()
        assert not found
        take.set()
    assert [each.id for each in found] == [session_id] * 6
    assert len({id(each) for each in found}) == 1


def held(work: Any) -> tuple[Any, anyio.Event]:
    """The same, once the event is set."""
    may = anyio.Event()

    async def wait(*arguments: Any) -> Any:
        await may.wait()
        return await work(*arguments)

    return wait, may


async def test_a_session_on_its_way_out_is_waited_for(rig):
    session = await rig.cluster.open("stateless")
    rig.cluster.registry._sessions.hide(session)
    found = []

    async def ask() -> None:
        found.append(await rig.ask(session.id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await rig.cluster.registry.give_away(session)
    assert found[0].id == session.id
    assert found[0] is not session


async def test_a_route_of_ours_that_stands_for_nothing_is_no_session(rig):
    """An answer of the store that was lost and could not be made up for."""
    session = await rig.cluster.open("stateless")
    rig.cluster.ownership._forget(session_key(session.id))
    session.close("handed_over")
    with pytest.raises(SessionNotFound):
        await rig.ask(session.id)


async def test_a_take_over_that_comes_after_it_was_given_up_and_released_costs_nobody_the_session(rig, monkeypatch):
    """On another connection to the store commands can pass each other."""
    store, ownership, session_id = rig.cluster.store, rig.cluster.ownership, await rig.abandoned()
    left = (await store.find(session_key(session_id))).route
    store.is_away = True
    with pytest.raises(RoutesUnavailable):
        await ownership.take_over(left, session_id)
    store.is_away = False
    assert await ownership.flush(30)
    await store.beat(record(HERE))
    assert await MemoryStore.take_over(store, left, HERE, record(HERE).url) is not None
    session = await rig.ask(session_id)
    assert session.id == session_id
    session.close("deleted")
    assert await ownership.flush(30)
    with pytest.raises(SessionNotFound):
        await rig.ask(session_id)


async def test_nodes_that_have_it_no_more_are_asked_a_few_times(rig):
    await rig.cluster.elsewhere("s")
    rig.forwarding.errors = [NotOwner(), NotOwner()]
    assert await rig.ask("s") is None
    assert rig.forwarding.answered == [(THERE, b"body")]
    rig.forwarding.errors = [NotOwner() for _ in range(9)]
    with pytest.raises(NodeUnavailable):
        await rig.ask("s")
    assert len(rig.forwarding.errors) == 9 - remote_sessions.MAX_REFUSALS


async def test_a_node_that_cannot_be_reached_is_waited_for_until_it_is_dead(rig):
    session_id = await rig.abandoned()
    freed = (await rig.cluster.store.find(session_key(session_id))).route
    await rig.cluster.store.beat(record(THERE))
    await rig.cluster.store.take_over(freed, THERE, record(THERE).url)
    rig.forwarding.is_unreachable = True
    found = []

    async def ask() -> None:
        found.append(await rig.ask(session_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        with anyio.fail_after(30):
            while rig.forwarding.asked < 3:
                await anyio.lowlevel.checkpoint()
        await rig.there_dies()
    assert found[0].id == session_id


async def test_it_is_not_waited_for_for_ever(rig, monkeypatch):
    monkeypatch.setattr(remote_sessions, "PATIENCE_S", 0.05)
    await rig.cluster.elsewhere("s")
    rig.forwarding.is_unreachable = True
    began = time.monotonic()
    with pytest.raises(NodeUnavailable):
        await rig.ask("s")
    assert time.monotonic() - began < 20


async def test_a_client_that_leaves_is_noticed_and_its_request_forgotten(rig, monkeypatch):
    monkeypatch.setattr(remote_sessions, "AGAIN_S", 60.0)
    await rig.cluster.elsewhere("s")
    rig.forwarding.is_unreachable = True
    gone = []

    async def ask() -> None:
        with pytest.raises(ClientGone):
            await rig.ask("s")
        gone.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert (rig.remote._waiting, rig.remote._waiting_bytes) == (1, 4)
        rig.client.left.set()
    assert gone
    assert (rig.remote._waiting, rig.remote._waiting_bytes) == (0, 0)


@pytest.mark.parametrize(("name", "value"), [("MAX_WAITING", 3), ("MAX_WAITING_BYTES", 3 * 4)])
async def test_so_many_wait_and_so_much_and_no_more(rig, monkeypatch, name, value):
    monkeypatch.setattr(remote_sessions, "AGAIN_S", 60.0)
    monkeypatch.setattr(remote_sessions, name, value)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(rig.remote.wait, Attempt(rig.client.request(ALICE), b"body"))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(NodeUnavailable):
            await rig.remote.wait(Attempt(rig.client.request(ALICE), b"body"))
        tasks.cancel_scope.cancel()
    assert (rig.remote._waiting, rig.remote._waiting_bytes) == (0, 0)


# --- a node that stops


@pytest.mark.parametrize("stops", ["leave", "take_no_more"])
async def test_a_node_that_stops_has_another_open_new_sessions(rig, stops):
    request = rig.client.request(ALICE)
    assert not rig.cluster.registry.is_stopping
    getattr(rig.cluster.registry, stops)()
    assert rig.cluster.registry.is_stopping
    assert await rig.remote.opening(request, b"hello")
    assert rig.forwarding.answered == [(THERE, b"hello")]


@pytest.fixture(params=["no other node", "it cannot be reached", "it was sent here by one that stops"])
def not_opened_elsewhere(rig, request):
    """A request for a session that no other node opens, for one reason or another."""
    if request.param == "no other node":
        rig.peers.clear()
    rig.forwarding.errors = [PeerUnreachable()]
    return rig.client.request(ALICE, forwarded=request.param.startswith("it was"))


async def test_until_it_drains_it_opens_what_no_other_node_does(rig, not_opened_elsewhere):
    rig.cluster.registry.leave()
    assert not await rig.remote.opening(not_opened_elsewhere, b"hello")


async def test_while_it_drains_what_no_other_node_opens_is_refused(rig, not_opened_elsewhere):
    rig.cluster.registry.take_no_more()
    with pytest.raises(ShuttingDown):
        await rig.remote.opening(not_opened_elsewhere, b"hello")


async def until_it_waits(rig: Rig) -> None:
    with anyio.fail_after(30):
        while not len(rig.passing):
            await anyio.lowlevel.checkpoint()


async def test_its_drain_waits_for_those_who_wait_for_another_node(rig):
    await rig.cluster.elsewhere("s")
    rig.forwarding.is_unreachable, done = True, []
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            done.append(await rig.ask("s"))

        async def drain() -> None:
            done.append(await rig.passing.finish(30))

        tasks.start_soon(ask)
        await until_it_waits(rig)
        tasks.start_soon(drain)
        for _ in range(500):  # also while it looks up the node again, between two waits
            await anyio.lowlevel.checkpoint()
            assert len(rig.passing)
        assert not done
        rig.forwarding.is_unreachable = False
    assert done == [None, 0]
    assert rig.forwarding.answered == [(THERE, b"body")]


async def test_when_its_drain_is_over_those_who_still_wait_hear_that_nothing_was_sent(rig):
    await rig.cluster.elsewhere("s")
    rig.forwarding.is_unreachable = True
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(ShuttingDown):
                await rig.ask("s")

        tasks.start_soon(ask)
        await until_it_waits(rig)
        await rig.passing.close(0.05)
    assert len(rig.passing) == 0
    with pytest.raises(ShuttingDown):
        await rig.ask("s")


async def test_a_node_that_stops_takes_nothing_over(rig):
    session_id = await rig.abandoned()
    rig.cluster.registry.take_no_more()
    rig.forwarding.errors = [PeerUnreachable(), NotOwner()]
    assert await rig.ask(session_id) is None
    assert rig.forwarding.answered == [(THERE, b"body")]
    with pytest.raises(HttpRefusal) as caught:
        await rig.ask(session_id, forwarded=True)
    assert caught.value.status == 421
    rig.peers.clear()
    with pytest.raises(ShuttingDown):
        await rig.ask(session_id)
    assert len(rig.cluster.registry) == 0


async def test_what_a_node_has_sent_is_looked_up_anew(rig):
    """The sender knows better than what was true here two seconds ago."""
    route = await rig.cluster.elsewhere("s")
    rig.router.remember(route)
    await rig.cluster.store.release(route)
    with pytest.raises(SessionNotFound):
        await rig.ask("s", forwarded=True)


async def test_a_node_cut_off_from_the_store_keeps_its_sessions_while_it_answers(rig):
    await rig.cluster.elsewhere("s")
    await rig.there_dies()
    rig.answers = True
    assert await rig.ask("s") is None
    assert rig.forwarding.answered == [(THERE, b"body")]


def watched(rig: Rig, gone: list[bool]) -> McpRequest:
    """A request whose credential is refused once `gone` has something in it, and something was revoked."""

    async def ask_again(request: McpRequest) -> Principal:
        if gone:
            raise Unauthenticated
        return request.principal

    async def require_on(request: McpRequest, error: GatewayError) -> None:
        """All is on."""

    request = rig.client.request(rig.cluster.principal)
    request.admit(rig.cluster.principal, rig.watch, rig.watch.count, ask_again, require_on)
    return request


async def test_whoever_waits_for_another_node_is_asked_again_before_it_is_sent_there(rig):
    await rig.cluster.elsewhere("s")
    rig.forwarding.is_unreachable, gone = True, list[bool]()
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(Unauthenticated):
                await rig.remote.session(watched(rig, gone), "s", b"body")

        tasks.start_soon(ask)
        with anyio.fail_after(30):
            while not rig.forwarding.asked:
                await anyio.lowlevel.checkpoint()
        gone.append(True)
        rig.watch.revoked(lambda principal: True)
        rig.forwarding.is_unreachable = False
    assert not rig.forwarding.answered


async def test_a_session_that_is_taken_over_while_its_key_is_revoked_ends(rig):
    """It was not here yet when the sessions of the key were ended."""
    session_id, gone = await rig.abandoned(), list[bool]()
    rig.cluster.journals.inner.take, take = held(rig.cluster.journals.inner.take)
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(Unauthenticated):
                await rig.remote.session(watched(rig, gone), session_id, b"body")

        tasks.start_soon(ask)
        with anyio.fail_after(30):
            while (await rig.cluster.store.find(session_key(session_id))).route.node != HERE:
                await anyio.lowlevel.checkpoint()
        gone.append(True)
        rig.watch.revoked(lambda principal: True)
        take.set()
    assert len(rig.cluster.registry) == 0
    assert rig.cluster.ownership.has_ended(session_key(session_id))


async def test_a_session_whose_backend_is_removed_while_it_is_taken_over_ends(rig):
    session_id = await rig.abandoned()
    rig.cluster.journals.inner.take, take = held(rig.cluster.journals.inner.take)
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(SessionNotFound):
                await rig.ask(session_id)

        tasks.start_soon(ask)
        with anyio.fail_after(30):
            while (await rig.cluster.store.find(session_key(session_id))).route.node != HERE:
                await anyio.lowlevel.checkpoint()
        del rig.backends.specs["acme", "stateless"]
        rig.directory.forget("acme", "stateless")
        take.set()
    assert len(rig.cluster.registry) == 0
