"""Copies bytes between the two sockets of a connection, in turns with all other connections of the node.

No bytes are kept here: what one socket does not accept stays in the kernel's buffer of the other (it is only peeked
at), which stops its sender in the end. So a slow reader costs no memory, however many there are.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

PIECE_BYTES = 256 * 1024
_LEAST_BYTES = 16 * 1024
TURN_S = 0.002  # then the event loop does what else there is
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, so that a part is not taken for the whole


class Copier:
    """The buffer and the turns of all connections of a node."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(PIECE_BYTES))
        self._ready: deque[Flow] = deque()
        self._is_running = False

    def soon(self, flow: "Flow") -> None:
        """Has the flow copy a piece when it is its turn."""
        self._ready.append(flow)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        until = time.monotonic() + TURN_S
        while self._ready:
            flow = self._ready.popleft()
            if flow.copy():
                self._ready.append(flow)
            if time.monotonic() >= until:
                break
        self._is_running = bool(self._ready)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)


class Flow:
    """One direction. With `left` it ends after so many bytes, and more than those are an error."""

    def __init__(self, tunnel: "Tunnel", source: socket.socket, sink: socket.socket, left: int | None = None) -> None:
        self._tunnel = tunnel
        self._copier = tunnel.copier
        self._loop = asyncio.get_running_loop()
        self._source, self._sink, self._left = source, sink, left
        self._piece_bytes = PIECE_BYTES
        self._is_over = False  # nothing more will be read
        self.copied_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def has_limit(self) -> bool:
        return self._left is not None

    def start(self) -> None:
        self._loop.add_reader(self._source, self._on_ready_to_read)

    def stop(self) -> None:
        """Must come before the sockets are closed."""
        self._is_over = True
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)

    def copy(self) -> bool:
        """Copies a piece; returns whether there may be another."""
        if self._is_over:
            return False
        try:
            return self._copy()
        except BlockingIOError:
            self._loop.add_reader(self._source, self._on_ready_to_read)
            return False
        except OSError:
            self._tunnel.abort()
            return False

    def _copy(self) -> bool:
        most = self._piece_bytes if self._left is None else min(self._piece_bytes, max(1, self._left))
        buffer = self._copier.buffer
        size = self._source.recv_into(buffer, most, socket.MSG_PEEK)
        if size == 0:
            self._end()
            return False
        if self._left == 0:
            self._tunnel.abort()
            return False
        try:
            sent = self._sink.send(buffer[:size])
        except BlockingIOError:
            sent = 0
        if sent:
            self._drop(sent)
        if sent < size:
            self._piece_bytes = max(_LEAST_BYTES, sent)
            self._loop.add_writer(self._sink, self._on_ready_to_write)
            return False
        self._piece_bytes = min(PIECE_BYTES, 2 * self._piece_bytes)
        if size < most:
            self._loop.add_reader(self._source, self._on_ready_to_read)
        return size == most

    def _drop(self, size: int) -> None:
        """What was sent leaves the kernel's buffer. MSG_TRUNC: without a copy (tcp(7))."""
        self._source.recv_into(self._copier.buffer, size, socket.MSG_TRUNC)
        self.copied_bytes += size
        if self._left is not None:
            self._left -= size
        self._tunnel.touch()

    def _end(self) -> None:
        if self._left:
            self._tunnel.abort()  # the rest of the body will not come
            return
        self._is_over = True
        if self._left is None:
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)
        self._tunnel.flow_ended()

    def _on_ready_to_read(self) -> None:
        self._loop.remove_reader(self._source)
        self._copier.soon(self)

    def _on_ready_to_write(self) -> None:
        self._loop.remove_writer(self._sink)
        self._copier.soon(self)


class Tunnel:
    """Both directions of one connection, until both have ended or `abort`."""

    def __init__(
        self,
        copier: Copier,
        client: socket.socket,
        destination: socket.socket,
        body_bytes: int | None,
        on_bytes: Callable[[int, int], None],
    ) -> None:
        self.copier = copier
        self.active_at = time.monotonic()
        self._sockets = (client, destination)
        self._out = Flow(self, client, destination, body_bytes)
        self._back = Flow(self, destination, client)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_bytes = on_bytes
        self._counted = (0, 0)

    async def run(self) -> None:
        """Leaves the sockets open, and nothing else."""
        try:
            self._out.start()
            self._back.start()
            await self._over
        finally:
            self._out.stop()
            self._back.stop()
            self.count()

    def touch(self) -> None:
        self.active_at = time.monotonic()

    def count(self) -> None:
        """Reports what was copied since the last time."""
        now = (self._out.copied_bytes, self._back.copied_bytes)
        self._on_bytes(now[0] - self._counted[0], now[1] - self._counted[1])
        self._counted = now

    def flow_ended(self) -> None:
        """The destination may still answer when the client has said all; if a body has its length, not otherwise."""
        if self._back.is_over and (self._out.is_over or self._out.has_limit):
            self._finish()

    def abort(self) -> None:
        """Both sides get a reset."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
