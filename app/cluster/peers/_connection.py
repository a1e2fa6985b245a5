"""One HTTP/1.1 connection to another node, for one exchange at a time.

httptools parses. Bodies are passed on as they come; reading pauses while too much of one is unread.
"""

import asyncio
import select
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import httptools

from app.cluster.peers.late_head import LATE_HEAD, LateHead, RawHeaders
from app.errors import NodeLost, NodeUnavailable

MAX_UNREAD_BYTES = 64 << 10  # of a body; above it reading pauses
LEAST_PIECE_BYTES = 256  # that a piece of it counts
MAX_HEAD_BYTES, MAX_HEADERS = 64 << 10, 256  # of an answer
JOINED_BYTES = 16 << 10  # a body up to this size is sent in one buffer with its head: that is cheaper than two
SOON_S = 0.05  # most answers have begun by then
# For hosts that vanish: the time for an acknowledgement, and the probes of a silent connection.
_USER_TIMEOUT_MS, _KEEPIDLE_S, _KEEPINTVL_S, _KEEPCNT = 10_000, 5, 2, 3


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the other node may take, in seconds. A node that works on an answer sends something at intervals: see
    `late_head`, and the comments of event streams."""

    connect_s: float = 1.0  # nodes are near each other
    greet_s: float = 2.0  # for a busy node
    head_s: float = 15.0  # three times LATE_S
    idle_s: float = 37.5  # two and a half times the interval of comments


class PeerUnreachable(NodeUnavailable):
    """The other node cannot be reached, or another one has its address; nothing was sent."""


class PeerDistrusted(PeerUnreachable):
    """What answers there has a certificate that is not trusted here, or is for another name; nothing was sent."""


class PeerLost(NodeLost):
    """The connection broke after the request was sent: its outcome is unknown."""


class PeerResponse:
    """An answer as it comes, for one reader, who closes it."""

    __slots__ = (
        "_chunks", "_connection", "_error", "_is_nudged", "_unread", "_waiter", "headers", "is_complete", "status",
    )  # fmt: skip

    def __init__(self, connection: "PeerConnection") -> None:
        self.status, self.is_complete = 0, False
        self.headers: RawHeaders = []
        self._connection, self._chunks, self._unread = connection, list[bytes](), 0
        self._error: PeerLost | None = None
        self._is_nudged = False
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Waits for `status` and `headers`. Raises PeerLost."""
        while not self._has_head():
            await self._wait()

    async def has_head_soon(self) -> bool:
        """As `head`, for about SOON_S; False if it has not come. Costs no task and no timer (see `Alarm`)."""
        if not self.status and self._error is None:
            self._connection.alarm.set_for(self, self._connection.loop)
            await self._wait()
        return self._has_head()

    def _has_head(self) -> bool:
        if self._error is not None and not self.status:
            raise self._error
        return self.status != 0

    def __aiter__(self) -> "PeerResponse":
        return self

    async def __anext__(self) -> bytes:
        """What has come since the last time; empty after a `nudge`. Raises PeerLost."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                raise StopAsyncIteration
            if self._is_nudged:
                self._is_nudged = False
                return b""
            await self._wait()
        return self.take()

    def take(self) -> bytes:
        """What is there, without waiting; all that is left of the body if `is_complete`."""
        chunks = self._chunks
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks, self._unread = [], 0
        if not self.is_complete:
            self._connection.resume()
        return taken

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises PeerLost, also if it is longer than `limit`."""
        chunks, size = list[bytes](), 0
        async for chunk in self:
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                self.close()
                raise PeerLost
        return b"".join(chunks)

    def close(self) -> None:
        """Closes the connection if the answer is incomplete, so that the other node notices."""
        if not self.is_complete:
            self._connection.abort()

    def give_up(self, error: PeerLost) -> None:
        """Fails the response and closes the connection."""
        self.failed(error)
        self.close()

    def nudge(self) -> None:
        """Wakes a reader that waits for more of the body."""
        self._is_nudged = True
        self.wake()

    # --- from the connection

    def head_received(self, status: int, headers: RawHeaders) -> None:
        self.status, self.headers = status, headers

    def completed(self) -> None:
        self.is_complete = True

    def body_received(self, chunk: bytes) -> bool:
        """Keeps a part of the body; returns whether there is room for more."""
        self._chunks.append(chunk)
        self._unread += max(len(chunk), LEAST_PIECE_BYTES)
        return self._unread < MAX_UNREAD_BYTES

    def failed(self, error: PeerLost) -> None:
        if self._error is None and not self.is_complete:
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
        """Lets the reader check again what is there."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Alarm:
    """Wakes readers whose answer has not begun after SOON_S to twice SOON_S. One timer for all, because uvloop takes
    2 us for each."""

    def __init__(self) -> None:
        self._new, self._old = list[PeerResponse](), list[PeerResponse]()  # since the timer was set, and before
        self._timer: asyncio.TimerHandle | None = None

    def set_for(self, response: PeerResponse, loop: asyncio.AbstractEventLoop) -> None:
        self._new.append(response)
        if self._timer is None:
            self._timer = loop.call_later(SOON_S, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        for response in self._old:
            response.wake()
        self._old, self._new = self._new, []
        self._timer = loop.call_later(SOON_S, self._ring, loop) if self._old else None


class PeerConnection(asyncio.Protocol):
    """`on_idle` is called when it can serve another request, `on_lost` once, when it is closed."""

    def __init__(
        self,
        host: bytes,
        alarm: Alarm,
        on_idle: Callable[["PeerConnection"], None],
        on_lost: Callable[["PeerConnection"], None],
    ) -> None:
        self._on_idle, self._on_lost = on_idle, on_lost
        self._host, self.alarm = host, alarm
        self.loop = asyncio.get_running_loop()  # once, because it is a system call in Python 3.11
        self._transport: asyncio.Transport | None = None
        # The stubs do not accept protocol objects.
        self._parser: Any = httptools.HttpResponseParser(self)  # type: ignore[no-untyped-call,unused-ignore]
        self._response: PeerResponse | None = None
        self._late: LateHead | None = None
        self._poll = select.poll()
        self._has_answered = self._may_stay = self._is_paused = self._is_aborted = False
        self._head_bytes = 0
        self.heard_at = self.loop.time()  # when the other node last said something, or was asked

    def request(
        self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes = b""
    ) -> PeerResponse:
        """Sends a request. Raises ValueError if it has line breaks, or spaces in its target."""
        assert self._response is None
        assert self._transport is not None
        head = _head(method.encode("ascii"), target, self._host, headers, len(body))
        response = self._response = PeerResponse(self)
        self._has_answered, self._head_bytes, self.heard_at = False, 0, self.loop.time()
        if len(body) > JOINED_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)
        return response

    def is_open(self) -> bool:
        """Whether it is open, as far as the event loop knows."""
        transport = self._transport
        return transport is not None and not self._is_aborted and not transport.is_closing()

    def is_usable(self) -> bool:
        """Whether it is open, as far as the kernel knows: costs a system call."""
        return self.is_open() and not self._poll.poll(0)

    def hurry(self, now: float, deadlines: Deadlines) -> bool:
        """Gives up an answer that is overdue; returns whether it was."""
        if self._response is None or self._is_paused:
            return False
        limit_s = deadlines.idle_s if self._has_answered else deadlines.head_s
        if now - self.heard_at <= limit_s:
            return False
        self._response.give_up(
            PeerLost(f"The other node has sent nothing for {limit_s:.0f} s; it may have made the call")
        )
        return True

    def resume(self) -> None:
        """Goes on reading."""
        if self._is_paused and self._transport is not None:
            self._is_paused, self.heard_at = False, self.loop.time()
            self._transport.resume_reading()

    def abort(self) -> None:
        """Closes it at once; a pending response fails."""
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no instances of it
        if self._is_aborted:  # while it was being opened
            self._transport.abort()
            return
        tcp = transport.get_extra_info("socket")
        _notice_silence(tcp)
        self._poll.register(tcp.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nothing was asked
            self.abort()
            return
        self._has_answered, self.heard_at = True, self.loop.time()
        if not response.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort()
            return
        response.wake()
        if response.is_complete:
            self._ended()
        elif not response.status and self._late is None and self._head_bytes > MAX_HEAD_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        response, self._response, self._transport = self._response, None, None
        if response is not None:
            response.failed(PeerLost())
        self._on_lost(self)

    def _ended(self) -> None:
        self._response = self._late = None
        self.resume()
        if self._may_stay and not self._is_aborted:
            self._on_idle(self)
        else:
            self.abort()

    # --- httptools

    def on_message_begin(self) -> None:
        if self._response is None or self._response.is_complete:  # a second answer to one request
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None and not self._is_aborted:
            if len(self._response.headers) >= MAX_HEADERS:
                self.abort()
                return
            name = name.lower()
            self._response.headers.append((name, value))
            if name == LATE_HEAD:
                self._late = LateHead()

    def on_headers_complete(self) -> None:
        response, status = self._response, self._parser.get_status_code()
        if status < 200:  # we never ask for these
            self.abort()
        elif response is not None and self._late is None:
            response.head_received(status, response.headers)

    def on_body(self, chunk: bytes) -> None:
        response = self._response
        if response is None or self._is_aborted:
            return
        if not response.status and self._late is not None:
            chunk = self._behind_late_head(response, self._late, chunk)
        if chunk and not response.body_received(chunk) and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._response is None or self._is_aborted:
            return
        if not self._response.status:  # a late head that never came
            self.abort()
            return
        self._may_stay = self._parser.should_keep_alive()  # only known here
        self._response.completed()

    def _behind_late_head(self, response: PeerResponse, late: LateHead, chunk: bytes) -> bytes:
        try:
            body = late.feed(chunk)
        except ValueError:
            self.abort()
            return b""
        if body is None:
            return b""
        response.head_received(late.status, late.headers)
        return body


def _head(method: bytes, target: bytes, host: bytes, headers: Iterable[tuple[bytes, bytes]], size: int) -> bytes:
    lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method, target, host), *[b"%b: %b" % header for header in headers]]
    if size or method == b"POST":
        lines.append(b"content-length: %d" % size)
    head = b"\r\n".join(lines)
    # What a parser has read has no line breaks; any other line break would begin a second request.
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b" " in target:
        raise ValueError("a line break in a request to another node")
    return head + b"\r\n\r\n"


def _notice_silence(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPIDLE_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPINTVL_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPCNT)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
