"""AllNodes: what administrators see of every node, over real sockets between them."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import httpx2
import msgspec
import pytest

from app.cluster import all_nodes
from app.cluster.all_nodes import AllNodes
from app.cluster.node_status.found_calls import group_calls
from app.cluster.node_status.limits_use import LimitsUse, added
from app.cluster.node_status.listing import MAX_ROWS, CallWindow, Gathered, Listing, Use, Window
from app.cluster.node_status.questions import (
    DENIALS,
    END_SESSION,
    QUESTIONS,
    SESSIONS,
    STDERR,
    USE,
)
from app.cluster.node_status.views import (
    NodeLoad,
    NodeStatus,
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
from app.processes.denials import Denial
from app.sessions.routes import NodeRecord
from app.telemetry.call_history.query import CallGroup
from tests.cluster.peers.rig import request_of
from tests.http.remote.nodes import KEY, credentials, served

pytestmark = pytest.mark.real

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "node-a", "node-b", "node-c"
DENIED = Denial("file", "/srv/notes", NOW)
GONE = NodeRecord("gone", "http://127.0.0.1:1", "1", NOW)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers is not left out, though the machine is busy."""
    monkeypatch.setattr(all_nodes, "ANSWER_S", 60.0)


MIB_USED = Use(1 << 20, 2.5, 50.0, 1, 7)
LOAD = NodeLoad("", "host", 1, 0.5, 1, 2, 3, 4, 5, 6, 7, 8.0, "new sessions are refused")


def session(public_id: str, node: str) -> SessionView:
    return SessionView(
        public_id, "acme", "echo", "acme", "key", "k1", "cursor", "1", "192.0.2.1", "sse", "open", "2025-11-25", NOW,
        2.0, 0.5, "p1", node, MIB_USED,
    )  # fmt: skip


@dataclass
class Overview:
    """What one node tells; only of the tenant `acme`."""

    id: str
    has: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    sent: int = 0  # rows

    def status(self) -> NodeStatus:
        return NodeStatus(self.id, "1", NOW, len(self.has), 0, draining=False)

    def sandbox(self) -> SandboxView:
        return SandboxView(self.id, {})

    def load(self) -> NodeLoad:
        return replace(LOAD, node=self.id)

    def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        found = [session(each, self.id) for each in self.has if tenant in (None, "acme")]
        return self._told(found, window)

    def _told(self, found: list[Any], window: Window) -> Listing[Any]:
        rows = window.first(found, lambda row: row.position(window.sort))
        self.sent += len(rows)
        return Listing(rows, len(found))

    def end_session(self, tenant: str, public_id: str) -> bool:
        if tenant != "acme" or public_id not in self.has:
            return False
        self.has.remove(public_id)
        self.ended.append(public_id)
        return True

    def denials(self, tenant: str, process_id: str) -> list[Denial] | None:
        return [DENIED] if tenant == "acme" and process_id in self.has else None

    def stderr(self, tenant: str, process_id: str, lines: int) -> list[str] | None:
        return ["first", "last"][:lines] if tenant == "acme" and process_id in self.has else None

    def call_groups(self, tenant: str | None, window: CallWindow, by: str) -> list[CallGroup]:
        return [CallGroup("ok", count=1)]


def at_node(name: str) -> Any:
    """The function of the fake that a question asks for."""
    return lambda node, *asked: getattr(node, name)(*asked)


@pytest.fixture(autouse=True)
def _of_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in QUESTIONS:
        _ = each._types
        monkeypatch.setattr(each, "_read", at_node(each.name))


class Node:
    """One that is asked, or that asks."""

    def __init__(self, node_id: str, *has: str, key: bytes = KEY) -> None:
        self.overview = Overview(node_id, list(has))
        self.peers: dict[str, NodeRecord] = {}
        self.departed: dict[str, NodeRecord] = {}
        own, mine = cast("Any", self.overview), credentials(node_id, key)
        self.client = PeerClient(mine)
        self.all = AllNodes(own, self.peers.values, self.client, departed=self.departed.values)
        self.ask = self.all.ask
        self.inside = PeerRequests(mine, self.all.answer, LateHeads(), max_body_bytes=1000)

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


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.name)
def test_what_is_asked_and_answered_can_travel(question: Any):
    for kind in question._types:
        msgspec.msgpack.Decoder(kind)


async def test_lists_are_of_all_nodes_in_order():
    a, b, c = Node(A, "s3"), Node(B, "s1", "s4"), Node(C)
    async with others(a, b, c):
        for tenant in ("acme", None):
            found = await a.ask(SESSIONS, tenant, Window())
            assert found == Listing([session("s1", B), session("s3", A), session("s4", B)], 3, [])
        assert await a.ask(SESSIONS, "zenith", Window()) == Listing([], 0, [])
        assert [(each.id, each.sessions) for each in await a.all.statuses()] == [(A, 1), (B, 9), (C, 9)]


async def test_a_node_sends_no_more_rows_than_a_page_has():
    names = [f"s{number:03d}" for number in range(300)]
    a, b, c = Node(A), Node(B, *names[::2]), Node(C, *names[1::2])
    async with others(a, b, c):
        found, after = [], ""
        while True:
            b.overview.sent = c.overview.sent = 0
            page = await a.ask(SESSIONS, None, Window("calls", after, 21))
            assert b.overview.sent <= 21
            assert c.overview.sent <= 21
            assert page.total == 300
            found += [row.id for row in page.rows]
            if len(page.rows) < 21:
                break
            after = page.rows[-1].position("calls")
        assert found == names
        b.overview.sent = 0
        await a.ask(SESSIONS, None, Window(limit=100_000))
        assert b.overview.sent <= MAX_ROWS


NODES = ((1, A), (2, B))


def test_sums_are_those_of_all_nodes_that_answer():
    uses = [LimitsUse(each, 2, 1, 1 << 20, (("alice", each), (node, 1))) for each, node in NODES]
    use = added(uses)
    assert (use.sessions, use.processes, use.in_flight, use.memory_bytes) == (3, 4, 2, 2 << 20)
    assert use.sessions_of_one == 3
    told = [
        Listing([TenantUse("acme", each, 1, MIB_USED), TenantUse(node, 1, 0)], 2) for each, node in ((1, A), (2, B))
    ]
    found = USE.merge(Gathered(told, ["gone"]), None, Window("memory"))
    assert found.rows[0] == TenantUse("acme", 3, 2, Use(2 << 20, 5.0, 100.0, 2, 14))
    assert [each.tenant for each in found.rows] == ["acme", A, B]
    assert (found.total, found.silent) == (3, ["gone"])


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


async def test_what_one_node_has_is_found_and_ended_where_it_is():
    a, b, c = Node(A, "s1"), Node(B, "s2", "p 2&tenant=zenith"), Node(C)
    async with others(a, b, c):
        assert await a.ask(STDERR, "acme", "p 2&tenant=zenith", 2) == ["first", "last"]
        assert await a.ask(STDERR, "acme", "s1", 0) == []
        assert await a.ask(STDERR, "acme", "p3", 1) is None
        assert await a.ask(DENIALS, "acme", "s2") == [DENIED]
        assert await a.ask(END_SESSION, "acme", "s2")
        assert await a.ask(END_SESSION, "acme", "s1")
        assert not await a.ask(END_SESSION, "acme", "s2")
        assert not await a.ask(END_SESSION, "zenith", "s1")
    assert (a.overview.ended, b.overview.ended) == (["s1"], ["s2"])


async def test_what_one_node_has_is_not_said_to_be_gone_where_a_node_did_not_answer():
    a, b = Node(A), Node(B, "s2")
    async with others(a, b):
        a.peers[GONE.id] = GONE
        assert await a.ask(END_SESSION, "acme", "s2")
        with pytest.raises(NodeUnavailable, match="gone"):
            await a.ask(END_SESSION, "acme", "s1")


async def test_what_a_node_has_that_has_lost_redis_is_seen_and_ended_and_of_a_dead_one_nothing_is_expected(caplog):
    a, b = Node(A, "s1"), Node(B, "s2", "s3")
    async with others(a, b):
        a.departed.update({B: a.peers.pop(B), GONE.id: GONE})
        listed = await a.ask(SESSIONS, "acme", Window())
        assert ([each.id for each in listed.rows], listed.total, listed.silent) == (["s1", "s2", "s3"], 3, [])
        assert await a.ask(STDERR, "acme", "s3", 1) == ["first"]
        assert await a.ask(END_SESSION, "acme", "s2")
        assert not await a.ask(END_SESSION, "acme", "s4")
        assert not caplog.messages  # the problem `node_lost` tells of it; else each list would
        a.departed[B] = replace(a.departed[B], draining=True)  # it has left, with all it had
        assert not await a.ask(END_SESSION, "acme", "s3")


async def test_a_node_that_does_not_answer_is_left_out_and_named(monkeypatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(all_nodes, "ANSWER_S", 6.0)  # the others answer in that time, though the machine is busy
    caplog.set_level(logging.WARNING)

    async def silent(send: Any) -> None:
        await anyio.sleep_forever()

    async def nonsense(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'[{"id": 1}]'})

    a, b, stranger = Node(A, "s1"), Node(B, "s2"), Node("stranger", "s3", key=b"x" * 32)
    async with others(a, b, stranger, Odd(C, silent), Odd("odd", nonsense)):
        a.peers[GONE.id] = GONE
        with anyio.fail_after(30):
            found = await a.ask(SESSIONS, "acme", Window())
    assert found == Listing([session("s1", A), session("s2", B)], 2, ["gone", C, "odd", "stranger"])
    for node in found.silent:
        assert f"Node {node} is missing" in caplog.text
    assert f"Node {B} is missing" not in caplog.text


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
        path = "/internal/overview/sessions"
        response = await client.post(path, content=SESSIONS.encode("acme", Window()))
        assert (response.status_code, response.content) == (404, b"nothing")
        response = await client.post(path, headers={"trunkline-forwarded": "1"})
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
    async with others(a, b):
        them = dict(a.peers)
        if what == "comes":
            a.peers.clear()
        ask = a.all._ask

        async def ask_while_it_changes(*asked: Any) -> Any:
            found = await ask(*asked)
            a.peers.clear()
            a.peers.update(them if what == "comes" else {})
            return found

        monkeypatch.setattr(a.all, "_ask", ask_while_it_changes)
        found = await group_calls(a.all, cast("Any", archive), "acme", CallWindow("at"), "outcome")
    assert sum(each.count for each in found.rows) == len(archive.left_out)
    assert archive.left_out == ({A} if what == "comes" else {A, B})


async def test_there_is_no_other_question():
    a, b = Node(A), Node(B, "s1")
    async with served(b) as url:
        question = request_of("POST", b"/internal/overview/secrets")
        response = await a.client.send(NodeRecord(B, url, "1", NOW), question)
        assert response.status == 404
        response.close()
        await a.client.aclose()
