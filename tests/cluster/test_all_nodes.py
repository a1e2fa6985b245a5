"""AllNodes: what administrators see of every node, over real sockets between them."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import anyio
import httpx2
import pytest

from app.backends.failures import Affected, BackendFailure
from app.cluster import all_nodes
from app.cluster.all_nodes import AllNodes, answer_for
from app.cluster.node_status.limits_use import LimitsUse
from app.cluster.node_status.listing import MAX_ROWS, CallWindow, Listing, Use, Window
from app.cluster.node_status.process_restart import Restarted
from app.cluster.node_status.views import (
    AddressUse,
    BackendRunning,
    FailureView,
    NodeLoad,
    NodeStatus,
    ProcessView,
    SessionView,
    TenantUse,
)
from app.cluster.peers.client import PeerClient
from app.errors import NodeUnavailable
from app.http.errors import HttpRefusal
from app.http.remote.late_heads import LateHeads
from app.http.remote.peer_requests import PeerRequests
from app.http.transports.request import McpRequest
from app.jail.sandbox.report import SandboxView
from app.sessions.routes import NodeRecord
from app.telemetry.call_history.query import CallGroup
from tests.cluster.peers.rig import request_of
from tests.http.remote.nodes import KEY, credentials, served

pytestmark = pytest.mark.real

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "node-a", "node-b", "node-c"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is not left out, though the machine is busy."""
    monkeypatch.setattr(all_nodes, "ANSWER_S", 60.0)


USE = Use(1 << 20, 2.5, 50.0, 1, 7)
HOLDER = ("acme", "https://idp.example.com/?a=1&b=2", "Zoë & sons")
LOAD = NodeLoad("", "host", 1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8.0, "new sessions are refused")


def session(public_id: str, node: str) -> SessionView:
    return SessionView(
        public_id, "acme", "echo", "acme", "key", "k1", "sse", "open", "2025-11-25", NOW, 2.0, 0.5, "p1", node,
        "cursor", "1", "192.0.2.1", USE,
    )  # fmt: skip


def process(process_id: str, node: str) -> ProcessView:
    return ProcessView(process_id, "acme", "echo", 17, "leased", NOW, 2.0, ("s1",), 1, 3, node, USE)


FAILURE = BackendFailure(
    "exited", "exit status 3", False, 1, NOW, NOW, "n", affected=(Affected("s1", "acme", "key", "k1"),), stderr=("oh",)
)


@dataclass
class Overview:
    """What one node tells; only of the tenant `acme`."""

    id: str
    has: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    sent: int = 0  # rows
    inspecting: None = None

    def status(self) -> NodeStatus:
        return NodeStatus(self.id, "1", NOW, len(self.has), 0, draining=False)

    def sandbox(self) -> SandboxView:
        return SandboxView(self.id, {})

    def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        found = [session(each, self.id) for each in self.has if tenant in (None, "acme")]
        return self._told(found, window)

    def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        found = [process(each, self.id) for each in self.has if tenant in (None, "acme")]
        return self._told(found, window)

    def _told(self, found: list[Any], window: Window) -> Listing[Any]:
        rows = window.first(found, lambda row: row.position(window.sort))
        self.sent += len(rows)
        return Listing(rows, len(found))

    def use(self, window: Window) -> Listing[TenantUse]:
        rows = [TenantUse("acme", len(self.has), 1, USE), TenantUse(self.id, 1, 0)]
        return self._told(rows, window)

    def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        at = NOW + timedelta(seconds=len(self.has))
        found = [FailureView("acme", each, replace(FAILURE, at=at, node=self.id)) for each in self.has]
        return self._told(found, window)

    def limits_use(self, tenant: str) -> LimitsUse:
        if tenant != "acme":
            return LimitsUse()
        return LimitsUse(len(self.has), 2, 1, 1 << 20, (("alice", len(self.has)), (self.id, 1)))

    def load(self) -> NodeLoad:
        return replace(LOAD, node=self.id)

    def backends(self, tenant: str, first: str, last: str) -> list[BackendRunning]:
        failures = () if first != last else (FAILURE,)
        return [BackendRunning(name="echo", node=self.id, warm=2, failures=failures)] if first <= "echo" <= last else []

    def credential_uses(self, identity: tuple[str, str, str]) -> list[AddressUse]:
        return [AddressUse("192.0.2.1", 7, NOW, NOW, self.id)] if identity == HOLDER else []

    def end_session(self, tenant: str, public_id: str) -> bool:
        if tenant != "acme" or public_id not in self.has:
            return False
        self.has.remove(public_id)
        self.ended.append(public_id)
        return True

    def restart_process(self, tenant: str, process_id: str) -> Restarted | None:
        if tenant != "acme" or process_id not in self.has:
            return None
        self.ended.append(process_id)
        return Restarted(process_id, "echo", self.id, "leased", 1, 2)

    def stderr(self, tenant: str, process_id: str, lines: int) -> list[str] | None:
        return ["first", "last"][-lines:] if tenant == "acme" and process_id in self.has else None


class Node:
    """One that is asked, or that asks."""

    def __init__(self, node_id: str, *has: str, key: bytes = KEY) -> None:
        self.overview = Overview(node_id, list(has))
        self.peers: dict[str, NodeRecord] = {}
        self.departed: dict[str, NodeRecord] = {}
        own, mine = cast("Any", self.overview), credentials(node_id, key)
        self.client = PeerClient(mine)
        self.all = AllNodes(own, self.peers.values, self.client, departed=self.departed.values)
        self.inside = PeerRequests(mine, partial(answer_for, own), LateHeads(), max_body_bytes=1000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As the front does."""
        request = McpRequest(scope, receive, send)
        try:
            if await self.inside.has_answered(request, scope["path"]):
                return
        except HttpRefusal as refusal:
            await request.answer_error(refusal)
        else:
            await behind(scope, receive, send)


class Odd(Node):
    """One that says who it is, and answers something else."""

    def __init__(self, node_id: str, answer: Any) -> None:
        super().__init__(node_id)
        self.answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/internal/node":
            await super().__call__(scope, receive, send)
        else:
            await self.answer(send)


async def behind(scope: Any, receive: Any, send: Any) -> None:
    """Stands for FastAPI, which has nothing at these addresses."""
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"nothing"})


@asynccontextmanager
async def others(asking: Node, *asked: Node) -> AsyncIterator[None]:
    """Serves the nodes that are asked, and tells the one that asks where they are."""
    async with AsyncExitStack() as stack:
        for node in asked:
            url = await stack.enter_async_context(served(node))
            asking.peers[node.overview.id] = NodeRecord(node.overview.id, url, "1", NOW, sessions=9)
        stack.push_async_callback(asking.client.aclose)
        yield


async def test_lists_are_of_all_nodes_in_order():
    a, b, c = Node(A, "s3"), Node(B, "s1", "s4"), Node(C)
    async with others(a, b, c):
        for tenant in ("acme", None):
            found = await a.all.sessions(tenant, Window())
            assert found == Listing([session("s1", B), session("s3", A), session("s4", B)], 3, [])
            processes = await a.all.processes(tenant, Window())
            assert processes == Listing([process("s1", B), process("s3", A), process("s4", B)], 3, [])
        assert await a.all.sessions("zenith", Window()) == Listing([], 0, [])
        assert [(each.id, each.sessions) for each in await a.all.statuses()] == [(A, 1), (B, 9), (C, 9)]


async def test_what_a_tenant_has_taken_of_its_limits_is_that_of_all_nodes():
    a, b = Node(A, "s1"), Node(B, "s2", "s3")
    async with others(a, b):
        use, silent = await a.all.limits_use("acme")
        assert (use.sessions, use.processes, use.in_flight, use.memory_bytes) == (3, 4, 2, 2 << 20)
        assert (use.sessions_of_one, silent) == (3, [])
        assert await a.all.limits_use("zenith") == (LimitsUse(), [])


async def test_a_node_sends_no_more_rows_than_a_page_has():
    names = [f"s{number:03d}" for number in range(300)]
    a, b, c = Node(A), Node(B, *names[::2]), Node(C, *names[1::2])
    async with others(a, b, c):
        found, after = [], ""
        while True:
            b.overview.sent = c.overview.sent = 0
            page = await a.all.sessions(None, Window("calls", after, 21))
            assert b.overview.sent <= 21
            assert c.overview.sent <= 21
            assert page.total == 300
            found += [row.id for row in page.rows]
            if len(page.rows) < 21:
                break
            after = page.rows[-1].position("calls")
        assert found == names
        b.overview.sent = 0
        await a.all.sessions(None, Window(limit=100_000))
        assert b.overview.sent <= MAX_ROWS


async def test_use_is_summed_by_tenant_over_all_nodes():
    a, b = Node(A, "s1"), Node(B, "s2", "s3")
    async with others(a, b):
        a.peers[C] = NodeRecord(C, "http://127.0.0.1:1", "1", NOW)
        found = await a.all.use(Window("memory"))
        assert found.rows[0] == TenantUse("acme", 3, 2, Use(2 << 20, 5.0, 100.0, 2, 14))
        assert [each.tenant for each in found.rows] == ["acme", A, B]
        assert (found.total, found.silent) == (3, [C])


async def test_failures_of_all_nodes_come_newest_first():
    a, b = Node(A, "s1"), Node(B, "s2", "s3")
    async with others(a, b):
        found = await a.all.failures(None, Window(limit=2))
        assert ({row.failure.node for row in found.rows}, found.total) == ({B}, 3)
        found = await a.all.failures(None, Window(after=found.rows[-1].position("id")))
        assert [row.backend for row in found.rows] == ["s1"]
        assert found.rows[0].failure.stderr == ("oh",)


async def test_nodes_are_shown_with_address_and_load_and_silent_ones_without():
    a, b = Node(A), Node(B)
    async with others(a, b):
        a.peers[C] = NodeRecord(C, "http://127.0.0.1:1", "1", NOW)
        own, other, silent = await a.all.statuses()
        assert (own.load, other.load, silent.load) == (replace(LOAD, node=A), replace(LOAD, node=B), None)
        assert (own.url, other.url, silent.url) == (None, a.peers[B].url, "http://127.0.0.1:1")


async def test_all_that_is_known_of_nodes_is_asked_for_at_once():
    """Beside a silent node each question takes a second."""
    asked, both = 0, anyio.Event()

    async def when_both_are_asked(send: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            both.set()
        await both.wait()
        await behind({}, None, send)

    a = Node(A)
    async with others(a, Odd(B, when_both_are_asked)):
        with anyio.fail_after(30):
            _, silent = await a.all.statuses()
    assert silent.load is None


async def test_what_runs_of_backends_and_their_failures_come_from_all_nodes_but_those_that_are_silent():
    a, b, c = Node(A), Node(B), Node(C)
    async with others(a, b):
        found = await a.all.backends("acme", "a", "z")
        assert found.rows == [BackendRunning(name="echo", node=A, warm=2), BackendRunning(name="echo", node=B, warm=2)]
        a.peers[C] = NodeRecord(C, "http://127.0.0.1:1", "1", NOW)
        found = await a.all.backends("acme", "echo", "echo")
        assert [each.failures for each in found.rows] == [(FAILURE,), (FAILURE,)]
        assert found.silent == [c.overview.id]
        assert (await a.all.backends("acme", "time", "time")).rows == []


async def test_from_where_a_principal_comes_is_told_by_all_nodes():
    a, b = Node(A), Node(B)
    async with others(a, b):
        found = await a.all.credential_uses(HOLDER)
        assert found.rows == [AddressUse("192.0.2.1", 7, NOW, NOW, each) for each in (A, B)]
        assert (await a.all.credential_uses(("acme", "key", "k1"))).rows == []


async def test_a_session_is_ended_where_it_is():
    a, b, c = Node(A, "s1"), Node(B, "s2"), Node(C)
    async with others(a, b, c):
        assert await a.all.end_session("acme", "s2")
        assert await a.all.end_session("acme", "s1")
        assert not await a.all.end_session("acme", "s2")
        assert not await a.all.end_session("zenith", "s1")
    assert (a.overview.ended, b.overview.ended) == (["s1"], ["s2"])


async def test_a_session_is_not_said_to_be_gone_where_a_node_did_not_answer():
    a, b = Node(A), Node(B, "s2")
    async with others(a, b):
        a.peers["gone"] = NodeRecord("gone", "http://127.0.0.1:1", "1", NOW)
        assert await a.all.end_session("acme", "s2")
        with pytest.raises(NodeUnavailable, match="gone"):
            await a.all.end_session("acme", "s1")


async def test_what_a_node_has_that_has_lost_redis_is_seen_and_ended_and_of_a_dead_one_nothing_is_expected(caplog):
    a, b = Node(A, "s1"), Node(B, "s2", "s3")
    async with others(a, b):
        a.departed.update({B: a.peers.pop(B), "gone": NodeRecord("gone", "http://127.0.0.1:1", "1", NOW)})
        listed = await a.all.sessions("acme", Window())
        assert ([each.id for each in listed.rows], listed.total, listed.silent) == (["s1", "s2", "s3"], 3, [])
        assert await a.all.stderr("acme", "s3", 1) == ["last"]
        assert await a.all.end_session("acme", "s2")
        assert await a.all.restart_process("acme", "s3") == Restarted("s3", "echo", B, "leased", 1, 2)
        assert not await a.all.end_session("acme", "s4")
        assert not caplog.messages  # the problem `node_lost` tells of it; else each list would
        a.departed[B] = replace(a.departed[B], draining=True)  # it has left, with all it had
        assert not await a.all.end_session("acme", "s3")


async def test_a_process_is_restarted_where_it_is_and_not_said_to_be_gone_where_a_node_is_silent():
    a, b, dead = Node(A, "p1"), Node(B, "p2"), NodeRecord(C, "http://127.0.0.1:9", "1", NOW, 0, 0, draining=False)
    async with others(a, b):
        assert await a.all.restart_process("acme", "p2") == Restarted("p2", "echo", B, "leased", 1, 2)
        assert await a.all.restart_process("acme", "p1") == Restarted("p1", "echo", A, "leased", 1, 2)
        assert await a.all.restart_process("zenith", "p2") is None
        assert await a.all.restart_process("acme", "p3") is None
        a.peers[C] = dead
        with pytest.raises(NodeUnavailable, match=C):
            await a.all.restart_process("acme", "p3")
    assert (a.overview.ended, b.overview.ended) == (["p1"], ["p2"])


async def test_last_words_come_from_where_the_process_runs():
    a, b = Node(A, "p1"), Node(B, "p 2&tenant=zenith")
    async with others(a, b):
        assert await a.all.stderr("acme", "p1", 1) == ["last"]
        assert await a.all.stderr("acme", "p 2&tenant=zenith", 2) == ["first", "last"]
        assert await a.all.stderr("acme", "p3", 1) is None


async def test_a_node_that_does_not_answer_is_left_out_and_named(monkeypatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(all_nodes, "ANSWER_S", 6.0)  # the others answer in that time, though the machine is busy
    caplog.set_level(logging.WARNING)

    async def silent(send: Any) -> None:
        await anyio.sleep_forever()

    a, b = Node(A, "s1"), Node(B, "s2")
    async with others(a, b), served(Odd(C, silent)) as url:
        a.peers[C] = NodeRecord(C, url, "1", NOW)
        a.peers["gone"] = NodeRecord("gone", "http://127.0.0.1:1", "1", NOW)
        with anyio.fail_after(30):
            found = await a.all.sessions("acme", Window())
    assert found == Listing([session("s1", A), session("s2", B)], 2, ["gone", C])
    assert f"Node {C} is missing" in caplog.text
    assert "Node gone is missing" in caplog.text
    assert f"Node {B} is missing" not in caplog.text


async def test_a_node_with_another_secret_is_left_out():
    a, stranger = Node(A, "s1"), Node(B, "s2", key=b"x" * 32)
    async with others(a, stranger):
        assert (await a.all.sessions("acme", Window())).rows == [session("s1", A)]


async def test_what_is_no_list_is_left_out():
    async def nonsense(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'[{"id": 1}]'})

    a = Node(A, "s1")
    async with others(a), served(Odd(B, nonsense)) as url:
        a.peers[B] = NodeRecord(B, url, "1", NOW)
        assert (await a.all.sessions("acme", Window())).rows == [session("s1", A)]


async def test_a_node_that_does_not_work_together_with_this_one_is_shown_with_the_reason():
    a, b, stranger = Node(A), Node(B), Node(C, key=b"x" * 32)
    async with others(a, b, stranger):
        for node in (B, C):
            await a.client.probe(a.peers[node].url)
        assert [(each.id, each.problem) for each in await a.all.statuses()] == [
            (A, None),
            (B, None),
            (C, "it has another SECRET_KEY"),
        ]


async def test_nobody_is_told_anything_who_is_no_node():
    b = Node(B, "s1")
    async with served(b) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        path = "/internal/overview/sessions?tenant=acme"
        response = await client.get(path)
        assert (response.status_code, response.content) == (404, b"nothing")
        response = await client.get(path, headers={"trunkline-forwarded": "1"})
        assert response.status_code == 403


class Archive:
    """Calls in the database; notes of which nodes it was told to leave out."""

    left_out: Any = None

    async def groups(self, tenant: str, wanted: Any, by: str, not_of: Any = ()) -> list[CallGroup]:
        self.left_out = set(not_of) or self.left_out
        return []


@pytest.mark.parametrize("what", ["comes", "goes"])
async def test_calls_of_a_node_that_comes_or_goes_meanwhile_are_counted_once(what: str, monkeypatch):
    """What the nodes have told is not taken from the database: of those that were asked, not of those there are now."""
    a, b, archive = Node(A), Node(B), Archive()
    monkeypatch.setattr(Overview, "call_groups", lambda *_: [CallGroup("ok", count=1)], raising=False)
    a.all._archive = cast("Any", archive)
    async with others(a, b):
        them = dict(a.peers)
        if what == "comes":
            a.peers.clear()
        ask = a.all._ask_others

        async def ask_while_it_changes(*asked: Any, **query: Any) -> Any:
            found = await ask(*asked, **query)
            a.peers.clear()
            a.peers.update(them if what == "comes" else {})
            return found

        monkeypatch.setattr(a.all, "_ask_others", ask_while_it_changes)
        found = await a.all.call_groups("acme", CallWindow("at"), "outcome")
    assert sum(each.count for each in found.rows) == len(archive.left_out)
    assert archive.left_out == ({A} if what == "comes" else {A, B})


async def test_there_is_no_other_question():
    a, b = Node(A), Node(B, "s1")
    async with served(b) as url:
        question = request_of("GET", b"/internal/overview/secrets?tenant=acme")
        response = await a.client.send(NodeRecord(B, url, "1", NOW), question)
        assert response.status == 404
        response.close()
        await a.client.aclose()
