"""What of an answer leaves together."""

import asyncio
import gc
from typing import Any

import httpx2
import pytest

from app.http.edge import http_protocol
from app.http.scope import AT_ONCE
from tests.cluster.peers.rig import until
from tests.http.remote.nodes import served

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
LENGTH = (b"content-length", b"4")


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def joining(wire: Wire) -> Any:
    return http_protocol._Joining(wire)  # type: ignore[arg-type]


async def test_a_head_and_its_body_are_one_write(joining: Any, wire: Wire) -> None:
    for _ in range(2):
        joining.write(HEAD)
        joining.write(b"body")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"body"] * 2


async def test_a_head_without_a_body_leaves_at_the_end_of_the_answer(joining: Any, wire: Wire) -> None:
    joining.write(HEAD)
    assert not wire.writes
    joining.flush()
    joining.flush()
    assert wire.writes == [HEAD]
    joining.write(b"body")
    assert wire.writes == [HEAD, b"body"]


async def test_what_is_no_answer_yet_waits_for_nothing(joining: Any, wire: Wire) -> None:
    joining.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_a_long_body_is_not_copied(joining: Any, wire: Wire) -> None:
    body = bytes(http_protocol.JOINED_BYTES + 1)
    joining.write(HEAD)
    joining.write(body)
    assert wire.writes[0] == HEAD
    assert wire.writes[1] is body


async def test_what_is_held_back_leaves_before_the_end(joining: Any, wire: Wire) -> None:
    joining.write(HEAD)
    joining.close()
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    assert joining.is_closing()


async def test_a_body_that_looks_like_a_head_arrives_where_it_belongs(joining: Any, wire: Wire) -> None:
    joining.write(HEAD)
    joining.write(b"a")
    joining.write(b"HTTP/1.1 b")
    joining.write(b"c")
    assert b"".join(wire.writes) == HEAD + b"aHTTP/1.1 bc"


async def test_the_first_head_has_the_ids_of_its_request_and_no_body_ever_has(joining: Any, wire: Wire) -> None:
    joining.expect_answer({"headers": [(b"x-request-id", b"mine")]})
    joining.write(HEAD)
    joining.write(b"body")
    joining.write(HEAD)
    joining.flush()
    (first, looks_like_a_head) = wire.writes
    assert first.startswith(HEAD[:-2] + b"x-request-id: mine\r\ntraceparent: 00-")
    assert first.endswith(b"\r\n\r\nbody")
    assert looks_like_a_head == HEAD


@pytest.mark.real
@pytest.mark.parametrize("ends", [b"", b"connection: close\r\n"])
async def test_an_answer_that_is_written_at_once_is_one_as_any_other(ends: bytes) -> None:
    said: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
        said.append(scope[AT_ONCE](scope, b"body"))
        if not said[-1]:
            if scope["path"] != "/begun":
                await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
            await send({"type": "http.response.body", "body": b"body"})
        elif scope["path"] == "/twice":
            said.append(scope[AT_ONCE](scope, b"body"))

    async with served(app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        headers = {"connection": "close"} if ends else {}
        for method, path in [("GET", "/"), ("GET", "/begun"), ("HEAD", "/"), ("GET", "/twice"), ("GET", "/")]:
            got = await client.request(method, path, headers=headers)
            assert got.status_code == 200
            assert got.text == ("" if method == "HEAD" else "body")
            assert got.headers["content-length"] == "4"
            assert len(got.headers["x-request-id"]) == 32
        assert said == ([False] * 5 if ends else [True, False, False, True, False, True])


@pytest.mark.real
async def test_requests_on_one_connection_are_answered_at_once_in_their_order() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[AT_ONCE](scope, scope["path"].encode())

    async with served(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number for number in range(10)))
        for number in range(10):
            async with asyncio.timeout(30):
                assert b"content-length: 2\r\n" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(2) == b"/%d" % number
        writer.close()


@pytest.mark.real
async def test_a_served_answer_comes_in_one_piece_whatever_it_is() -> None:
    is_asked_for_more = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_stream = scope["path"] == "/stream"
        if scope["path"] == "/asks":
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [] if is_stream else [LENGTH]})
        if is_stream:
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await is_asked_for_more.wait()
        await send({"type": "http.response.body", "body": b"body"})

    read: list[bytes] = []

    class Client(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            read.append(data)

    async def ask(request: bytes) -> bytes:
        read.clear()
        transport.write(request)
        await until(lambda: read)
        return read[0]

    async with served(app) as url:
        host, port = url.removeprefix("http://").split(":")
        transport, _ = await asyncio.get_running_loop().create_connection(Client, host, int(port))
        assert (await ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")).endswith(b"\r\n\r\nbody")
        head = await ask(b"HEAD / HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n\r\n")
        assert head.endswith(b"\r\n\r\n")
        assert b"content-length: 4\r\n" in head
        assert head.count(b"x-request-id: mine\r\n") == head.count(b"\r\ntraceparent: ") == 1
        waits = b"POST /asks HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n"
        assert await ask(waits) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await ask(b"x")).endswith(b"\r\n\r\nbody")
        assert (await ask(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")).endswith(b"\r\n\r\n5\r\nfirst\r\n")
        is_asked_for_more.set()
        transport.close()


@pytest.mark.real
async def test_the_head_of_a_request_goes_with_its_connection() -> None:
    """A long one would wait for a garbage collection, which does not know how long it is."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[AT_ONCE](scope, b"no")

    def heads() -> int:
        return sum(isinstance(each, http_protocol.HttpProtocol) for each in gc.get_objects())

    async with served(app) as url:
        host, port = url.removeprefix("http://").split(":")
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % (b"x" * 30_000))
                await reader.readuntil(b"\r\n\r\nno")
                writer.close()
                await writer.wait_closed()
            await until(lambda: heads() == 0)
        finally:
            gc.enable()
