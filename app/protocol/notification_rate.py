"""How many notifications of a backend its client gets (NotificationRate), and a Flood of more, which is not read."""

import re
from collections.abc import Container, Iterator

from app.protocol.commands import Call, Command, Dropped, Several, ToStream

PER_SECOND = 1000
MAX_KEPT, MAX_KEPT_BYTES = 256, 4096  # changes that are told later; any that is longer is dropped


class NotificationRate:
    """Of one session. Above PER_SECOND the newest change of each thing (a list, a resource) is kept, and told in the
    next second, as its client would not look again without it; other notifications are dropped."""

    __slots__ = ("_count", "_kept", "_since")

    def __init__(self) -> None:
        self._since, self._count = 0.0, 0
        self._kept: dict[bytes, tuple[ToStream, Call | None]] = {}

    @property
    def holds_back(self) -> bool:
        """Whether changes wait for the next second."""
        return bool(self._kept)

    def admit(self, message: ToStream, now: float, change: bytes = b"", call: Call | None = None) -> Command:
        """The message, if it may be told now. `change` names the thing that has changed; `call` is the one whose stream
        the message is for, if its end is the end of the stream."""
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= PER_SECOND:
            if self._kept:
                self._kept.pop(change, None)
            return message
        is_known = change in self._kept
        if not change or len(message.payload) > MAX_KEPT_BYTES or (len(self._kept) >= MAX_KEPT and not is_known):
            return Dropped("notification_rate")
        self._kept[change] = message, call
        return Dropped("notification_rate") if is_known else Several([])

    def due(self, now: float, running: Container[bytes]) -> Iterator[ToStream]:
        """The changes that were kept, if their time has come; without those for calls that run no more."""
        if not self._kept or now - self._since < 1.0:
            return
        kept, self._kept = self._kept, {}
        for message, call in kept.values():
            if call is None or call.gateway_id in running:
                yield message


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
