"""What a process writes that is no message: the last lines of its stderr, and how much of it all is logged."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from app.domain import BackendSpec
from app.protocol.framing import LineBuffer
from app.text.credentials import secrets_in
from app.text.redaction import without_credentials

RING_BYTES = 64 << 10
LINE_BYTES = 8 << 10
MASKED_FROM = 6  # bytes: a shorter value of the environment (`1`, `true`) is no secret, and part of many words
MASK = b"***"

# Characters that could move a terminal's cursor, forge a log line or change the reading direction.
_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNSAFE} | {0x09: "\\t"}

_is_plain_path = re.compile(r"(/(?!\.\.?(/|$))[\w.-]+)+").fullmatch


def secrets_of(spec: BackendSpec) -> list[str]:
    """The credentials in its arguments and the values of its environment, except plain paths that its registration
    shows, or a directory above them: else nobody sees which file an error is about."""
    within = [each.rstrip("/") for each in (*spec.sandbox.read, *spec.sandbox.write, spec.cwd or "") if each != "/"]
    roots = tuple(f"{each}/" for each in within if each.startswith("/"))
    return secrets_in(spec.args) + [
        value
        for value in spec.env.values()
        if not _is_plain_path(value) or not (value in spec.args or f"{value}/".startswith(roots))
    ]


@dataclass(slots=True, eq=False)
class StderrRing:
    """Keeps the last 64 KiB that were fed.

    Feeding only copies: a backend may write without end. When lines are read out they are shortened to 8 KiB and
    escaped, and the values that `secret` returns are masked in them, as is whatever looks like a credential.
    """

    secret: Callable[[], Iterable[str]] = tuple
    _bytes: bytearray = field(default_factory=bytearray)
    _is_cut: bool = False
    _fresh: int = 0  # bytes that nobody has taken

    def feed(self, data: bytes) -> None:
        self._fresh += len(data)
        if len(data) >= RING_BYTES:
            self._bytes[:], self._is_cut = data[-RING_BYTES:], True
            return
        self._bytes += data
        if len(self._bytes) > 2 * RING_BYTES:  # so that the rest is copied once per 64 KiB
            del self._bytes[:-RING_BYTES]
            self._is_cut = True

    @property
    def line_count(self) -> int:
        """How many lines are kept, blank ones included."""
        return self._bytes.count(b"\n", max(0, len(self._bytes) - RING_BYTES))

    def take_fresh(self, size: int) -> bytes:
        """What came since the last time, at most so much of its end; as it came."""
        fresh, self._fresh = min(self._fresh, size), 0
        return bytes(self._bytes[-fresh:]) if fresh else b""

    def last_lines(self, count: int = 20) -> list[str]:
        """The last non-blank lines, oldest first, safe to log and to show."""
        if count <= 0:
            return []
        kept = bytes(self._bytes[-RING_BYTES:])
        if self._is_cut or len(self._bytes) > RING_BYTES:
            kept = self._without_half(kept)
        lines = [line for line in self._masked(kept).splitlines() if line.strip()]
        return [without_credentials(_printable(line)) for line in lines[-count:]]

    def printable(self, line: bytes) -> str:
        """Any line of the process, safe to log and to show."""
        return without_credentials(_printable(self._masked(line)))

    @property
    def _secrets(self) -> list[bytes]:
        """Longest first: a value may be part of another one."""
        values = {value.encode("utf-8", "surrogateescape") for value in self.secret()}
        return sorted((value for value in values if len(value) >= MASKED_FROM), key=len, reverse=True)

    def _masked(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, MASK)
        return data

    def _without_half(self, kept: bytes) -> bytes:
        """Drops the first, incomplete line, and masks the rest of a secret whose beginning is gone already."""
        for secret in self._secrets:
            half = next((at for at in range(1, len(secret)) if kept.startswith(secret[at:])), None)
            if half is not None:
                kept = MASK + kept[len(secret) - half :]
                break
        _, _, rest = kept.partition(b"\n")
        return rest if rest.strip() else kept


def _printable(line: bytes) -> str:
    text = line[:LINE_BYTES].decode(errors="backslashreplace").translate(_ESCAPES)
    return text + " [...]" if len(line) > LINE_BYTES else text


logger = logging.getLogger(__name__)

LOGGED_LINES = 10  # of a process's stdout: a banner is short, and what follows it says the same
MINUTE_S = 60.0
STDERR_LINES_PER_S = 100


@dataclass(slots=True, eq=False)
class StdoutNoise:
    """Logs the first lines for debugging; ends a process that writes more than `_per_minute`, which no banner does."""

    _per_minute: int
    _show: Callable[[bytes], str]
    _kill: Callable[[str], None]
    _lines: int = 0
    _in_minute: int = 0
    _since: float = 0.0

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


@dataclass(slots=True, eq=False)
class StderrLog:
    """Writes stderr to the log for debugging, STDERR_LINES_PER_S at most, then how many were left out."""

    _show: Callable[[bytes], str]
    _lines: LineBuffer = field(default_factory=partial(LineBuffer, LINE_BYTES))
    _since: float = 0.0
    _written: int = 0
    _left_out: int = 0

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
