"""Flood: notifications of one backend that come faster than its client may get them (NotificationRate), known by their
first bytes: dropping one takes less time than reading it as a message."""

import re

from app.protocol.calls.notification_rate import MAX_KEPT, MAX_KEPT_BYTES, PER_SECOND

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
    """Of one process, or one session with a server elsewhere. A plain call costs a comparison.

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
