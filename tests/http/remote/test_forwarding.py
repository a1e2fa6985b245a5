"""A request for another node's session, from the client's socket to the owner's endpoint and back."""

import asyncio
import contextlib
import io
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import httpx2
import pytest

from app.cluster.peers.client import Deadlines, PeerClient, PeerRefused, PeerUnreachable
from app.cluster.peers.credentials import Sent, Word
from app.domain import Principal
from app.errors import NodeLost
from app.http.remote.forwarding import NotOwner, not_owner
from app.http.remote.late_heads import LateHeads
from app.http.transports.access_lines import AccessLines
from app.http.transports.request import ClientGone, McpRequest, unless_gone
from app.http.transports.request_log import ALL, ERRORS, RequestLog
from tests.cluster.peers.rig import PATIENT, asked, process, scripted, stands_still, until
from tests.http.remote.nodes import ALICE, LIMIT, MCP, Endpoint, SendingNode, credentials, front, served

pytestmark = pytest.mark.real

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEADERS = {"authorization": "Bearer alice"}
EVENTS = (b"content-type", b"text/event-stream")


@pytest.fixture
async def sender() -> AsyncIterator[SendingNode]:
    sender = SendingNode(PATIENT)
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
    async with served(front(endpoint, credentials("node-b", key))) as sender.to, client_of(sender) as client:
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

    def __init__(self, content_type: bytes = EVENTS[1]) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()  # the empty one is the end
        self.asked, self._type = 0, (EVENTS[0], content_type)
        self.is_left = asyncio.Event()

    async def __call__(self, request: McpRequest) -> None:
        await request.body(LIMIT)
        self.asked += 1
        try:
            await unless_gone(request, lambda: self._answer(request))
        except ClientGone:
            self.is_left.set()
            raise

    async def _answer(self, request: McpRequest) -> None:
        first = await self.chunks.get()
        await request.send({"type": "http.response.start", "status": 200, "headers": [self._type]})
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
        assert got.pop("trunkline-forwarded")
        assert got.pop("host") == sender.to.removeprefix("http://")
        assert not {*mine, "authorization"} & set(got)
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


@pytest.mark.parametrize("content_type", [b"text/event-stream", b"application/json"])
async def test_a_key_that_was_revoked_gets_nothing_more_whenever_the_owner_hears_of_it(
    sender: SendingNode, content_type: bytes
) -> None:
    owner = Streaming(content_type)
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b"data: 1\n\n")
        async with client.stream("POST", MCP) as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"data: 1\n\n"
            sender.watch.revoked(lambda principal: principal != ALICE)
            owner.chunks.put_nowait(b"data: 2\n\n")
            assert await anext(chunks) == b"data: 2\n\n"
            sender.watch.revoked(lambda principal: principal == ALICE)
            owner.chunks.put_nowait(b"data: 3\n\n")
            with contextlib.suppress(httpx2.RemoteProtocolError):  # half of a body is no whole one
                assert [chunk async for chunk in chunks] == []
                assert content_type.startswith(b"text")
        with anyio.fail_after(20):
            await owner.is_left.wait()


async def test_a_client_that_leaves_its_stream_is_known_to_the_owner(sender: SendingNode) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        owner.chunks.put_nowait(b": open\n\n")
        async with client.stream("GET", MCP) as response:
            await anext(response.aiter_raw())
        with anyio.fail_after(30):
            await owner.is_left.wait()
        await until(lambda: sender.results() == {"client_gone": 1} and "0 open" in repr(sender.peers))


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_client_that_leaves_before_the_answer_is_known_to_the_owner(sender: SendingNode, method: str) -> None:
    owner = Streaming()
    async with two_nodes(sender, owner) as client:
        call = asyncio.ensure_future(client.request(method, MCP))
        await until(lambda: owner.asked)
        await leave(call)
        with anyio.fail_after(30):
            await owner.is_left.wait()
        await until(lambda: sender.results() == {"client_gone": 1} and "0 open" in repr(sender.peers))
        assert isinstance(sender.errors[0], ClientGone)


async def leave(call: asyncio.Future[Any]) -> None:
    """As a client does that closes its connection."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


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
            assert await stands_still(lambda: sent) < 24 << 20  # the buffers of four sockets
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
        assert response.json()["error"]["data"]["reason"] == "not_owner"  # of this test's endpoint
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
            killed_at = 0.0

            async def kill() -> None:
                nonlocal killed_at
                await until(
                    lambda: any(
                        each._response
                        for pool in sender.peers._pools.values()
                        for each, who in pool.open.items()
                        if who
                    )
                )
                killed_at = time.monotonic()
                running.kill()

            tasks.start_soon(kill)
            response = await client.post(MCP, content=PING)
            assert time.monotonic() - killed_at < Deadlines().head_s - 5  # it was not waited for
    assert isinstance(sender.errors[0], NodeLost)
    assert (response.status_code, response.json()["error"]["code"]) == (200, -32012)
    await until(lambda: sender.results() == {"lost": 1})


@asynccontextmanager
async def dies_after(sender: SendingNode, content_type: bytes, chunk: bytes) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of node A; node B answers with this much, and its connection breaks."""

    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)
        how = b"content-length: 100\r\n" if b"json" in content_type else b"transfer-encoding: chunked\r\n"
        body = chunk if b"json" in content_type else b"%x\r\n%b\r\n" % (len(chunk), chunk)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n%b" % (content_type, how, body))
        await writer.drain()

    async with scripted(script) as peer:
        sender.to = peer.url
        async with client_of(sender) as client:
            yield client


async def test_a_stream_that_was_not_open_when_the_connection_broke_is_to_be_asked_for_again(
    sender: SendingNode,
) -> None:
    async def script(reader: Any, writer: Any, number: int) -> None:
        await asked(reader, writer)

    async with scripted(script) as peer, client_of(sender) as client:
        sender.to = peer.url
        listening, call = await client.get(MCP), await client.post(MCP, content=PING)
    assert (listening.status_code, listening.json()["error"]["data"]["reason"]) == (503, "node_unavailable")
    assert (call.status_code, call.json()["error"]["data"]["reason"]) == (200, "node_lost")
    await until(lambda: sender.results() == {"lost": 2})


async def test_a_stream_whose_owner_dies_ends(sender: SendingNode) -> None:
    async with dies_after(sender, b"text/event-stream", b"data: 1\n\n") as client:
        assert (await client.get(MCP)).content == b"data: 1\n\n"
    await until(lambda: sender.results() == {"lost": 1})


async def test_a_stream_that_nobody_can_resume_ends_with_an_error_that_says_what_is_known(sender: SendingNode) -> None:
    """A call of 2026-07-28 belongs to no session: nothing else would ever tell its client."""
    async with dies_after(sender, b"text/event-stream", b"data: 1\n\n") as client:
        events = (await client.post(MCP, content=PING)).text.split("\n\n")
        told = json.loads(events[1].partition("data: ")[2])
        assert (told["id"], told["error"]["code"]) == (json.loads(PING)["id"], -32012)
        assert (told["error"]["data"]["reason"], told["error"]["data"]["outcome"]) == ("node_lost", "unknown")
        batch = await client.post(MCP, content=b"[%b]" % PING, headers={"Mcp-Session-Id": "s"})
        assert batch.content == b"data: 1\n\n"
    async with dies_after(sender, b"text/event-stream", b"data: 1\n\ndata: 2") as client:
        assert (await client.post(MCP, content=PING)).content == b"data: 1\n\ndata: 2"


@pytest.mark.parametrize(
    ("recovery", "event", "there", "is_told"),
    [
        ("respawn", b"id: 1\ndata: 1", None, False),  # the next node has its outcome, by Last-Event-ID
        ("respawn", b"data: 1", None, True),  # nothing to ask the next node for
        ("end", b"event: message\nid: 1\ndata: 1", None, True),  # the session has died with its node
        ("end", b"id: 1\ndata: 1", "another node", True),
        ("end", b"id: 1\ndata: 1", "node-b", False),  # only the connection broke
    ],
)
async def test_the_stream_of_a_session_ends_with_an_error_where_resuming_it_would_tell_nothing(
    sender: SendingNode,
    monkeypatch: pytest.MonkeyPatch,
    recovery: Literal["end", "respawn"],
    event: bytes,
    there: str | None,
    is_told: bool,
) -> None:
    async def probe(url: str) -> str | None:
        return there

    monkeypatch.setattr(sender.peers, "probe", probe)
    sender.recovery = recovery
    async with dies_after(sender, b"text/event-stream", event + b"\n\n") as client:
        got = await client.post(MCP, content=PING, headers={"Mcp-Session-Id": "s"})
    first, _, rest = got.content.partition(b"\n\n")
    assert first == event
    assert (b'"node_lost"' in rest, rest == b"") == (is_told, not is_told)


@pytest.mark.parametrize("content_type", [b"text/event-stream", b"application/json"])
@pytest.mark.parametrize("level", [ALL, ERRORS])
async def test_a_call_whose_node_dies_in_the_middle_of_its_answer_is_logged_as_lost(
    sender: SendingNode, content_type: bytes, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.BytesIO()
    lines, sender.recovery = AccessLines({}, stream), "respawn"
    app = front(sender.forward, requests=RequestLog(sender.metrics, level, lines))
    caplog.set_level(logging.INFO)
    async with (
        dies_after(sender, content_type, b"id: 1\ndata: 1\n\n"),
        served(app) as url,
        httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=30, trust_env=False) as client,
    ):
        with contextlib.suppress(httpx2.RemoteProtocolError):
            await client.post(MCP, content=PING, headers={"Mcp-Session-Id": "s"})
    lines.close()
    failed = [vars(each) for each in caplog.records if each.getMessage() == "call failed"]
    if level == ALL:
        assert not failed
        (line,) = stream.getvalue().splitlines()
        assert (json.loads(line)["outcome"], json.loads(line)["method"]) == ("node_lost", "ping")
    else:
        assert [(each["reason"], each["method"]) for each in failed] == [("node_lost", "ping")]


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


async def test_a_node_whose_clock_is_wrong_says_so(
    sender: SendingNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender.peers._credentials, "_wall_clock", lambda: time.time() + 100)
    async with two_nodes(sender, says_what_it_got) as client:
        response = await client.post(MCP, content=PING)
        assert (response.status_code, response.json()["error"]["data"]["reason"]) == (503, "node_unavailable")
        assert sender.peers.problems == {sender.to: "their clocks are too far apart"}
    assert "clock is 100 s ahead of this node's" in caplog.text


# --- the time it takes


async def test_a_call_may_take_longer_than_any_deadline_where_its_node_lets_hear_of_itself() -> None:
    """Whatever becomes of it: what is said late is the same."""
    sender = SendingNode(Deadlines(head_s=0.5, idle_s=0.5))
    may_answer = asyncio.Event()

    async def slow(request: McpRequest) -> None:
        await may_answer.wait()
        if request.method == "DELETE":
            raise not_owner()
        await says_what_it_got(request)

    heads = LateHeads(late_s=0.1, keepalive_s=0.1)
    async with served(front(slow, credentials("node-b"), heads)) as sender.to, client_of(sender) as client:
        post, delete = asyncio.ensure_future(client.post(MCP, content=PING)), asyncio.ensure_future(client.delete(MCP))
        await asyncio.sleep(1.2)
        may_answer.set()
        response = await post
        assert (response.status_code, response.headers["mcp-session-id"]) == (201, "a.b")
        assert response.headers["content-length"] == str(len(response.content))
        assert response.json()["size"] == len(PING)
        await delete
        assert isinstance(sender.errors[0], NotOwner)
        await until(lambda: not heads._waiting)
    await sender.peers.aclose()


async def test_a_client_that_leaves_a_late_answer_is_known_to_the_owner() -> None:
    sender, owner = SendingNode(), Streaming()
    heads = LateHeads(late_s=0.05, keepalive_s=0.05)
    async with served(front(owner, credentials("node-b"), heads)) as sender.to, client_of(sender) as client:
        call = asyncio.ensure_future(client.post(MCP, content=PING))
        await until(lambda: owner.asked)
        await asyncio.sleep(0.3)  # a few breaths
        await leave(call)
        with anyio.fail_after(30):
            await owner.is_left.wait()
    await sender.peers.aclose()


@asynccontextmanager
async def stalling_proxy(to: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """What passes everything on until the event is set, and then nothing, and closes nothing."""
    has_stalled, host, port = asyncio.Event(), *to.removeprefix("http://").split(":")

    async def pass_on(reader: Any, writer: Any) -> None:
        while data := await reader.read(65536):
            if has_stalled.is_set():
                await asyncio.sleep(60)
            writer.write(data)

    async def script(reader: Any, writer: Any, number: int) -> None:
        behind, before = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(pass_on(reader, before), pass_on(behind, writer))
        finally:
            before.close()

    async with scripted(script) as proxy:
        yield proxy.url, has_stalled


async def test_through_a_proxy_that_stalls_every_request_ends_with_an_error_that_says_what_is_known() -> None:
    sender, owner = SendingNode(Deadlines(head_s=2.0, idle_s=2.0, greet_s=2.0)), Streaming()
    async with (
        served(front(owner, credentials("node-b"))) as url,
        stalling_proxy(url) as (sender.to, has_stalled),
        client_of(sender) as client,
    ):
        owner.chunks.put_nowait(b": open\n\n")
        async with client.stream("GET", MCP) as stream:
            chunks = stream.aiter_raw()
            await anext(chunks)
            call = asyncio.ensure_future(client.post(MCP, content=PING))
            await until(lambda: owner.asked == 2)  # the call has arrived
            has_stalled.set()
            with anyio.fail_after(30):
                answer = await call
                assert [chunk async for chunk in chunks] == []  # the stream has ended: its client resumes
                refused = await client.post(MCP, content=PING)
        assert (answer.status_code, answer.json()["error"]["data"]["reason"]) == (200, "node_lost")
        assert (refused.status_code, refused.json()["error"]["data"]["reason"]) == (503, "node_unavailable")
        assert isinstance(sender.errors[-1], PeerUnreachable)  # nothing was sent
    await sender.peers.aclose()


# --- what the front believes


def by(node: str, principal: Principal = ALICE, *, body: bytes = PING, target: str = MCP, to: str = "node-b") -> Any:
    word = Word(principal, "https://mcp.example.com")
    value = credentials(node).sign(Sent("POST", target.encode(), b""), body, word, to)
    return {"trunkline-forwarded": value.decode(), "host": "10.0.0.1:9", "origin": "https://evil.example.com"}


@asynccontextmanager
async def owner(endpoint: Endpoint = says_what_it_got, *, is_alone: bool = False) -> AsyncIterator[Any]:
    """A client of node B itself, without a credential."""
    async with (
        served(front(endpoint, None if is_alone else credentials("node-b"))) as url,
        httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


async def test_what_a_node_vouches_for_needs_no_name_and_no_credential() -> None:
    async with owner() as client:
        assert (await client.post(MCP, content=PING, headers=by("node-a"))).status_code == 201


async def test_everything_else_gets_the_same_refusal() -> None:
    async with owner() as client, owner(is_alone=True) as alone:
        good = by("node-a")
        assert (await client.post(MCP, content=PING, headers=good)).status_code == 201
        answers = [
            await client.post(MCP, content=PING, headers=good),  # a second time
            await client.post(MCP, content=PING + b" ", headers=by("node-a")),
            await client.post(MCP, content=PING, headers=by("node-a", to="node-c")),
            await client.post(MCP + "?a", content=PING, headers=by("node-a")),
            await client.post(MCP, content=PING, headers={"trunkline-forwarded": "1", **HEADERS}),
            await client.post("/t/acme/echo/nothing", content=PING, headers={"trunkline-forwarded": "1"}),
            await client.options(MCP, headers={"trunkline-forwarded": "1"}),
            await alone.post(MCP, content=PING, headers=by("node-a")),
        ]
    assert {answer.status_code for answer in answers} == {403}
    assert {answer.content for answer in answers} == {answers[0].content}
    assert answers[0].json()["error"]["data"] == {"reason": "forward_refused"}


async def test_the_principal_may_do_at_the_owner_what_it_may_do_anywhere() -> None:
    other = Principal("acme", "key", "bob", frozenset({"mcp:connect:other"}))
    stranger = Principal("evil", "key", "eve", frozenset({"mcp:connect"}))
    async with owner() as client:
        assert (await client.post(MCP, content=PING, headers=by("node-a", other))).status_code == 403
        assert (await client.post(MCP, content=PING, headers=by("node-a", stranger))).status_code == 404


async def test_the_client_is_told_its_own_address_by_the_owner() -> None:
    """In a challenge, as where the owner finds that a scope is missing."""
    other = Principal("acme", "key", "bob", frozenset({"mcp:connect:other"}))
    async with owner() as client:
        response = await client.post(MCP, content=PING, headers=by("node-a", other))
        assert '"https://mcp.example.com/.well-known/' in response.headers["www-authenticate"]


async def test_a_forwarded_body_has_the_same_limit() -> None:
    body = b"x" * (LIMIT + 1)
    async with owner() as client:
        assert (await client.post(MCP, content=body, headers=by("node-a", body=body))).status_code == 413


async def test_the_client_of_another_node_whose_call_is_cancelled_when_this_one_ends_hears_that_nobody_knows() -> None:
    async def is_cancelled(request: McpRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as uvicorn does at the end of a drain
        await anyio.sleep_forever()

    async with owner(is_cancelled) as client:
        answer = await client.post(MCP, content=PING, headers=by("node-a"))
    assert answer.status_code == 200
    told = answer.json()["error"]["data"]
    assert (told["reason"], told["outcome"]) == ("node_lost", "unknown")


async def test_a_node_tells_only_nodes_which_one_it_is() -> None:
    async with owner() as client, owner(is_alone=True) as alone:
        url, other = str(client.base_url).rstrip("/"), str(alone.base_url).rstrip("/")
        assert await PeerClient(credentials("node-a")).probe(url) == "node-b"
        assert await PeerClient(credentials("node-a")).probe(other) is None
        assert await PeerClient(credentials("node-a", b"x" * 32)).probe(url) == "?"
        response = await client.get("/internal/node")
        assert (response.status_code, response.headers.get("trunkline-node")) == (404, None)
        for challenge in ("", "1", "1.2", "x" * 5000):
            response = await client.get("/internal/node", headers={"trunkline-challenge": challenge})
            assert (response.status_code, response.headers["trunkline-node"]) == (403, "other-key")
