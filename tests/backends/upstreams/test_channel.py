"""A server whose answer is there at once, in many pieces: the loop runs for others in between, and there is a limit."""

import asyncio
import traceback
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpcore2
import pytest

from app.auth.outbound_urls import parse_url
from app.backends.upstreams import _channel as channel_module
from app.backends.upstreams._channel import Channel, Exchanged
from app.backends.upstreams._events import EventReader
from app.backends.upstreams._flow import Flow
from app.backends.upstreams.connecting import MAX_HEAD_LINES, Connection, Network, Reader
from app.errors import InvalidResponse, ResponseTooLarge

PIECES = 4000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Turns:
    """How often the loop has run for others."""

    def __init__(self) -> None:
        self.count = 0
        self._task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aenter__(self) -> "Turns":
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._task.cancel()


class Ready(Network):
    """Connections on which all of the answer has come already."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def connect_tcp(self, *place: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        reader = Reader(limit=1 << 30)
        reader.feed_data(self._answer)
        reader.feed_eof()

        async def nothing() -> None:
            """Accepted at once."""

        transport = SimpleNamespace(abort=lambda: None)
        writer: Any = SimpleNamespace(
            write=lambda data: None, drain=nothing, is_closing=lambda: False, wait_closed=nothing, transport=transport
        )
        return Connection(reader, writer, lambda: None)

    def forget(self) -> None:
        """There is nothing to forget."""


@asynccontextmanager
async def exchanged(answer: bytes):
    channel = Channel(Ready(answer), parse_url("http://127.0.0.1:9/mcp"), [(b"Host", b"far")], Flow(), 1 << 20)
    try:
        async with channel.request("POST", [], b"{}") as found:
            yield found
    finally:
        await channel.aclose()


def chunks(each: bytes, count: int = PIECES) -> bytes:
    return b"%x\r\n%b\r\n" % (len(each), each) * count


async def whole(found: Exchanged) -> bytes:
    return await found.body()


async def events(found: Exchanged) -> int:
    reader = EventReader(1 << 20)
    count = 0
    while (some := await found.events(reader)) is not None:
        count += len(some)
    return count


@pytest.mark.parametrize(
    ("answer", "read", "result"),
    [
        (CHUNKED + chunks(b"x") + END, whole, b"x" * PIECES),
        (CHUNKED + chunks(b"data: {}\n\n") + END, events, PIECES),
        (CHUNKED + chunks(b"data: {}\n\n" * PIECES, 1) + END, events, PIECES),
        (CHUNKED + chunks(b":\n" * PIECES, 1) + END, events, 0),
    ],
    ids=["chunks", "events", "events in one chunk", "comments"],
)
async def test_the_loop_runs_for_others_between_the_pieces_of_an_answer(answer, read, result):
    async with Turns() as turns, exchanged(answer) as found:
        before = turns.count
        assert await read(found) == result
        assert turns.count - before >= PIECES // 300


async def test_the_loop_runs_for_others_between_interim_answers():
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n" * (MAX_HEAD_LINES // 2 - 10)
    async with Turns() as turns, exchanged(early + HEAD + b"Content-Length: 2\r\n\r\n{}") as found:
        assert turns.count >= len(early) // 300 // 28
        assert await found.body() == b"{}"


@pytest.mark.parametrize("line", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n"])
async def test_interim_answers_have_a_limit(line):
    with pytest.raises(InvalidResponse, match=f"more than {MAX_HEAD_LINES} lines"):
        async with exchanged(line * MAX_HEAD_LINES):
            pass


async def test_the_headers_of_an_answer_have_a_limit():
    with pytest.raises(InvalidResponse, match=f"more than {MAX_HEAD_LINES} lines"):
        async with exchanged(HEAD + b"X: y\r\n" * (MAX_HEAD_LINES + 200) + b"\r\n"):
            pass


async def test_a_body_has_a_limit_of_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel_module, "MAX_CHUNKS", 100)
    async with exchanged(CHUNKED + chunks(b"x", 100) + END) as found:
        assert await found.body() == b"x" * 100
    async with exchanged(CHUNKED + chunks(b"x", 101) + END) as found:
        with pytest.raises(ResponseTooLarge, match="more than 100 pieces") as refused:
            await found.body()
    # The error may be kept for long, and leads to the frame that has raised it.
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(refused.value.__traceback__)]
    assert [each["chunks"] for each in frames if "chunks" in each] == [[]]


async def test_many_lines_of_a_body_with_a_length_are_read_at_once():
    """Nothing is done for each of its lines."""
    body = b"{\n}" * 10_000
    async with Turns() as turns, exchanged(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) as found:
        before = turns.count
        assert await found.body() == body
        assert turns.count - before <= 5
