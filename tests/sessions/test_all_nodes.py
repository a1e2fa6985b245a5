"""AllNodes: what administrators see of every node, over real sockets between them."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import anyio
import httpx2
import pytest

from app.http.errors import HttpRefusal
from app.routing.peers import PeerClient
from app.routing.routes import NodeRecord
from app.sessions import all_nodes
from app.sessions.all_nodes import AllNodes, answer_for
from app.sessions.overview import NodeStatus, ProcessView, SessionView
from app.transports.inside import Inside
from app.transports.late_heads import LateHeads
from app.transports.request import McpRequest
from tests.routing.peer_servers import request_of
from tests.transports.nodes import KEY, credentials, served

pytestmark = pytest.mark.real

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = "node-a", "node-b", "node-c"


def session(public_id: str, node: str) -> SessionView:
    return SessionView(public_id, "echo", "key", "k1", "sse", "open", "2025-11-25", NOW, 0.5, 1, "p1", node)


def process(process_id: str, node: str) -> ProcessView:
    return ProcessView(process_id, "echo", 17, "leased", NOW, 2.0, 1 << 20, ("s1",), 3, node)


@dataclass
class Overview:
    """What one node tells; only of the tenant `acme`."""

    id: str
    has: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def status(self) -> NodeStatus:
        return NodeStatus(self.id, "1", NOW, len(self.has), 0, draining=False)

    def sessions(self, tenant: str) -> list[SessionView]:
        return [session(each, self.id) for each in self.has] if tenant == "acme" else []

    def processes(self, tenant: str) -> list[ProcessView]:
        return [process(each, self.id) for each in self.has] if tenant == "acme" else []

    def end_session(self, tenant: str, public_id: str) -> bool:
        if tenant != "acme" or public_id not in self.has:
            return False
        self.has.remove(public_id)
        self.ended.append(public_id)
        return True

    def stderr(self, tenant: str, process_id: str, lines: int) -> list[str] | None:
        return ["first", "last"][-lines:] if tenant == "acme" and process_id in self.has else None


class Node:
    """One that is asked, or that asks."""

    def __init__(self, node_id: str, *has: str, key: bytes = KEY) -> None:
        self.overview = Overview(node_id, list(has))
        self.peers: dict[str, NodeRecord] = {}
        own, mine = cast("Any", self.overview), credentials(node_id, key)
        self.client = PeerClient(mine)
        self.all = AllNodes(own, self.peers.values, self.client)
        self.inside = Inside(mine, partial(answer_for, own), LateHeads(), max_body_bytes=1000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As the front does."""
        request = McpRequest(scope, receive, send, "", "", "")
        request.public_url = None
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
        assert await a.all.sessions("acme") == [session("s1", B), session("s3", A), session("s4", B)]
        assert await a.all.processes("acme") == [process("s1", B), process("s3", A), process("s4", B)]
        assert await a.all.sessions("zenith") == []
        assert [(each.id, each.sessions) for each in a.all.statuses()] == [(A, 1), (B, 9), (C, 9)]
        assert a.all.status().id == A


async def test_a_session_is_ended_where_it_is():
    a, b, c = Node(A, "s1"), Node(B, "s2"), Node(C)
    async with others(a, b, c):
        assert await a.all.end_session("acme", "s2")
        assert await a.all.end_session("acme", "s1")
        assert not await a.all.end_session("acme", "s2")
        assert not await a.all.end_session("zenith", "s1")
    assert (a.overview.ended, b.overview.ended) == (["s1"], ["s2"])


async def test_last_words_come_from_where_the_process_runs():
    a, b = Node(A, "p1"), Node(B, "p 2&tenant=zenith")
    async with others(a, b):
        assert await a.all.stderr("acme", "p1", 1) == ["last"]
        assert await a.all.stderr("acme", "p 2&tenant=zenith", 2) == ["first", "last"]
        assert await a.all.stderr("acme", "p3", 1) is None


async def test_a_node_that_does_not_answer_is_left_out_and_named(monkeypatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(all_nodes, "ANSWER_S", 0.1)
    caplog.set_level(logging.WARNING)

    async def silent(send: Any) -> None:
        await anyio.sleep_forever()

    a, b = Node(A, "s1"), Node(B, "s2")
    async with others(a, b), served(Odd(C, silent)) as url:
        a.peers[C] = NodeRecord(C, url, "1", NOW)
        a.peers["gone"] = NodeRecord("gone", "http://127.0.0.1:1", "1", NOW)
        with anyio.fail_after(2):
            assert await a.all.sessions("acme") == [session("s1", A), session("s2", B)]
    assert f"node {C} is missing" in caplog.text
    assert "node gone is missing" in caplog.text
    assert f"node {B} is missing" not in caplog.text


async def test_a_node_with_another_secret_is_left_out():
    a, stranger = Node(A, "s1"), Node(B, "s2", key=b"x" * 32)
    async with others(a, stranger):
        assert await a.all.sessions("acme") == [session("s1", A)]


async def test_what_is_no_list_is_left_out():
    async def nonsense(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'[{"id": 1}]'})

    a = Node(A, "s1")
    async with others(a), served(Odd(B, nonsense)) as url:
        a.peers[B] = NodeRecord(B, url, "1", NOW)
        assert await a.all.sessions("acme") == [session("s1", A)]


async def test_a_node_that_does_not_work_together_with_this_one_is_shown_with_the_reason():
    a, b, stranger = Node(A), Node(B), Node(C, key=b"x" * 32)
    async with others(a, b, stranger):
        for node in (B, C):
            await a.client.probe(a.peers[node].url)
        assert [(each.id, each.problem) for each in a.all.statuses()] == [
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


async def test_there_is_no_other_question():
    a, b = Node(A), Node(B, "s1")
    async with served(b) as url:
        question = request_of("GET", b"/internal/overview/secrets?tenant=acme")
        response = await a.client.send(NodeRecord(B, url, "1", NOW), question)
        assert response.status == 404
        response.close()
        await a.client.aclose()
