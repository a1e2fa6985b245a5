"""The node's ends of a backend's three pipes: reading, writing, and what keeps them bounded."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

from app.processes.link import BackendListener
from app.processes.stderr import StderrRing
from app.protocol.framing import LineBuffer

logger = logging.getLogger(__name__)

_PIPE_BYTES = 256 << 10  # of stdout: a large answer then comes in few pieces
_STDERR_DRAIN_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class PipeLimits:
    """How much one process may send, and leave unread."""

    line_bytes: int = 16 << 20  # longer lines are discarded
    endless_line_factor: int = 4  # times line_bytes: the process is killed
    write_bytes: int = 4 << 20  # waiting for the process to read: BackendBusy
    stdin_stall_s: float = 30.0  # nothing read for so long although something waits: killed
    stdout_bytes_per_s: int = 4 << 20  # above this, once the burst is spent, reading pauses
    stdout_burst_bytes: int = 16 << 20
    unheard_lines: int = 64  # before a listener is attached; then reading pauses
    unheard_bytes: int = 1 << 20


class PipeEnd:
    """A descriptor in the shape that connect_read_pipe and connect_write_pipe take.

    Not a file object: libuv closes the descriptor and uvloop then closes the object as well, by when
    another thread may have been given the same number. And it has no finaliser.
    """

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop_closes_it = not isinstance(loop, asyncio.BaseEventLoop)

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Called by the loop's transport only."""
        if not self._loop_closes_it:
            self._loop_closes_it = True
            os.close(self._descriptor)


def open_pipes() -> tuple[list[int], list[int]]:
    """Pipes for stdin, stdout and stderr: (the child's ends, ours).

    Raises:
        OSError: no descriptors left; none has been kept.
    """
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe2(os.O_CLOEXEC)
    except OSError:
        for descriptor in ends:
            os.close(descriptor)
        raise
    stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = ends
    with contextlib.suppress(OSError):  # unprivileged users have a total limit
        fcntl.fcntl(stdout_read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return [stdin_read, stdout_write, stderr_write], [stdin_write, stdout_read, stderr_read]


class Pause(IntFlag):
    """Why stdout is not read at the moment; several reasons may hold at once."""

    NONE = 0
    SESSION = 1
    FLOOD = 2
    UNHEARD = 4


class Stdin(asyncio.BaseProtocol):
    """Writes to the process; knows how long it has not read."""

    def __init__(self) -> None:
        self.writer: asyncio.WriteTransport | None = None  # None before it is open and from close() on
        self.written_bytes = 0
        self.lost_at: float | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._accepted_bytes = 0
        self._stalled_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # No isinstance check: uvloop's transports only look like the abstract classes.
        self._transport = self.writer = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: the process closed its end, or we did."""
        self._transport = self.writer = None
        self.lost_at = time.monotonic()

    def stalled_s(self, now: float) -> float:
        """For how long something has been waiting while the process read nothing; ask regularly."""
        waiting = self.writer.get_write_buffer_size() if self.writer is not None else 0
        accepted = self.written_bytes - waiting
        if not waiting:
            self._stalled_since = None
        elif self._stalled_since is None or accepted != self._accepted_bytes:
            self._stalled_since = now
        self._accepted_bytes = accepted
        return 0.0 if self._stalled_since is None else now - self._stalled_since

    def close(self) -> None:
        """Lets the process read what was written, then EOF."""
        self.writer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Drops what the process has not read."""
        self.writer = None
        transport, self._transport = self._transport, None
        # The stock loop's transport must not be aborted when it is ending by itself already, nor twice.
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()


class Stdout(asyncio.Protocol):
    """Cuts lines and hands each to the listener within the loop's callback: no task, no queue.

    Lines that come before there is a listener are kept for it.
    """

    def __init__(self, limits: PipeLimits, kill: Callable[[str], None]) -> None:
        self.lost_at: float | None = None
        self._limits = limits
        self._kill = kill
        self._lines = LineBuffer(limits.line_bytes)
        self._allowance = limits.stdout_burst_bytes
        self._paused = Pause.NONE
        self._transport: asyncio.ReadTransport | None = None
        self._listener: BackendListener | None = None
        self._unheard: list[bytes] = []
        self._unheard_bytes = 0
        self._deliver: Callable[[bytes], None] = self._keep

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by the loop. The hot path: every answer of the backend comes through here."""
        self._allowance -= len(data)
        if self._allowance < 0:
            self.pause(Pause.FLOOD)
        lines = self._lines
        deliver = self._deliver
        for line in lines.feed(data):
            try:
                deliver(line)
            except Exception:
                logger.exception("a listener failed on a backend's line")
        if lines.overlong or lines.discarded_bytes:
            self._on_overlong()

    @property
    def beginning(self) -> bytes:
        """Of the line that is under way, up to 4 KiB."""
        return self._lines.beginning

    def eof_received(self) -> None:
        """Called by the loop."""
        self.lost_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.lost_at = self.lost_at or time.monotonic()
        self._transport = None

    def _on_overlong(self) -> None:
        overlong, self._lines.overlong = self._lines.overlong, []
        listener = self._listener
        for ends in overlong:
            if listener is None:
                break
            try:
                listener.backend_sent_too_much(*ends)
            except Exception:
                logger.exception("a listener failed on a backend's overlong line")
        if self._lines.discarded_bytes > self._limits.line_bytes * self._limits.endless_line_factor:
            self._kill("wrote a line without end")

    # --- listening

    def listen(self, listener: BackendListener) -> None:
        """Hands over what was kept, then every new line."""
        self._listener = listener
        if self._unheard:
            # Not from within the caller, who may not be ready yet; until then lines go on being kept, in order.
            asyncio.get_running_loop().call_soon(self._hand_over)
        else:
            self._deliver = listener.backend_sent

    def mute(self) -> None:
        """Reads on, so that the process can write what it must before it ends, but nobody hears it."""
        self._listener = None
        self._deliver = _discard
        self._unheard.clear()
        self.resume(Pause.UNHEARD | Pause.SESSION)

    def _hand_over(self) -> None:
        if self._listener is None:
            return
        self._deliver = self._listener.backend_sent
        unheard, self._unheard = self._unheard, []
        for line in unheard:
            try:
                self._deliver(line)
            except Exception:
                logger.exception("a listener failed on a backend's line")
        self.resume(Pause.UNHEARD)

    def _keep(self, line: bytes) -> None:
        self._unheard.append(line)
        self._unheard_bytes += len(line)
        if len(self._unheard) >= self._limits.unheard_lines or self._unheard_bytes >= self._limits.unheard_bytes:
            self.pause(Pause.UNHEARD)

    # --- pausing

    def pause(self, reason: Pause) -> None:
        """Stops reading for this reason."""
        transport = self._open_transport()
        if not self._paused and transport is not None:
            transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: Pause) -> None:
        """Reads again, unless there is another reason not to."""
        was_paused, self._paused = self._paused, self._paused & ~reason
        transport = self._open_transport()
        if was_paused and not self._paused and transport is not None:
            transport.resume_reading()

    def refill(self, seconds: float) -> None:
        """Grants what the sustained rate allows for this time."""
        self.grant(int(self._limits.stdout_bytes_per_s * seconds))

    def grant(self, size: int) -> None:
        """Allows so many bytes more; never more than a burst."""
        self._allowance = min(self._limits.stdout_burst_bytes, self._allowance + size)
        if self._paused & Pause.FLOOD and self._allowance >= 0:
            self.resume(Pause.FLOOD)

    # --- closing

    def drain(self) -> None:
        """Delivers what the process had written before it died, and never more than its pipe can hold."""
        transport = self._open_transport()
        if transport is not None:
            _drain(transport, _PIPE_BYTES, self.data_received)
        self._hand_over()

    def close(self) -> None:
        """Stops reading for good."""
        self._deliver = _discard
        if self._transport is not None:
            self._transport.close()

    def _open_transport(self) -> asyncio.ReadTransport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport


class Stderr(asyncio.Protocol):
    """Reads without a pause, so that the process never waits for its own complaints to be read."""

    def __init__(self, ring: StderrRing) -> None:
        self._ring = ring
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._ring.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None

    def drain(self) -> None:
        """Reads the process's last words."""
        if self._transport is not None and not self._transport.is_closing():
            _drain(self._transport, _STDERR_DRAIN_BYTES, self._ring.feed)

    def close(self) -> None:
        """Stops reading for good."""
        if self._transport is not None:
            self._transport.close()


def _discard(_line: bytes) -> None:
    pass


def _drain(transport: asyncio.ReadTransport, limit_bytes: int, take: Callable[[bytes], None]) -> None:
    """Reads past the loop, which may hear of the data only after it has heard of the death."""
    descriptor = transport.get_extra_info("pipe").fileno()
    while limit_bytes > 0:
        try:
            data = os.read(descriptor, min(limit_bytes, 65536))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EIO):
                raise
            return
        if not data:
            return
        limit_bytes -= len(data)
        take(data)
