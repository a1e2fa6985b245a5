"""Copies bytes between the two sockets of a connection, in turns with all other connections of the node.

They go through a pipe of the kernel (splice(2)), which halves the CPU time. There are few pipes: a connection whose
reader is slow keeps one. When none is left, bytes go through a buffer, and what one socket does not accept stays
in the other's (it was only peeked at). So slow readers cost no memory, however many there are.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

PIECE_BYTES = 1 << 20
_LEAST_BYTES = 16 * 1024
MAX_PIPES, PIPE_BYTES = 8, 1 << 20  # a user may have 64 MiB of pipes, those of backend processes included
TURN_S = 0.002  # then the event loop does what else there is
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, so that a part is not taken for the whole
_F_SETPIPE_SZ = 1031  # in `fcntl` from Python 3.12 on
_SPLICE = 0x1 | 0x2  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK

log = logging.getLogger(__name__)


class Pipe:
    """Holds `size` bytes that a socket has not accepted yet."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user has used up what he may have: then it is smaller
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, PIPE_BYTES)
        self.size = 0

    def fill(self, source: socket.socket, most: int) -> int:
        """0 is the end of what comes. Raises OSError."""
        size = os.splice(source.fileno(), self.write_end, most, flags=_SPLICE)
        self.size += size
        return size

    def drain(self, sink: socket.socket) -> int:
        """How many bytes the socket has accepted. Raises OSError."""
        size = os.splice(self.read_end, sink.fileno(), self.size, flags=_SPLICE)
        self.size -= size
        return size

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


class Copier:
    """Buffer, pipes and turns of all connections of a node. Close it after the last of them."""

    def __init__(self, max_pipes: int = MAX_PIPES) -> None:
        self.buffer = memoryview(bytearray(PIECE_BYTES))
        self._pipes: list[Pipe] = []
        self._may_make = max_pipes
        self._ready: deque[Flow] = deque()
        self._is_running = False

    def close(self) -> None:
        while self._pipes:
            self._pipes.pop().close()

    def borrow(self) -> Pipe | None:
        """An empty pipe, if there is one."""
        if self._pipes:
            return self._pipes.pop()
        if not self._may_make:
            return None
        try:
            pipe = Pipe()
        except OSError:  # no descriptor is left
            return None
        self._may_make -= 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """One that is not empty cannot be used by another flow."""
        if pipe.size:
            pipe.close()
            self._may_make += 1
        else:
            self._pipes.append(pipe)

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
        self._pipe: Pipe | None = None  # with bytes that the sink has not accepted
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
        self._give_back()

    def copy(self) -> bool:
        """Copies a piece; returns whether there may be another."""
        if self._is_over:
            return False
        try:
            return self._copy()
        except OSError:
            self._tunnel.abort()
        except Exception:  # else all connections of the node would stand still with it
            log.exception("Could not copy between a backend and its destination; the connection is cut off")
            self._tunnel.abort()
        return False

    def _copy(self) -> bool:
        if self._pipe is not None:
            return self._drain(self._pipe)
        pipe = self._pipe = None if self._left == 0 else self._copier.borrow()
        try:
            arrived = self._fill(pipe)
        except BlockingIOError:
            self._give_back()
            self._loop.add_reader(self._source, self._on_ready_to_read)
            return False
        if not arrived:
            self._give_back()
            self._end()
            return False
        if self._left == 0:  # the next request of plain HTTP, or nothing that was asked for
            self._tunnel.abort()
            return False
        return self._peeked(arrived) if pipe is None else self._drain(pipe)

    def _fill(self, pipe: Pipe | None) -> int:
        """How many bytes are in the pipe, or where there is none, in the buffer. Raises BlockingIOError."""
        most = max(1, self._most())
        if pipe is None:
            return self._source.recv_into(self._copier.buffer, most, socket.MSG_PEEK)
        return pipe.fill(self._source, most)

    def _most(self) -> int:
        return self._piece_bytes if self._left is None else min(self._piece_bytes, self._left)

    def _drain(self, pipe: Pipe) -> bool:
        """From the pipe to the sink."""
        with contextlib.suppress(BlockingIOError):
            self._copied(pipe.drain(self._sink))
        if pipe.size:
            self._loop.add_writer(self._sink, self._on_ready_to_write)
            return False
        self._give_back()
        return True

    def _peeked(self, size: int) -> bool:
        """From the buffer to the sink. What was sent leaves the source: MSG_TRUNC is without a copy (tcp(7))."""
        buffer = self._copier.buffer
        try:
            sent = self._sink.send(buffer[:size])
        except BlockingIOError:
            sent = 0
        if sent:
            self._source.recv_into(buffer, sent, socket.MSG_TRUNC)
            self._copied(sent)
        if sent < size:
            self._piece_bytes = max(_LEAST_BYTES, sent)  # what is peeked at and not sent was copied in vain
            self._loop.add_writer(self._sink, self._on_ready_to_write)
            return False
        self._piece_bytes = min(PIECE_BYTES, 2 * self._piece_bytes)
        return True

    def _copied(self, size: int) -> None:
        self.copied_bytes += size
        if self._left is not None:
            self._left -= size
        self._tunnel.touch()

    def _give_back(self) -> None:
        if self._pipe is not None:
            self._copier.give_back(self._pipe)
            self._pipe = None

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
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._on_bytes = on_bytes
        self._counted = (0, 0)

    async def run(self) -> bool:
        """Leaves the sockets open, and nothing else. False if it was aborted."""
        try:
            self._out.start()
            self._back.start()
            return await self._over
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
            self._finish(True)

    def abort(self) -> None:
        """Both sides get a reset."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._finish(False)

    def _finish(self, is_complete: bool) -> None:
        if not self._over.done():
            self._over.set_result(is_complete)
