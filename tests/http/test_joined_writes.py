"""What of an answer leaves together."""

import asyncio
from typing import Any

import pytest

from app.http import joined_writes
from tests.routing.peer_servers import until
from tests.transports.nodes import served

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


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
    return joined_writes._Joining(wire, asyncio.get_running_loop())  # type: ignore[arg-type]


async def test_a_head_and_its_body_are_one_write(joining: Any, wire: Wire) -> None:
    for _ in range(2):
        joining.write(HEAD)
        joining.write(b"body")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"body"] * 2


async def test_a_head_without_a_body_does_not_wait_for_one(joining: Any, wire: Wire) -> None:
    joining.write(HEAD)
    assert not wire.writes
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    joining.write(b"body")
    assert wire.writes == [HEAD, b"body"]


async def test_a_long_body_is_not_copied(joining: Any, wire: Wire) -> None:
    body = bytes(joined_writes.JOINED_BYTES + 1)
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


async def test_a_served_answer_comes_in_one_piece_and_the_head_of_a_stream_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_stream = scope["path"] == "/stream"
        headers = [] if is_stream else [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while is_stream and (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"body"})

    read: list[bytes] = []

    class Client(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            read.append(data)

    async with served(app) as url:
        host, port = url.removeprefix("http://").split(":")
        transport, _ = await asyncio.get_running_loop().create_connection(Client, host, int(port))
        transport.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: read)
        assert read[0].endswith(b"\r\n\r\nbody")
        transport.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: len(read) == 2)
        assert read[1].endswith(b"transfer-encoding: chunked\r\n\r\n")
        transport.close()
