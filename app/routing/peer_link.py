"""PeerLink: the end of a link that asks. It knows neither pools nor what is sent."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from app.errors import NodeLost, NodeUnavailable
from app.routing.frames import (
    CANCEL,
    CHUNK_BYTES,
    DATA,
    LEAVING,
    MAX_HEAD_BYTES,
    REQUEST,
    RESPONSE,
    WINDOW_BYTES,
    Frame,
    LinkBroken,
    RawHeaders,
    RequestHead,
    chunks,
    decode_number,
    decode_response,
    encode_request,
)
from app.routing.link import Link
from app.routing.node_proof import LinkKeys

MAX_STREAMS = 4096  # on one link, of which each may keep WINDOW_BYTES here; above it requests are refused
SOON_S = 0.05  # most answers have begun by then


class PeerUnreachable(NodeUnavailable):
    """The other node cannot be reached, or is leaving; it has done nothing with the request."""


class PeerLost(NodeLost):
    """The connection to the other node broke after a request was sent: its outcome is not known."""


class PeerResponse:
    """An answer as it comes. One reader; whoever got it closes it."""

    __slots__ = (
        "_chunks", "_error", "_link", "_stream", "_unread", "_untold", "_waiter", "headers", "is_complete", "status",
    )  # fmt: skip

    def __init__(self, link: "PeerLink", stream: int) -> None:
        self.status, self.is_complete = 0, False
        self.headers: RawHeaders = ()
        self._link, self._stream = link, stream
        self._chunks, self._unread = list[bytes](), 0
        self._untold = 0  # bytes that were taken, and that the other end has no credit for yet
        self._error: NodeLost | NodeUnavailable | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<PeerResponse [{self.status or 'no head'}, {self._unread} unread, complete={self.is_complete}]>"

    async def head(self) -> None:
        """Waits for `status` and `headers`.

        Raises:
            PeerLost: the connection broke first.
            PeerUnreachable: the node leaves, and has not looked at the request.
        """
        while not self._has_head():
            await self._wait()

    async def has_head_soon(self) -> bool:
        """The same, but waits for SOON_S only; False where the head has not come. Costs no task and no timer."""
        if not self.status and self._error is None:
            self._link.alarm.set_for(self)
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
        parts = self._chunks
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        self._untold += self._unread
        self._chunks, self._unread = [], 0
        if not self.is_complete and self._untold >= WINDOW_BYTES // 2:
            self._link.give_credit(self._stream, self._untold)
            self._untold = 0
        return taken

    async def body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            PeerLost: the connection broke before the end, or the body is longer than `limit`.
        """
        parts, size = list[bytes](), 0
        async for part in self:
            parts.append(part)
            size += len(part)
            if size > limit:
                self.close()
                raise PeerLost
        return b"".join(parts)

    def close(self) -> None:
        """Nobody waits for the answer any more: unless it has come to its end, the other node is told."""
        if not self.is_complete and self._error is None:
            self._link.cancel(self._stream)

    # --- from the link

    def received(self, frame: Frame) -> None:
        """A frame of this answer. Raises LinkBroken where it cannot be one."""
        body = frame.payload
        if frame.kind == RESPONSE:
            self.status, self.headers, body = decode_response(body)
        if body:
            self._chunks.append(body)
            self._unread += len(body)
            if self._unread + self._untold > WINDOW_BYTES:
                raise LinkBroken
        self.is_complete = frame.is_end
        self.wake()

    def failed(self, error: NodeLost | NodeUnavailable) -> None:
        """There will be no more of it."""
        self._error = error
        self.wake()

    # --- waiting

    async def _wait(self) -> None:
        self._waiter = self._link.loop.create_future()
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


class PeerLink(Link):
    """A link to the node at this URL. `on_end` is called when no new request may go over it, and when it is closed."""

    def __init__(self, url: str, node: str, keys: LinkKeys, alarm: Alarm, on_end: Callable[["PeerLink"], None]) -> None:
        super().__init__(keys.requests, keys.answers)
        self.url, self.node, self.alarm = url, node, alarm
        self._on_end = on_end
        self._streams: dict[int, PeerResponse] = {}
        self._last = 0
        self._is_left = False  # the other node takes no more requests on it

    def __len__(self) -> int:
        """How many requests are under way."""
        return len(self._streams)

    @property
    def is_usable(self) -> bool:
        """Whether a request may go over it."""
        return self.is_open and not self._is_left

    def request(self, head: RequestHead, body: bytes) -> PeerResponse:
        """Sends a request; what comes back is read from the response, which the caller closes.

        Raises:
            NodeUnavailable: as many are under way as may be, or its headers are too long.
        """
        if len(self._streams) >= MAX_STREAMS:
            raise NodeUnavailable("as many requests as may be are under way to that node")
        is_short = len(body) <= CHUNK_BYTES
        payload = encode_request(head, body if is_short else b"")
        if len(payload) > MAX_HEAD_BYTES:
            raise NodeUnavailable("the headers are too long to be sent on to another node")
        self._last = stream = self._last + 1
        response = self._streams[stream] = PeerResponse(self, stream)
        self.send(REQUEST, stream, payload, is_end=is_short, is_alone=is_short and len(self._streams) == 1)
        if not is_short:
            for chunk in chunks(body):
                self.send(DATA, stream, chunk)
            self.send(DATA, stream, is_end=True)
        return response

    def cancel(self, stream: int) -> None:
        """Nobody waits for its answer any more."""
        if self._streams.pop(stream, None) is not None:
            self.send(CANCEL, stream)
            self._close_if_left()

    def frame_received(self, frame: Frame) -> None:
        if frame.kind == LEAVING:
            self._leave(decode_number(frame.payload))
            return
        response = self._streams.get(frame.stream)
        if response is None:  # it was cancelled
            return
        if frame.kind == CANCEL:
            response.failed(PeerLost())
        else:
            response.received(frame)
        if frame.kind == CANCEL or frame.is_end:
            del self._streams[frame.stream]
            self._close_if_left()

    def closed(self) -> None:
        streams, self._streams = self._streams, {}
        for response in streams.values():
            response.failed(PeerLost())
        self._on_end(self)

    def _leave(self, last: int) -> None:
        """The other node answers what it has begun, up to the stream `last`, and has not looked at what came after."""
        self._is_left = True
        for stream in [stream for stream in self._streams if stream > last]:
            self._streams.pop(stream).failed(PeerUnreachable())
        self._on_end(self)
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._is_left and not self._streams:
            self.close()

    def __repr__(self) -> str:
        return f"<PeerLink to {self.node} [{len(self)} requests, {self._last} in all]>"
