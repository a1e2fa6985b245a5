"""Output: where log lines are written, whatever becomes of their reader."""

import contextlib
import fcntl
import logging
import math
import os
import select
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, BinaryIO

PIPE_BYTES = 1 << 20  # what anybody may have
# How long a node waits for a slow reader of its log: at once, and of all the time. It serves nobody meanwhile.
PATIENCE_S, PATIENCE_SHARE = 0.5, 0.05

log = logging.getLogger("app.telemetry.logs")


class Output:
    """Writes whole lines to a stream. Never raises: lines that cannot be written are counted, and the number is logged
    when writing works again. So are those for which a full pipe, socket or terminal has no room after PATIENCE_S.

    Processes that share a pipe (`serve --nodes`) do not tear each other's lines, unless a line is longer than PIPE_BUF.
    """

    def __init__(self, stream: BinaryIO | None = None) -> None:
        """`stream` is stderr by default, looked up at each write."""
        self._given = stream
        self._lock = threading.RLock()  # not every thread that logs is that of the event loop
        self._lost, self._why = 0, ""
        self._is_torn = False  # only the beginning of the last line was written
        self._unblocked: Unblocked | None = None
        self._patience_s, self._waited_at = PATIENCE_S, time.monotonic()

    def write(self, lines: bytes) -> None:
        """Writes lines that each end in a newline."""
        stream: Any = self._given if self._given is not None else getattr(sys.stderr, "buffer", None)
        if stream is None:
            return  # the process was started without stderr
        lost = 0
        with self._lock:
            if self._has_written(getattr(stream, "raw", stream), lines):
                lost, self._lost = self._lost, 0
        if lost:
            log.warning("Could not write %d log lines (%s); they are lost", lost, self._why)
            with self._lock:
                if self._lost:  # that line among them
                    self._lost += lost

    def _has_written(self, stream: Any, lines: bytes) -> bool:
        done = 0
        try:
            stream, most = self._fit(stream)
            if self._is_torn:
                self._write(stream, b"\n")
                self._is_torn = False
            for end in _ends(lines, most):
                while done < end:
                    done += self._write(stream, lines[done:end])
        except (OSError, ValueError) as error:  # the disk is full, the reader has gone, it is closed
            self._lost += lines.count(b"\n", done)
            self._is_torn = self._is_torn or (done > 0 and lines[done - 1 : done] != b"\n")
            self._why = str(error)
            return False
        return True

    def _fit(self, stream: Any) -> tuple[Any, float]:
        """What to write to, and how many bytes at once: in a pipe, longer pieces may be mixed with those of others."""
        try:
            number = stream.fileno()
            found = os.fstat(number)
        except OSError:  # it has no file descriptor
            return stream, math.inf
        mode = found.st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(number))):
            return stream, math.inf
        if self._unblocked is None or self._unblocked.of != (number, found.st_dev, found.st_ino):
            self._unblocked = Unblocked(number, found)
        return self._unblocked, select.PIPE_BUF

    def _write(self, stream: Any, piece: bytes) -> int:
        count: int | None = stream.write(piece)
        if count is None and self._waited_for(stream):
            count = stream.write(piece)
        if count is None:
            raise BlockingIOError("its reader is too slow")
        return count

    def _waited_for(self, stream: Any) -> bool:
        """Whether there is room now. Who waits has less patience afterwards."""
        began = time.monotonic()
        may_s = min(PATIENCE_S, self._patience_s + (began - self._waited_at) * PATIENCE_SHARE)
        is_ready = _has_room(stream.fileno(), may_s)
        self._waited_at = time.monotonic()
        self._patience_s = max(0.0, may_s - (self._waited_at - began))
        return is_ready


class Unblocked:
    """A pipe, socket or terminal that is written to without waiting, whether or not its other users wait: they have the
    same open file (open(2), "open file description"), so that one is left as it is. Closes what it opens.
    """

    def __init__(self, number: int, found: os.stat_result) -> None:
        self.of = (number, found.st_dev, found.st_ino)
        self._number, self._socket = number, None
        if stat.S_ISSOCK(found.st_mode):
            self._socket = socket.socket(fileno=number)
            weakref.finalize(self, self._socket.detach)
            return
        with contextlib.suppress(OSError):  # no /proc, or the pipe is another user's
            self._number = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._number)
        if stat.S_ISFIFO(found.st_mode):
            with contextlib.suppress(OSError):  # this user has too many large pipes
                fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, max(PIPE_BYTES, fcntl.fcntl(number, fcntl.F_GETPIPE_SZ)))

    def fileno(self) -> int:
        return self._number

    def write(self, piece: bytes) -> int | None:
        """How many bytes; None: there is no room. Raises OSError."""
        try:
            if self._socket is not None:
                return self._socket.send(piece, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            # A pipe with room for anything takes PIPE_BUF bytes, unless somebody else has filled it meanwhile.
            if self._number == self.of[0] and not _has_room(self._number, 0.0):
                return None
            return os.write(self._number, piece)
        except BlockingIOError:
            return None


def _has_room(number: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(within_s * 1000.0))


def _ends(lines: bytes, most: float) -> Iterator[int]:
    """The ends of pieces of whole lines, each piece at most `most` long. A longer line is a piece of its own."""
    start = 0
    while len(lines) - start > most:
        start = lines.rfind(b"\n", start, start + int(most)) + 1 or lines.find(b"\n", start) + 1 or len(lines)
        yield start
    yield len(lines)
