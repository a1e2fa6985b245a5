"""One HTTP/1.1 connection to another node, one exchange at a time. It knows neither pools nor what is sent.

httptools parses; bytes are handed over as they come, and reading pauses while too many wait to be taken.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import httptools

from app.errors import NodeLost

MAX_UNREAD_BYTES = 64 << 10  # of an answer that nobody takes; then the peer is not read, and waits in its turn
MAX_HEAD_BYTES = 64 << 10  # of an answer's headers
JOINED_BYTES = 16 << 10  # a body up to this size is copied behind its head: one buffer is cheaper to write than two
SOON_S = 0.05  # most answers have begun by then

RawHeaders = list[tuple[bytes, bytes]]


class PeerLost(NodeLost):
    """The connection to the other node broke after a request was sent: its outcome is not known.

    `is_stale`: it had served before and broke without a byte of the answer.
    """

    def __init__(self, *, is_stale: bool = False) -> None:
        super().__init__()
        self.is_stale = is_stale


class PeerResponse:
    """An answer as it comes. One reader; whoever got it closes it."""

    __slots__ = ("_chunks", "_connection", "_error", "_unread", "_waiter", "headers", "is_complete", "status")

    def __init__(self, connection: "PeerConnection") -> None:
        self.status, self.is_complete = 0, False
        self.headers: RawHeaders = []
        self._connection, self._chunks, self._unread = connection, list[bytes](), 0
        self._error: PeerLost | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<PeerResponse [{self.status or 'no head'}, {self._unread} unread, complete={self.is_complete}]>"

    async def head(self) -> None:
        """Waits for `status` and `headers`.

        Raises:
            PeerLost: the connection broke first.
        """
        while not self._has_head():
            await self._wait()

    async def has_head_soon(self) -> bool:
        """The same, but waits for SOON_S only; False where the head has not come. Costs no task and no timer."""
        if not self.status and self._error is None:
            self._connection.alarm.set_for(self)
            await self._wait()
        return self._has_head()

    def _has_head(self) -> bool:
        if self._error is not None and not self.status:
            raise self._error
        return self.status != 0

    def __aiter__(self) -> "PeerResponse":
        return self

    async def __anext__(self) -> bytes:
        """What has come since the last time.

        Raises:
            PeerLost: the connection broke before the end.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                raise StopAsyncIteration
            await self._wait()
        return self.take()

    def take(self) -> bytes:
        """What is there already, without waiting; the whole body if `is_complete`."""
        chunks = self._chunks
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks, self._unread = [], 0
        if not self.is_complete:
            self._connection.resume()
        return taken

    async def body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            PeerLost: the connection broke before the end, or the body is longer than `limit`.
        """
        chunks, size = list[bytes](), 0
        async for chunk in self:
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                await self.aclose()
                raise PeerLost
        return b"".join(chunks)

    async def aclose(self) -> None:
        """Closes the connection, unless the answer has come to its end; does not wait."""
        if not self.is_complete:
            self._connection.abort()

    # --- from the connection

    def body_received(self, chunk: bytes) -> bool:
        """Keeps a part of the body; whether there is room for more."""
        self._chunks.append(chunk)
        self._unread += len(chunk)
        return self._unread < MAX_UNREAD_BYTES

    def failed(self, error: PeerLost) -> None:
        self._error = error
        self.wake()

    # --- waiting

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Lets the reader look again at what is there."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Alarm:
    """Wakes those whose answer has not begun after SOON_S. One timer for all: uvloop's cost 2 us each."""

    def __init__(self) -> None:
        self._set: deque[tuple[float, PeerResponse]] = deque()  # of the last SOON_S, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def set_for(self, response: PeerResponse) -> None:
        """From now on it is waited for."""
        self._set.append((time.monotonic() + SOON_S, response))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._ring)

    def _ring(self) -> None:
        waiting, now = self._set, time.monotonic()
        while waiting and (waiting[0][0] <= now or waiting[0][1].status):
            waiting.popleft()[1].wake()
        self._timer = None
        if waiting:
            self._timer = asyncio.get_running_loop().call_later(waiting[0][0] - now, self._ring)


class PeerConnection(asyncio.Protocol):
    """The connection. `on_idle` is called when it can serve another request, `on_lost` once, when it is gone."""

    def __init__(
        self,
        host: bytes,
        alarm: Alarm,
        on_idle: Callable[["PeerConnection"], None],
        on_lost: Callable[["PeerConnection"], None],
    ) -> None:
        self._on_idle, self._on_lost = on_idle, on_lost
        self._host, self.alarm = host, alarm
        self.loop = asyncio.get_running_loop()  # asked for once: it is a system call in Python 3.11
        self._transport: asyncio.Transport | None = None
        # The stubs know no protocol objects for it.
        self._parser: Any = httptools.HttpResponseParser(self)  # type: ignore[no-untyped-call,unused-ignore]
        self._response: PeerResponse | None = None
        self._has_served = self._has_answered = self._may_stay = False
        self._is_paused = self._is_aborted = False
        self._head_bytes = 0
        self.idle_since = 0.0

    def request(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> PeerResponse:
        """Sends a request; what comes back is read from the response."""
        assert self._response is None
        assert self._transport is not None
        try:
            head = _head(method, target, self._host, headers, len(body))
        except ValueError:
            self.abort()
            raise
        response = self._response = PeerResponse(self)
        self._has_answered, self._head_bytes = False, 0
        if len(body) > JOINED_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)
        return response

    def is_usable(self) -> bool:
        """Whether it is open, as far as is known."""
        return self._transport is not None and not self._is_aborted and not self._transport.is_closing()

    def resume(self) -> None:
        """There is room again."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Closes it at once; a response that is waited for fails."""
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no instances of it
        if self._is_aborted:  # whoever asked for it has gone in the meantime
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nothing was asked: whatever this is, it is no answer
            self.abort()
            return
        self._has_answered = True
        if not response.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
            return
        response.wake()
        if response.is_complete:
            self._ended()
        elif not response.status and self._head_bytes > MAX_HEAD_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        response, self._response, self._transport = self._response, None, None
        if response is not None:
            response.failed(PeerLost(is_stale=self._has_served and not self._has_answered))
        self._on_lost(self)

    def _ended(self) -> None:
        self._response, self._has_served = None, True
        self.resume()
        if self.is_usable() and self._may_stay:
            self._on_idle(self)
        else:
            self.abort()

    # --- httptools

    def on_message_begin(self) -> None:
        if self._response is None or self._response.is_complete:  # a second answer to one request
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None and not self._is_aborted:
            self._response.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # we never ask for one of these
            self.abort()
        elif self._response is not None:
            self._response.status = status

    def on_body(self, chunk: bytes) -> None:
        if self._response is None or self._is_aborted:
            return
        if not self._response.body_received(chunk) and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._response is not None and not self._is_aborted:
            self._may_stay = self._parser.should_keep_alive()  # only known here
            self._response.is_complete = True


def _head(method: bytes, target: bytes, host: bytes, headers: Iterable[tuple[bytes, bytes]], size: int) -> bytes:
    lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method, target, host), *[b"%b: %b" % header for header in headers]]
    if size or method == b"POST":
        lines.append(b"content-length: %d" % size)
    head = b"\r\n".join(lines)
    # What came in through a parser has no line breaks; one that got in elsewhere would be a second request.
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b" " in target:
        raise ValueError("a line break in a request to another node")
    return head + b"\r\n\r\n"
