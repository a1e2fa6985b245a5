"""The node's ends of a backend's three pipes: reading, writing and their limits."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

from app.concurrency.loop_share import PIECE_S, LoopShare, used_s
from app.processes.connection import BackendListener
from app.protocol.framing import RELEASE_S, Flood, LineBuffer, spared_bytes

# Of stdout: a large answer arrives in few pieces. Less than uvloop has room for (256,000 bytes): libuv goes on at once
# after a read that filled all of it, up to 32 times, if the process writes as fast as it is read.
PIPE_BYTES = 128 << 10


class ReadEnd(asyncio.Protocol):
    """While the tenant is over its share of the loop, nothing is read between two turns."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._transport: asyncio.ReadTransport | None = None
        self._turn: asyncio.Task[None] | None = None  # that is waited for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def drain(self) -> None:
        """Reads what a dead process had written, at most what a pipe holds. The loop may see it only later."""
        transport, left = self._open_transport(), PIPE_BYTES
        if transport is None:
            return
        descriptor = transport.get_extra_info("pipe").fileno()
        while left > 0:
            try:
                data = os.read(descriptor, min(left, 65536))
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EIO):
                    raise
                return
            if not data:
                return
            left -= len(data)
            self.data_received(data)

    def close(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        if self._transport is not None:
            self._transport.close()

    def _open_transport(self) -> asyncio.ReadTransport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    # --- the tenant's share

    def _took(self, seconds: float) -> None:
        self._share.took(seconds)
        if self._share.is_due and self._turn is None and self._open_transport() is not None:
            self._hold()
            self._turn = asyncio.get_running_loop().create_task(self._wait(), name="wait for a turn to read a process")

    async def _wait(self) -> None:
        await self._share.turn()
        self._turn = None
        self._go_on()

    def _hold(self) -> None:
        transport = self._open_transport()
        if transport is not None:
            transport.pause_reading()

    def _go_on(self) -> None:
        transport = self._open_transport()
        if transport is not None:
            transport.resume_reading()


class Stderr(ReadEnd):
    """Reads without other pauses, so that the process never blocks on stderr for long."""

    def __init__(self, feed: Callable[[bytes], None], share: LoopShare) -> None:
        super().__init__(share)
        self._feed = feed

    def data_received(self, data: bytes) -> None:
        began = used_s()
        self._feed(data)
        self._took(used_s() - began)


logger = logging.getLogger(__name__)

LEAST_LINE_BYTES = 256  # what a line that is passed on counts at least as output: short ones take as long
LINES_A_TURN = 16  # more that come at once are handed over in several turns of the loop
_LAST_LINES = 5000  # of a dead process, handed over at once, which holds up the loop: answers are not so many


@dataclass(frozen=True, slots=True)
class PipeLimits:
    """How much one process may send, and leave unread."""

    line_bytes: int = 16 << 20  # longer lines are discarded
    endless_line_factor: int = 4  # a line over so many times line_bytes: the process is killed
    write_bytes: int = 4 << 20  # more waits to be read by the process: BackendBusy
    stdin_stall_s: float = 30.0  # the process reads nothing for so long although something waits: it is killed
    stdout_bytes_per_s: int = 4 << 20  # above this, when the burst is used up, reading pauses; a line counts 256
    stdout_burst_bytes: int = 16 << 20
    noise_lines_per_minute: int = 1000  # that are no JSON; a process that writes more is killed
    unheard_lines: int = 64  # kept until a listener is attached; then reading pauses
    unheard_bytes: int = 1 << 20


class PipeEnd:
    """A descriptor as connect_read_pipe and connect_write_pipe take it.

    Not a file object: libuv closes the descriptor, and uvloop then closes the object too, when another thread may have
    been given the same number. A file object's finaliser would do the same.
    """

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop_closes_it = not isinstance(loop, asyncio.BaseEventLoop)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """To be called by the loop's transport only."""
        if not self._loop_closes_it:
            self._loop_closes_it = True
            os.close(self._descriptor)


def open_pipes() -> tuple[list[int], list[int]]:
    """Pipes for stdin, stdout and stderr: (the child's ends, ours).

    Raises:
        OSError: out of descriptors; none are left open.
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
    with contextlib.suppress(OSError):  # unprivileged users have a limit on the sum
        fcntl.fcntl(stdout_read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return [stdin_read, stdout_write, stderr_write], [stdin_write, stdout_read, stderr_read]


class Pause(IntFlag):
    """Why stdout is not being read; several reasons may hold at once."""

    NONE = 0
    SESSION = 1
    FLOOD = 2
    UNHEARD = 4
    SHARE = 8  # of the loop: its tenant has used more than that


class Stdin(asyncio.BaseProtocol):
    """Our end of the process's stdin; notices when the process does not read."""

    def __init__(self) -> None:
        self.writer: asyncio.WriteTransport | None = None  # None before it is open and from close() on
        self.lost_at: float | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._accepted_bytes = 0
        self._stalled_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance check: uvloop's transports only look like the abstract classes.
        self._transport = self.writer = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self.writer = None
        self.lost_at = time.monotonic()

    def stalled_s(self, written_bytes: int, now: float) -> float:
        """For how long data has been waiting while the process read none; to be called regularly."""
        waiting = self.writer.get_write_buffer_size() if self.writer is not None else 0
        accepted = written_bytes - waiting
        if not waiting:
            self._stalled_since = None
        elif self._stalled_since is None or accepted != self._accepted_bytes:
            self._stalled_since = now
        self._accepted_bytes = accepted
        return 0.0 if self._stalled_since is None else now - self._stalled_since

    def close(self) -> None:
        """The process can still read what was written, then EOF."""
        self.writer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Discards what the process has not read."""
        self.writer = None
        transport, self._transport = self._transport, None
        # asyncio's own transport must not be aborted twice, nor when it is closing with nothing left to write.
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()


class Stdout(ReadEnd):
    """Splits lines and hands each to the listener within the loop's callback: no task, no queue.

    Lines are kept, and reading pauses, until there is a listener, and where so many come at once that the loop needs
    turns for others in between.
    """

    def __init__(self, limits: PipeLimits, kill: Callable[[str], None], share: LoopShare) -> None:
        super().__init__(share)
        self.lost_at: float | None = None
        self.first_byte_at: float | None = None
        self.received_bytes = 0
        self._limits = limits
        self._kill = kill
        self._lines = LineBuffer(limits.line_bytes)
        self._flood = Flood()
        self.has_flooded = self._is_noted = False  # it was not read, or notifications were dropped
        self._release: asyncio.TimerHandle | None = None  # of what the flood holds
        self._allowance = limits.stdout_burst_bytes
        self._paused = Pause.NONE
        self._listener: BackendListener | None = None
        self._unheard: deque[bytes] = deque()
        self._unheard_bytes = 0
        self._deliver: Callable[[bytes], None] | None = None  # None: lines are kept
        self._hands_over_soon = False

    def data_received(self, data: bytes) -> None:
        """Hot path: every answer of the backend comes through here."""
        began, now, size = used_s(), time.monotonic(), len(data)
        if not self.received_bytes:
            self.first_byte_at = now
        self.received_bytes += size
        buffer, flood = self._lines, self._flood
        read = buffer.feed(data)
        lines = flood.passed(read, now)
        count = data.count(b"\n")  # blank lines take time as well
        if lines is not read:
            self.has_flooded = self.has_flooded or len(lines) < len(read)
            size -= spared_bytes(sum(map(len, read)) - sum(map(len, lines)))
            count -= len(read) - len(lines)
        self._allowance -= max(size, LEAST_LINE_BYTES * count)
        if self._allowance < 0:
            self.has_flooded = True
            self.pause(Pause.FLOOD)
        if flood.held and self._release is None:
            self._release = asyncio.get_running_loop().call_later(RELEASE_S, self._tell_held)
        self._pass_on(lines)
        if buffer.overlong or buffer.discarded_bytes:
            self._on_overlong()
        self._took(used_s() - began)

    def _hold(self) -> None:
        self.pause(Pause.SHARE)

    def _go_on(self) -> None:
        self.resume(Pause.SHARE)
        if self._unheard:
            self._take_turn()

    def _pass_on(self, lines: list[bytes]) -> None:
        deliver, count = self._deliver, len(lines)
        if deliver is None or count > LINES_A_TURN:
            self._keep(lines)
            return
        until = used_s() + PIECE_S if count > 1 else math.inf
        for line in lines:
            count -= 1
            try:
                deliver(line)
            except Exception:
                logger.exception("Could not handle a line from a backend")
            if count and used_s() >= until:  # such lines take long to read
                self._keep(lines[-count:])
                return

    def _tell_held(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None
        self._pass_on(self._flood.take_held())

    def take_dropped(self) -> int:
        """As Flood.take_dropped."""
        return self._flood.take_dropped()

    @property
    def beginning(self) -> bytes:
        """Up to 4 KiB of the line that is arriving."""
        return self._lines.beginning

    def eof_received(self) -> None:
        self.lost_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost_at = self.lost_at or time.monotonic()

    def _on_overlong(self) -> None:
        listener = self._listener
        waits = listener is not None and self._unheard  # for earlier lines
        for ends in () if waits else self._lines.take_overlong():
            if listener is None:
                break
            try:
                listener.backend_sent_too_much(*ends)
            except Exception:
                logger.exception("Could not handle an overlong line from a backend")
        if self._lines.discarded_bytes > self._limits.line_bytes * self._limits.endless_line_factor:
            self._kill("wrote a line without end")

    # --- listening

    def listen(self, listener: BackendListener) -> None:
        """Hands over the lines that were kept, then every new one."""
        self._listener = listener
        if self._unheard:
            # Not from inside this call: the listener may not be ready. Until then new lines are kept too, in order.
            self._hand_over_soon()
        else:
            self._deliver = listener.backend_sent

    def mute(self) -> None:
        """Reads and discards, so that the process can finish writing before it ends."""
        self._listener = None
        self._deliver = _discard
        self._unheard.clear()
        self.resume(Pause.UNHEARD | Pause.SESSION)

    def _keep(self, lines: list[bytes]) -> None:
        if self._deliver is _discard:
            return
        self._unheard += lines
        self._unheard_bytes += sum(map(len, lines))
        if self._deliver is not None:
            self._deliver = None
            self._hand_over_soon()
        if len(self._unheard) >= self._limits.unheard_lines or self._unheard_bytes >= self._limits.unheard_bytes:
            self.pause(Pause.UNHEARD)

    def _hand_over_soon(self) -> None:
        if not self._hands_over_soon:
            self._hands_over_soon = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._hands_over_soon = False
        if self._open_transport() is None:
            self._hand_over(_LAST_LINES, math.inf)
        elif not self._paused & (Pause.SESSION | Pause.SHARE):
            began = used_s()
            self._hand_over(LINES_A_TURN)
            self._took(used_s() - began)

    def _hand_over(self, count: int, within_s: float = PIECE_S) -> None:
        """Hands over this many of the lines that were kept, or as many as can be read within this time; goes on soon if
        there are more."""
        unheard, until = self._unheard, used_s() + within_s
        while unheard and count > 0 and self._listener is not None:
            count -= 1
            try:
                self._listener.backend_sent(unheard.popleft())
            except Exception:
                logger.exception("Could not handle a line from a backend")
            if used_s() >= until:
                break
        if self._listener is None:
            return
        if unheard:
            self._hand_over_soon()
            return
        self._unheard_bytes = 0
        self._deliver = self._listener.backend_sent
        self._on_overlong()
        self.resume(Pause.UNHEARD)

    # --- pausing

    def pause(self, reason: Pause) -> None:
        transport = self._open_transport()
        if not self._paused and transport is not None:
            transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: Pause) -> None:
        """Reads again, unless another reason to pause is left."""
        was_paused, self._paused = self._paused, self._paused & ~reason
        transport = self._open_transport()
        if was_paused and not self._paused and transport is not None:
            transport.resume_reading()
        if self._unheard and self._listener is not None:
            self._hand_over_soon()

    @property
    def is_flooding(self) -> bool:
        """Whether it is not read because it has written too much."""
        return bool(self._paused & Pause.FLOOD)

    def note_flood(self, process_id: str) -> None:
        """Logs the first time that it is read more slowly."""
        if self.is_flooding and not self._is_noted:
            self._is_noted = True
            what = "A backend process writes more than it is asked for: it is read more slowly"
            logger.warning(what, extra={"backend_process": process_id})

    def refill(self, seconds: float) -> None:
        """Grants what the sustained rate allows in this time."""
        self.grant(int(self._limits.stdout_bytes_per_s * seconds))

    def grant(self, size: int) -> None:
        """Allows this many more bytes; the sum never exceeds a burst."""
        self._allowance = min(self._limits.stdout_burst_bytes, self._allowance + size)
        if self._paused & Pause.FLOOD and self._allowance >= 0:
            self.resume(Pause.FLOOD)

    # --- closing

    def drain(self) -> None:
        super().drain()
        self._tell_held()
        self._hand_over(_LAST_LINES, math.inf)
        if self._listener is not None:
            self._unheard.clear()

    def close(self) -> None:
        self._deliver = _discard
        self._tell_held()
        super().close()


def _discard(_line: bytes) -> None:
    pass
