"""What of an answer leaves together."""

import asyncio
from typing import Any

import pytest

from app.http import uvicorn_protocol
from tests.routing.peer_servers import until
from tests.transports.nodes import served

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
    return uvicorn_protocol._Joining(wire)  # type: ignore[arg-type]


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
    body = bytes(uvicorn_protocol.JOINED_BYTES + 1)
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
        assert (await ask(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n")).endswith(b"content-length: 4\r\n\r\n")
        waits = b"POST /asks HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n"
        assert await ask(waits) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await ask(b"x")).endswith(b"\r\n\r\nbody")
        assert (await ask(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")).endswith(b"\r\n\r\n5\r\nfirst\r\n")
        is_asked_for_more.set()
        transport.close()
