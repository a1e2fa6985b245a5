"""What one process writes that is no message: the limits of banners on stdout, and of stderr in the log."""

import logging
import time
from collections.abc import Callable

from app.processes.output.stderr import LINE_BYTES
from app.protocol.framing import LineBuffer

logger = logging.getLogger(__name__)

LOGGED_LINES = 10  # of a process's stdout: a banner is short, and what follows it says the same
MINUTE_S = 60.0
STDERR_LINES_PER_S = 100


class StdoutNoise:
    """Logs the first lines for debugging; ends a process that writes more than `per_minute`, which no banner does."""

    def __init__(self, per_minute: int, show: Callable[[bytes], str], kill: Callable[[str], None]) -> None:
        self._per_minute, self._show, self._kill = per_minute, show, kill
        self._lines = self._in_minute = 0
        self._since = 0.0

    def heard(self, line: bytes, process_id: str, now: float) -> None:
        """Counts one line."""
        self._lines += 1
        if self._lines <= LOGGED_LINES and logger.isEnabledFor(logging.DEBUG):
            extra = {"backend_process": process_id}
            logger.debug("A line of a backend's stdout is no JSON: %s", self._show(line), extra=extra)
        if self._in_minute == 0 or now - self._since >= MINUTE_S:
            self._since, self._in_minute = now, 0
        self._in_minute += 1
        if self._in_minute == self._per_minute + 1:
            self._kill(f"wrote more than {self._per_minute} lines in a minute that are no JSON")


class StderrLog:
    """Writes stderr to the log for debugging, STDERR_LINES_PER_S at most, then how many were left out."""

    def __init__(self, show: Callable[[bytes], str]) -> None:
        self._show = show
        self._lines = LineBuffer(LINE_BYTES)
        self._since, self._written, self._left_out = 0.0, 0, 0

    def feed(self, data: bytes, process_id: str) -> None:
        """Logs the lines that this completes, if anybody wants to know."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        lines = self._lines.feed(data)
        lines += [beginning for beginning, end in self._lines.take_overlong() if end]
        now, extra = time.monotonic(), {"backend_process": process_id}
        if now - self._since >= 1.0:
            if self._left_out:
                logger.debug("A backend's stderr: %d lines were left out", self._left_out, extra=extra)
            self._since, self._written, self._left_out = now, 0, 0
        room = max(0, STDERR_LINES_PER_S - self._written)
        self._written += len(lines[:room])
        self._left_out += len(lines[room:])
        for line in lines[:room]:
            logger.debug("A backend's stderr: %s", self._show(line), extra=extra)
