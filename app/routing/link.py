"""Link: one connection between two nodes, over which many requests and answers go at once. Either end is a subclass.

What is sent in one turn of the event loop goes out in one record and one system call, unless it is alone on the link:
then at once. Nothing waits here: who has much to send looks at `is_paused` and waits for `writable`.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import cast

from app.routing.frames import (
    CREDIT,
    END,
    MAX_RECORD_BYTES,
    Frame,
    LinkBroken,
    RecordReader,
    RecordWriter,
    encode_frame,
    encode_number,
)

UPGRADE, PATH = b"trunkline-link", b"/internal/link"
CHALLENGE, PROOF = b"trunkline-challenge", b"trunkline-node"

RECORD_BYTES = MAX_RECORD_BYTES // 4  # what waits to be sent goes out above this; one more frame may be longer

# A host that vanishes says nothing: what is not acknowledged for so long is lost, and silence is asked after.
_USER_TIMEOUT_MS, _KEEPIDLE_S, _KEEPINTVL_S, _KEEPCNT = 10_000, 5, 2, 3


class Link(asyncio.Protocol, ABC):
    """Frames in both directions, until either end closes it or is gone."""

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self.loop = asyncio.get_running_loop()  # asked for once: it is a system call in Python 3.11
        self._writer, self._reader = RecordWriter(send_key), RecordReader(receive_key)
        self._transport: asyncio.Transport | None = None
        self._frames: list[bytes] = []  # to be sent in this turn of the loop
        self._waiting_bytes = 0
        self._writable: asyncio.Future[None] | None = None  # while the kernel takes no more

    @abstractmethod
    def frame_received(self, frame: Frame) -> None:
        """The other node has said this."""

    @abstractmethod
    def closed(self) -> None:
        """The connection is gone; called once."""

    @property
    def is_open(self) -> bool:
        """Whether it can be sent on, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_paused(self) -> bool:
        """Whether what is sent now would pile up here."""
        return self._writable is not None

    async def writable(self) -> None:
        """Waits while the link is paused; returns also when it is closed."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def send(
        self, kind: int, stream: int, payload: bytes = b"", *, is_end: bool = False, is_alone: bool = False
    ) -> None:
        """Sends a frame with what else is sent in this turn, or at once if it `is_alone`. On a link that is closed
        it is dropped."""
        frame = encode_frame(kind | END if is_end else kind, stream, payload)
        if not self._frames and not is_alone:
            self.loop.call_soon(self._flush)
        self._frames.append(frame)
        self._waiting_bytes += len(frame)
        if is_alone or self._waiting_bytes > RECORD_BYTES:
            self._flush()

    def give_credit(self, stream: int, size: int) -> None:
        """The other end may send so many bytes more of this stream's body."""
        self.send(CREDIT, stream, encode_number(size))

    def close(self) -> None:
        """Closes it once everything is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        frames, self._frames, self._waiting_bytes = self._frames, [], 0
        if frames and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._writer.record(frames[0] if len(frames) == 1 else b"".join(frames)))

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no instances of it
        _notice_silence(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self.frame_received(frame)
        except LinkBroken:
            self.abort()

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self.closed()


def _notice_silence(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPIDLE_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPINTVL_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPCNT)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
