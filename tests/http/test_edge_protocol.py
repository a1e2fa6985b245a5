"""What one connection of a stranger can make the node keep or do, over real sockets."""

import asyncio
import gc
import ipaddress
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from app.http import edge_protocol
from app.http.client_address import TrustedProxies
from app.http.connections import BY_KEY, LET_IN, ConnectionLimits, Connections
from app.http.edge_protocol import EdgeProtocol
from tests.http.serving import serving

GET = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST /asks HTTP/1.1\r\nhost: a\r\n"
WITHIN_S = 10


class App:
    """Answers `/…` with `ok`, `/t/…` too; `/waits` once it may; `/asks` with the length of the body. `seen` are the
    requests that it was asked, `bodies` what came with them, `left` those whose client went away first."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.left: list[str] = []
        self.may_answer = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        self.was_asked.set()
        path, body = scope["path"], b"ok"
        if path == "/waits":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, path, receive, tasks.cancel_scope)
                await self.may_answer.wait()
                tasks.cancel_scope.cancel()
            if self.left:
                return
        elif path == "/asks":
            body = b"%d" % len(await read_body(receive))
        elif path == "/long":
            body = bytes(64 << 20)
        if b"let-in" in scope["query_string"]:
            scope[LET_IN] = BY_KEY
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def _watch(self, path: str, receive: Any, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(path)
        scope.cancel()


async def read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


class Client:
    """A connection that is written and read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """The next response's status and body."""
        with anyio.fail_after(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        """Waits for the end, and returns whether nothing came before it."""
        with anyio.fail_after(WITHIN_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


class Edge:
    """A served application, its connections, and a clock that only the test moves."""

    def __init__(self, limits: ConnectionLimits, proxies: TrustedProxies | None) -> None:
        self.app, self.refused, self.time = App(), list[str](), 0.0
        self.connections = Connections(limits, proxies, on_refused=self.refused.append, clock=lambda: self.time)
        self.host = ""

    def pass_time(self, seconds: float) -> None:
        """As a node does it: a sweep each second."""
        for _ in range(math.ceil(seconds)):
            self.time += 1
            self.connections.sweep()

    async def spend_time(self, seconds: int) -> None:
        """The same, and the event loop runs in it."""
        for _ in range(seconds):
            self.pass_time(1)
            await asyncio.sleep(0.001)

    @property
    def protocols(self) -> list[Any]:
        return list(self.connections._open)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        host, port = self.host.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def open_edge(proxies: TrustedProxies | None = None, **limits: Any) -> AsyncIterator[Edge]:
    edge = Edge(ConnectionLimits(**limits), proxies)
    async with serving(edge.app, connections=edge.connections) as edge.host:
        yield edge


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with open_edge() as edge:
        yield edge


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.005)


# --- requests that wait behind another one


async def test_requests_in_one_go_are_answered_in_turn(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET * 8 + POST + b"content-length: 3\r\n\r\nabc" + GET)
        assert [await client.answer() for _ in range(10)] == [(200, b"ok")] * 8 + [(200, b"3"), (200, b"ok")]
        client.send(GET)  # and the connection goes on
        assert await client.answer() == (200, b"ok")
    assert not edge.refused


async def test_nothing_is_read_while_a_request_waits(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        await until(lambda: protocol.pipeline)
        client.send(POST + b"content-length: 1000000000\r\n\r\n")
        chunk, written = bytes(1 << 20), 0
        with anyio.move_on_after(0.3):  # what the kernel takes, and no more
            while written < 64 << 20:
                client.send(chunk)
                await client.writer.drain()
                written += len(chunk)
        assert written < 64 << 20
        assert len(protocol.pipeline) == 1
        assert sum(len(cycle.body) for cycle, _ in protocol.pipeline) == 0
        edge.app.may_answer.set()
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2


async def test_seventeen_that_wait_end_the_connection(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET * 16)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        assert len(protocol.pipeline) == 16
        edge.app.may_answer.set()
        for _ in range(17):
            assert await client.answer() == (200, b"ok")
        edge.app.may_answer.clear()
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET * 17)
        await until(lambda: edge.refused)
        assert not protocol.pipeline
        await edge.spend_time(16)
        assert await client.is_closed()
    assert edge.refused == ["pipeline_too_long"]
    assert len(edge.app.seen) <= 18


async def test_a_flood_that_is_not_read_leaves_nothing_behind(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET * 300_000)  # ten megabytes
        await until(lambda: edge.refused)
        await edge.spend_time(16)
    await until(lambda: not edge.connections)
    assert edge.refused == ["pipeline_too_long"]
    assert len(edge.app.seen) < 100


async def test_a_request_hears_that_its_client_left_also_while_others_wait(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        (protocol,) = edge.protocols
        await until(lambda: protocol.pipeline)
        protocol._socket.abort()
        await until(lambda: edge.app.left)
        assert not protocol.pipeline
        assert len(edge.app.seen) == 1


# --- heads


@pytest.mark.parametrize("path", [b"/livez", b"/t/a/b/mcp"])
@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_head_over_32_kib_is_answered_and_closed(edge: Edge, path: bytes, in_pieces: bool) -> None:
    async with edge.client() as client:
        head = b"GET " + path + b" HTTP/1.1\r\nhost: a\r\nlong: " + b"x" * (32 << 10) + b"\r\n\r\n"
        for start in range(0, len(head), 1000 if in_pieces else len(head)):
            client.send(head[start : start + (1000 if in_pieces else len(head))])
            await asyncio.sleep(0)
        status, body = await client.answer()
        assert status == 431
        answer = json.loads(body)
        assert (answer["error"]["data"]["reason"] if path != b"/livez" else answer["reason"]) == "head_too_large"
        edge.pass_time(2)
        assert await client.is_closed()
    assert not edge.app.seen


async def test_a_head_of_just_under_32_kib_and_100_fields_is_served(edge: Edge) -> None:
    async with edge.client() as client:
        fields = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 300) for number in range(99))
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"\r\n")
        assert (await client.answer())[0] == 200
        assert len(edge.app.seen[0]["headers"]) == 100
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + fields + b"one: more\r\n\r\n")
        assert (await client.answer())[0] == 431


async def test_an_endless_header_is_refused_as_it_arrives(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\nlong: ")
        for _ in range(60):
            client.send(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 431


async def test_a_url_over_8_kib_is_a_414(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /" + b"x" * 8191 + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await client.answer())[0] == 200
        client.send(b"GET /" + b"x" * 4000)
        client.send(b"x" * 4192)  # and no end of it yet
        status, body = await client.answer()
        assert (status, json.loads(body)["reason"]) == (414, "uri_too_long")


async def test_what_is_no_http_is_a_400(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"\x16\x03\x01\x02\x00nonsense")
        assert (await client.answer())[0] == 400
    async with edge.client() as client:
        client.send(GET + b"nonsense\r\n\r\n")
        assert (await client.answer())[0] == 200
        await until(lambda: len(edge.refused) == 2)
    assert edge.refused == ["malformed_request"] * 2


async def test_what_came_before_a_bad_head_is_answered_and_nothing_after(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nbad header\r\n\r\n" + GET)
        await edge.app.was_asked.wait()
        edge.app.may_answer.set()
        assert await client.answer() == (200, b"ok")
        assert await client.is_closed()
    assert len(edge.app.seen) == 1


# --- bodies


async def test_trailers_are_dropped_up_to_8_kib(edge: Edge) -> None:
    async with edge.client() as client:
        chunked = POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
        client.send(chunked + b"authorization: Bearer of another\r\nx: " + b"y" * 8000 + b"\r\n\r\n")
        assert await client.answer() == (200, b"5")
        assert [name for name, _ in edge.app.seen[0]["headers"]] == [b"host", b"transfer-encoding"]
        client.send(chunked + b"x: " + b"y" * 8192 + b"\r\n\r\n")
        assert (await client.answer())[0] == 431
    assert edge.refused == ["trailers_too_large"]


@pytest.mark.parametrize("start", [b"5;", b"0\r\nx: ", b"0\r\nx"])
async def test_extensions_and_trailers_without_end_are_refused_as_they_arrive(edge: Edge, start: bytes) -> None:
    async with edge.client() as client:
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + start)
        await edge.app.was_asked.wait()
        for _ in range(10):
            client.send(b"x" * 4000)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 431


async def test_long_bodies_in_small_chunks_are_served(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert await client.answer() == (200, b"50000")
        client.send(POST + b"content-length: 3000000\r\n\r\n" + bytes(3_000_000))
        assert await client.answer() == (200, b"3000000")


# --- another protocol


async def test_who_asks_for_another_protocol_is_answered_and_closed_without_a_word_in_the_log(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + GET)
        assert await client.answer() == (200, b"ok")
        assert await client.is_closed()
    async with edge.client() as client:
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer())[0] == 400
    assert len(edge.app.seen) == 1
    assert not caplog.records


# --- deadlines


async def test_a_connection_that_sends_nothing_ends_after_ten_seconds(edge: Edge) -> None:
    async with edge.client() as client:
        await until(lambda: edge.connections)
        edge.pass_time(9)
        assert edge.connections
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["silent"]


async def test_half_a_head_is_a_408_after_ten_seconds_however_it_trickles(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET / HTTP/1.1\r\n")
        for _ in range(3):
            edge.pass_time(3)
            client.send(b"a: b\r\n")
            await asyncio.sleep(0.01)
        assert edge.connections
        edge.pass_time(2)
        assert (await client.answer())[0] == 408
        edge.pass_time(2)
        assert await client.is_closed()
    assert edge.refused == ["head_timeout"]


async def test_a_connection_without_another_request_ends_after_thirty_seconds(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET)
        await client.answer()
        edge.pass_time(25)
        client.send(GET)
        await client.answer()
        edge.pass_time(28)
        assert edge.connections
        edge.pass_time(3)
        assert await client.is_closed()
    assert not edge.refused


async def test_a_later_head_has_ten_seconds_too(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(GET + b"GET / HTTP")
        await client.answer()
        edge.pass_time(12)
        assert (await client.answer())[0] == 408


async def test_a_request_may_take_as_long_as_it_takes(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"GET /waits HTTP/1.1\r\n\r\n")
        await edge.app.was_asked.wait()
        edge.pass_time(600)
        edge.app.may_answer.set()
        assert await client.answer() == (200, b"ok")


async def test_a_body_that_nobody_reads_has_its_time_too(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
        assert await client.answer() == (200, b"ok")
        for _ in range(10):
            edge.pass_time(3)
            client.send(b"x")
            await asyncio.sleep(0.01)
        assert edge.connections
        edge.pass_time(5)
        assert await client.is_closed()
    assert edge.refused == ["body_timeout"]


async def test_a_body_that_came_in_time_is_followed_by_a_wait_like_any_other(edge: Edge) -> None:
    async with edge.client() as client:
        client.send(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
        await client.answer()
        client.send(b"xx")
        await until(lambda: not edge.protocols[0]._in_body)
        edge.pass_time(28)
        client.send(GET)
        assert await client.answer() == (200, b"ok")


async def test_an_answer_that_is_not_taken_ends_the_connection_but_a_slow_reader_may_go_on(edge: Edge) -> None:
    async with edge.client() as slow, edge.client() as stuck:
        for client in (slow, stuck):
            client.send(b"GET /long HTTP/1.1\r\n\r\n")
        await until(lambda: sum(each.flow.write_paused for each in edge.protocols) == 2)
        for _ in range(12):
            edge.pass_time(4)
            await slow.reader.readexactly(3 << 20)
        await until(lambda: len(edge.connections) == 1)
    assert edge.refused == ["stalled"]


async def test_time_does_not_pass_while_the_node_stands_still(edge: Edge) -> None:
    async with edge.client() as client:
        await until(lambda: edge.connections)
        edge.time += 60
        edge.connections.sweep()
        client.send(GET)  # which had arrived long before, as far as the client knows
        assert await client.answer() == (200, b"ok")


# --- numbers


async def test_a_client_that_was_let_in_waits_for_no_crowd_of_strangers(edge: Edge) -> None:
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(edge.client())
        guest.send(b"GET /?let-in HTTP/1.1\r\n\r\n")
        await guest.answer()
        crowd = [await stack.enter_async_context(edge.client()) for _ in range(100)]
        await until(lambda: len(edge.connections) == 101)
        edge.app.seen.clear()
        for stranger in crowd:
            stranger.send(GET)
        guest.send(b"GET /guest HTTP/1.1\r\n\r\n")
        assert await guest.answer() == (200, b"ok")
        assert [each["path"] for each in edge.app.seen].index("/guest") < 50
        assert [await stranger.answer() for stranger in crowd] == [(200, b"ok")] * 100


async def test_what_was_read_of_a_refused_connection_goes_with_it(edge: Edge) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            async with edge.client() as client:
                client.send(GET * 300_000)
                await until(lambda: edge.refused)
                edge.refused.clear()
                await edge.spend_time(16)
            await until(lambda: not edge.connections)
        await asyncio.sleep(0.01)
        left = [each for each in gc.get_objects() if isinstance(each, EdgeProtocol)]
    finally:
        gc.enable()
    assert len(left) <= 1  # nothing of it waits for a garbage collection


async def test_the_longest_idle_stranger_makes_room_and_who_was_let_in_stays() -> None:
    async with open_edge(connections=3) as edge, edge.client() as guest, edge.client() as busy, edge.client() as silent:
        guest.send(b"GET /?let-in HTTP/1.1\r\n\r\n")
        await guest.answer()
        busy.send(b"GET /waits HTTP/1.1\r\n\r\n")
        await until(lambda: len(edge.app.seen) == 2)
        edge.pass_time(5)
        for _ in range(3):
            async with edge.client() as another:
                another.send(GET)
                assert await another.answer() == (200, b"ok")
                edge.pass_time(1)
        assert await silent.is_closed()
        guest.send(GET)
        assert await guest.answer() == (200, b"ok")
        edge.app.may_answer.set()
        assert await busy.answer() == (200, b"ok")
    assert set(edge.refused) == {"made_room"}


async def test_where_nobody_can_go_a_newcomer_is_told_to_come_back() -> None:
    async with open_edge(connections=2) as edge, edge.client() as first, edge.client() as second:
        for guest in (first, second):
            guest.send(b"GET /?let-in HTTP/1.1\r\n\r\n")
            await guest.answer()
        async with edge.client() as third:
            status, body = await third.answer()
            assert (status, json.loads(body)["reason"]) == (503, "connection_limit")
            assert await third.is_closed()
        assert len(edge.connections) == 2
    await until(lambda: not edge.connections)


async def test_requests_at_a_time_of_one_client_behind_a_proxy_are_limited_and_the_connections_go_on() -> None:
    proxies = TrustedProxies([ipaddress.ip_network("127.0.0.0/8")])
    async with open_edge(proxies, per_address=1) as edge, edge.client() as first, edge.client() as second:
        waits = b"GET /waits HTTP/1.1\r\nx-forwarded-for: 192.0.2.%d\r\n\r\n"
        asks = b"GET /t/a/b/mcp HTTP/1.1\r\nx-forwarded-for: 192.0.2.%d\r\n\r\n"
        first.send(waits % 1)
        await edge.app.was_asked.wait()
        second.send(asks % 1 + asks % 2)
        status, body = await second.answer()
        assert (status, json.loads(body)["error"]["data"]["reason"]) == (429, "address_limit")
        assert await second.answer() == (200, b"ok")  # somebody else behind the same proxy
        edge.app.may_answer.set()
        assert await first.answer() == (200, b"ok")
        second.send(asks % 1)
        assert await second.answer() == (200, b"ok")
        edge.app.may_answer.clear()
        first.send(waits % 1)
        await until(lambda: edge.app.seen[-1]["path"] == "/waits")
        first.writer.transport.abort()  # who leaves does not count any more
        await until(lambda: len(edge.connections) == 1)
        second.send(asks % 1)
        assert await second.answer() == (200, b"ok")
    assert edge.refused == ["address_limit"]
    assert {each["client"][0] for each in edge.app.seen} == {"192.0.2.1", "192.0.2.2"}


async def test_every_connection_is_let_go_when_it_ends(edge: Edge) -> None:
    for _ in range(20):
        async with edge.client() as client:
            client.send(GET)
            await client.answer()
    await until(lambda: not edge.connections)


def test_the_limits_are_those_that_clients_are_told() -> None:
    assert edge_protocol.MAX_HEAD_BYTES == 32 * 1024
    assert edge_protocol.MAX_FIELDS == 100
    assert edge_protocol.MAX_URL_BYTES == edge_protocol.MAX_TRAILER_BYTES == 8 * 1024
