"""A request for another node's session, from the client's socket to the owner's endpoint and back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from app.domain import Principal
from app.errors import NodeLost
from app.routing.frames import RequestHead
from app.routing.peers import PeerClient, PeerRefused, PeerUnreachable
from app.routing.routes import NodeRecord
from app.transports.forwarding import NotOwner, not_owner
from app.transports.node_links import LinkedRequest
from app.transports.request import ClientGone, McpRequest
from tests.routing.peer_servers import process, stands_still, until
from tests.transports.nodes import ALICE, LIMIT, MCP, Endpoint, SendingNode, front, node, proof_of, served

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEADERS = {"authorization": "Bearer alice"}
EVENTS = (b"content-type", b"text/event-stream")


@pytest.fixture
async def sender() -> AsyncIterator[SendingNode]:
    sender = SendingNode()
    yield sender
    await sender.peers.aclose()


@asynccontextmanager
async def client_of(sender: SendingNode) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of node A."""
    limits = httpx2.Limits(max_connections=None)
    async with (
        served(front(sender.forward)) as url,
        httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=30, limits=limits, trust_env=False) as client,
    ):
        yield client


@asynccontextmanager
async def two_nodes(sender: SendingNode, endpoint: Endpoint, key: bytes = b"k" * 32) -> AsyncIterator[Any]:
    """A client of node A, which sends everything on to B."""
    async with node(endpoint, proof_of("node-b", key)) as sender.to, client_of(sender) as client:
        yield client


async def says_what_it_got(request: McpRequest) -> None:
    body = await request.body(LIMIT)
    assert request.is_forwarded
    assert request.principal == ALICE
    got = {name.decode(): value.decode() for name, value in request.scope["headers"]}
    answer = {"method": request.method, "target": request.raw_target().decode(), "headers": got, "size": len(body)}
    await request.answer(201, json.dumps(answer).encode(), [(b"mcp-session-id", b"a.b"), (b"x-secret", b"no")])


class Streaming:
    """An endpoint that sends what the test gives it, and notices when its client leaves."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()  # the empty one is the end
        self.is_left = asyncio.Event()

    async def __call__(self, request: McpRequest) -> None:
        await request.body(LIMIT)
        try:
            await request.unless_gone(lambda: self._answer(request))
        except ClientGone:
            self.is_left.set()
            raise

    async def _answer(self, request: McpRequest) -> None:
        first = await self.chunks.get()
        await request.send({"type": "http.response.start", "status": 200, "headers": [EVENTS]})
        await request.send({"type": "http.response.body", "body": first, "more_body": True})
        while chunk := await self.chunks.get():
            await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
        await request.send({"type": "http.response.body", "body": b""})


# --- the usual case


async def test_the_owner_gets_the_request_and_the_client_its_answer(sender: SendingNode) -> None:
    async with two_nodes(sender, says_what_it_got) as client:
        response = await client.post(MCP + "?a=%2F", content=PING, headers={"mcp-session-id": "a.b"})
        got = response.json()
        assert (response.status_code, response.headers["content-type"]) == (201, "application/json")
        assert (got["method"], got["target"], got["size"]) == ("POST", MCP + "?a=%2F", len(PING))
        assert response.headers["mcp-session-id"] == "a.b"
        assert "x-secret" not in response.headers
        assert (await client.delete(MCP)).json()["method"] == "DELETE"
        assert (await client.get(MCP)).json()["method"] == "GET"
        await until(lambda: sender.results() == {"ok": 3})
        assert sum(sender.metrics.forward_seconds.labels().counts) == 3


async def test_what_was_meant_for_this_node_stays_here(sender: SendingNode) -> None:
    mine = {
        "cookie": "a=b", "origin": "https://app.example.org", "connection": "keep-alive, X-Once", "x-once": "1",
        "te": "trailers", "trunkline-other": "1", "expect": "100-continue",
    }  # fmt: skip
    passed = {"mcp-session-id": "a.b", "mcp-param-a": "b", "last-event-id": "1", "accept": "text/event-stream"}
    async with two_nodes(sender, says_what_it_got) as client:
        response = await client.post(MCP, content=PING, headers={**mine, **passed})
        got = response.json()["headers"]
        assert not {*mine, "authorization", "host"} & set(got)
        assert passed.items() <= got.items()
        assert response.headers["access-control-allow-origin"] == "https://app.example.org"


async def test_a_large_body_arrives_whole_both_ways(sender: SendingNode) -> None:
    async def echo(request: McpRequest) -> None:
        await request.answer(200, await request.body(LIMIT))

    body = bytes(range(256)) * (LIMIT // 256)
    async with two_nodes(sender, echo) as client:
        assert (await client.post(MCP, content=body)).content == body
        assert (await client.post(MCP, content=body + b"x")).status_code == 413


async def test_a_thousand_at_once(sender: SendingNode) -> None:
    async def echo(request: McpRequest) -> None:
        await request.answer(200, await request.body(LIMIT))

    answers: dict[int, bytes] = {}
    async with two_nodes(sender, echo) as client, anyio.create_task_group() as tasks:

        async def ten(first: int) -> None:
            for number in range(first, first + 10):
                answers[number] = (await client.post(MCP, content=b"%d" % number)).content

        for first in range(0, 1000, 10):
            tasks.start_soon(ten, first)
    assert answers == {number: b"%d" % number for number in range(1000)}
    await until(lambda: sender.results() == {"ok": 1000})


# --- streams


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_stream_is_passed_on_as_it_is_made(sender: SendingNode, method: str) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b": open\n\n")
        async with client.stream(method, MCP) as response:
            chunks = response.aiter_raw()
            assert response.headers["content-type"] == "text/event-stream"
            assert await anext(chunks) == b": open\n\n"
            for event in (b"data: 1\n\n", b"data: 2\n\n"):
                owner.chunks.put_nowait(event)
                assert await anext(chunks) == event
            owner.chunks.put_nowait(b"")
            assert [chunk async for chunk in chunks] == []
        await until(lambda: sender.results() == {"ok": 1})


async def test_a_client_that_leaves_its_stream_is_known_to_the_owner(sender: SendingNode) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b": open\n\n")
        async with client.stream("GET", MCP) as response:
            await anext(response.aiter_raw())
        with anyio.fail_after(5):
            await owner.is_left.wait()
        await until(lambda: sender.results() == {"client_gone": 1} and "0 requests" in repr(sender.peers))


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_client_that_leaves_before_the_answer_is_known_to_the_owner(sender: SendingNode, method: str) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.request(method, MCP, timeout=0.2)
        with anyio.fail_after(5):
            await owner.is_left.wait()
        await until(lambda: sender.results() == {"client_gone": 1} and "0 requests" in repr(sender.peers))
        assert isinstance(sender.errors[0], ClientGone)


async def test_a_client_that_does_not_read_stops_the_owner(sender: SendingNode) -> None:
    sent, total = 0, 64 << 20

    async def floods(request: McpRequest) -> None:
        nonlocal sent
        await request.send({"type": "http.response.start", "status": 200, "headers": [EVENTS]})
        while sent < total:
            await request.send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            sent += 65536
        await request.send({"type": "http.response.body", "body": b""})

    async with two_nodes(sender, floods) as client:
        async with client.stream("GET", MCP) as response:
            assert await stands_still(lambda: sent) < 8 << 20  # one window, and the buffers of the client's socket
            got = 0
            async for chunk in response.aiter_raw():
                got += len(chunk)
        assert got == sent == total


# --- what goes wrong


async def test_a_node_without_the_session_says_so_and_nothing_is_answered(sender: SendingNode) -> None:
    async def refuses(request: McpRequest) -> None:
        raise not_owner()

    async with two_nodes(sender, refuses) as client:
        response = await client.post(MCP, content=PING)
        assert isinstance(sender.errors[0], NotOwner)
        assert response.json()["error"]["data"] == {"reason": "not_owner"}  # of this test's endpoint
        await until(lambda: sender.results() == {"not_owner": 1})


async def test_a_node_that_is_not_there_was_sent_nothing(sender: SendingNode) -> None:
    with process() as (sender.to, running):
        running.kill()
        running.wait()
        async with client_of(sender) as client:
            response = await client.post(MCP, content=PING)
    assert isinstance(sender.errors[0], PeerUnreachable)
    assert response.status_code == 503
    await until(lambda: sender.results() == {"unreachable": 1})


async def test_a_node_killed_in_mid_call_is_an_error_at_once(sender: SendingNode) -> None:
    with process() as (sender.to, running):
        async with client_of(sender) as client, anyio.create_task_group() as tasks:

            async def kill() -> None:
                await until(lambda: "1 requests" in repr(sender.peers))
                running.kill()

            tasks.start_soon(kill)
            started = time.monotonic()
            response = await client.post(MCP, content=PING)
            assert time.monotonic() - started < 2
    assert isinstance(sender.errors[0], NodeLost)
    assert (response.status_code, response.json()["error"]["code"]) == (200, -32012)
    await until(lambda: sender.results() == {"lost": 1})


@asynccontextmanager
async def dies_after(sender: SendingNode, content_type: bytes, chunk: bytes) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of node A; node B answers with this much, and its connections break."""

    async def dies(linked: LinkedRequest) -> None:
        headers = [(b"content-type", content_type), *([(b"content-length", b"100")] if b"json" in content_type else [])]
        await linked.send({"type": "http.response.start", "status": 200, "headers": headers})
        await linked.send({"type": "http.response.body", "body": chunk, "more_body": True})
        await anyio.lowlevel.checkpoint()  # it is on its way
        linked._link.abort()

    async with served(None, dies, proof_of("node-b")) as sender.to, client_of(sender) as client:
        yield client


async def test_a_stream_whose_owner_dies_ends(sender: SendingNode) -> None:
    async with dies_after(sender, b"text/event-stream", b"data: 1\n\n") as client:
        assert (await client.get(MCP)).content == b"data: 1\n\n"
    await until(lambda: sender.results() == {"lost": 1})


async def test_half_a_json_answer_is_not_taken_for_a_whole_one(sender: SendingNode) -> None:
    async with dies_after(sender, b"application/json", b'{"jsonrpc":') as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(MCP, content=PING)
    await until(lambda: sender.results() == {"lost": 1})


async def test_a_node_that_does_not_believe_this_one_is_unavailable(sender: SendingNode) -> None:
    async with two_nodes(sender, says_what_it_got, key=b"x" * 32) as client:
        response = await client.post(MCP, content=PING)
    assert isinstance(sender.errors[0], PeerRefused)
    assert response.json()["error"]["data"]["reason"] == "node_unavailable"
    assert response.status_code == 503
    await until(lambda: sender.results() == {"refused": 1})


# --- what the front believes


@asynccontextmanager
async def owner(endpoint: Endpoint = says_what_it_got) -> AsyncIterator[tuple[PeerClient, NodeRecord]]:
    """Node B, and a node that asks it."""
    async with node(endpoint, proof_of("node-b")) as url:
        asking = PeerClient(proof_of("node-a"))
        yield asking, NodeRecord("node-b", url, "1", datetime.now(UTC))
        await asking.aclose()


def head(principal: Principal = ALICE, target: str = MCP) -> RequestHead:
    json_type = [(b"content-type", b"application/json"), (b"origin", b"https://evil.example.com")]
    return RequestHead("POST", target.encode(), "https://mcp.example.com", principal, json_type)


async def test_what_a_node_vouches_for_needs_no_name_and_no_credential() -> None:
    async with owner() as (asking, to):
        response = await asking.send(to, head(), PING)
        assert response.status == 201
        response.close()


async def test_the_client_is_told_its_own_address_by_the_owner() -> None:
    """In a challenge, as where the owner finds that a scope is missing."""
    async with owner() as (asking, to):
        other = Principal("acme", "key", "bob", frozenset({"mcp:connect:other"}))
        response = await asking.send(to, head(other), PING)
        assert response.status == 403
        assert b'"https://mcp.example.com/.well-known/' in dict(response.headers)[b"www-authenticate"]
        response.close()


async def test_the_principal_may_do_at_the_owner_what_it_may_do_anywhere() -> None:
    stranger = Principal("evil", "key", "eve", frozenset({"mcp:connect"}))
    async with owner() as (asking, to):
        for refused, status in ((head(stranger), 404), (head(target="/t/acme/echo/nothing"), 404)):
            response = await asking.send(to, refused, PING)
            assert response.status == status
            response.close()


async def test_a_forwarded_body_has_the_same_limit() -> None:
    async with owner() as (asking, to):
        for size, status in ((LIMIT, 201), (LIMIT + 1, 413), (LIMIT * 2, 413)):
            response = await asking.send(to, head(), b"x" * size)
            assert response.status == status
            response.close()


async def test_a_header_makes_nobody_a_node() -> None:
    """What older releases believed is a header like any other."""
    async with node(says_what_it_got, proof_of("node-b")) as url, httpx2.AsyncClient(trust_env=False) as client:
        for headers in ({"trunkline-forwarded": "1"}, {"trunkline-challenge": "1.2"}):
            assert (await client.post(url + MCP, content=PING, headers=headers)).status_code == 401


async def test_a_stranger_opens_no_link_and_learns_nothing() -> None:
    upgrade = {"connection": "upgrade", "upgrade": "trunkline-link"}
    good = proof_of("node-a", b"x" * 32).challenge().decode()
    async with (
        node(says_what_it_got, proof_of("node-b")) as url,
        served(front(says_what_it_got)) as alone,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        answers = [
            await client.get(url + "/internal/link", headers={**upgrade, "trunkline-challenge": challenge})
            for challenge in ("", "1", "1.2", good, "x" * 5000)
        ]
        assert {(each.status_code, each.content) for each in answers} == {(403, b"")}
        assert {each.headers.get("trunkline-node") for each in answers} == {None}
        assert (await client.get(url + "/internal/link")).status_code == 404
        # A node that is alone has no links, and to any other upgrade this is plain HTTP.
        assert (await client.get(alone + "/internal/link", headers=upgrade)).status_code == 404
        websocket = {**upgrade, "upgrade": "websocket"}
        assert (await client.get(url + "/internal/link", headers=websocket)).status_code == 404


async def test_a_node_tells_only_nodes_which_one_it_is() -> None:
    async with node(says_what_it_got, proof_of("node-b")) as url, served(front(says_what_it_got)) as alone:
        assert await PeerClient(proof_of("node-a")).probe(url) == "node-b"
        assert await PeerClient(proof_of("node-a", b"x" * 32)).probe(url) is None
        assert await PeerClient(proof_of("node-a")).probe(alone) is None
