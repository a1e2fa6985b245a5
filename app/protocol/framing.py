"""LineBuffer: bytes in, whole lines out, with a limit. Flood: lines that are too many to be read as messages."""

import re

from app.protocol._notification_rate import MAX_KEPT, MAX_KEPT_BYTES, PER_SECOND
from app.protocol.tolerant import BYTE_ORDER_MARK

DEFAULT_LIMIT_BYTES = 16 << 20
END_BYTES = 4096  # kept of either end of a line over the limit


class LineBuffer:
    """A line longer than `limit_bytes` is not kept. `overlong` gets two entries for it: (first 4 KiB, b"") when it
    exceeds the limit, and (first 4 KiB, last 4 KiB) at its end. `discarded_bytes` is its length so far, or 0."""

    __slots__ = ("_beginning", "_end", "_limit", "_partial", "discarded_bytes", "overlong")

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._partial = bytearray()  # an incomplete line
        self.discarded_bytes = 0
        self._beginning = self._end = b""  # of the overlong line
        self.overlong: list[tuple[bytes, bytes]] = []

    @property
    def beginning(self) -> bytes:
        """The first 4 KiB of the incomplete line, if there is one."""
        return self._beginning if self.discarded_bytes else bytes(self._partial[:END_BYTES])

    def take_overlong(self) -> list[tuple[bytes, bytes]]:
        overlong, self.overlong = self.overlong, []
        return overlong

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without LF or CR LF; blank ones are skipped."""
        if self._partial or self.discarded_bytes:
            return self._continue(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if len(data) > self._limit:
            lines = [line for line in lines if self._fits(line)]
        if rest:
            self._begin(rest)
        return _clean(lines, data)

    def _continue(self, data: bytes) -> list[bytes]:
        """Searches only the new bytes: a long line in many pieces takes linear time."""
        end = data.find(b"\n")
        if end < 0:
            self._begin(data)
            return []
        if self.discarded_bytes:
            self.discarded_bytes = 0
            self.overlong.append((self._beginning, (self._end + data[:end])[-END_BYTES:]))
            return self.feed(data[end + 1 :])
        self._partial += data[:end]
        line = bytes(self._partial)
        self._partial = bytearray()  # clear() would keep the memory of a large line
        first = _clean([line], line) if self._fits(line) else []
        return first + self.feed(data[end + 1 :])

    def _begin(self, data: bytes) -> None:
        """Keeps an incomplete line, or only its ends if it is too long."""
        if self.discarded_bytes:
            self.discarded_bytes += len(data)
            self._end = (self._end + data[-END_BYTES:])[-END_BYTES:]
        elif len(self._partial) + len(data) <= self._limit:
            self._partial += data
        else:
            self.discarded_bytes = len(self._partial) + len(data)
            self._beginning = bytes(self._partial[:END_BYTES] + data[:END_BYTES])[:END_BYTES]
            self._end = bytes(self._partial[-END_BYTES:] + data[-END_BYTES:])[-END_BYTES:]
            self.overlong.append((self._beginning, b""))
            self._partial = bytearray()

    def _fits(self, line: bytes) -> bool:
        if len(line) <= self._limit:
            return True
        self.overlong += [(line[:END_BYTES], b""), (line[:END_BYTES], line[-END_BYTES:])]
        return False


def _clean(lines: list[bytes], data: bytes) -> list[bytes]:
    if b"\r" in data:
        lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
    # A mark that some programs on Windows write is ignored (RFC 8259 §8.1). Comparing a byte costs less than a call.
    return [
        line if line[0] != BYTE_ORDER_MARK[0] else line.removeprefix(BYTE_ORDER_MARK)
        for line in lines
        if line and not line.isspace()
    ]


RELEASE_S = 0.25  # what is held is told so much later at most

_head = re.compile(
    rb'\s*+\{\s*+(?:"jsonrpc"\s*+:\s*+"2\.0"\s*+,\s*+)?+"method"\s*+:\s*+"notifications/([A-Za-z_/]{1,100}+)"'
).match
_token = re.compile(rb'"progressToken"\s*+:\s*+("[^"\\]{0,256}+"|[^\s",}]{1,40}+)').search
_CHANGES = frozenset({
    b"tools/list_changed", b"prompts/list_changed", b"resources/list_changed", b"resources/updated",
})  # fmt: skip
_STATES = (b"cancelled", b"tasks", b"subscriptions/", b"elicitation/")  # each is needed: questions, tasks, streams


class Flood:
    """Notifications of one process, or of one session with a server elsewhere, known by their first bytes: dropping one
    takes less time than reading it as a message. A plain call costs a comparison.

    Above PER_SECOND lines in a second notifications are looked for; above as many of those they are dropped, but the
    newest progress of each call and each change are `held`, to be told after RELEASE_S: they put off deadlines, and
    nobody would look again without them. `dropped`: so many since `take_dropped`.
    """

    __slots__ = ("_count", "_lines", "_since", "dropped", "held")

    def __init__(self) -> None:
        self._since, self._lines, self._count = 0.0, 0, 0
        self.held: dict[bytes, bytes] = {}
        self.dropped = 0

    def takes(self, line: bytes, now: float) -> bool:
        """Whether this line is not to be handed over: it is dropped, or held."""
        return len(self.passed([line], now)) == 0

    def passed(self, lines: list[bytes], now: float) -> list[bytes]:
        """Those that are to be handed over."""
        if now - self._since >= 1.0:
            self._since, self._lines, self._count = now, 0, 0
        self._lines += len(lines)
        if self._lines <= PER_SECOND:
            return lines
        return [line for line in lines if not self._is_too_much(line)]

    def take_held(self) -> list[bytes]:
        """What has been held, which is forgotten."""
        held, self.held = list(self.held.values()), {}
        return held

    def take_dropped(self) -> int:
        """How many were dropped since the last time."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def _is_too_much(self, line: bytes) -> bool:
        head = _head(line)
        if head is None or head[1].startswith(_STATES):
            return False
        self._count += 1
        if self._count <= PER_SECOND:
            return False
        key = self._key(head[1], line)
        if key and (len(line) > MAX_KEPT_BYTES or (key not in self.held and len(self.held) >= MAX_KEPT)):
            return False  # the session decides
        if not key or key in self.held:
            self.dropped += 1
        if key:
            self.held[key] = line
        return True

    def _key(self, method: bytes, line: bytes) -> bytes:
        """What the newest is held of; empty for what nobody misses."""
        if method in _CHANGES:
            return line
        token = _token(line) if method == b"progress" else None
        return b"" if token is None else token[1]


def spared_bytes(dropped: int) -> int:
    """How many of so many bytes that were dropped unread do not count as output: dropping is so much faster."""
    return dropped * 3 // 4
