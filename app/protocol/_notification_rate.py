"""NotificationRate: how many notifications of a backend its client gets."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from app.protocol.commands import Call, Command, Dropped, Several, ToStream

PER_SECOND = 1000
MAX_KEPT, MAX_KEPT_BYTES = 256, 4096  # changes that are told later; any that is longer is dropped


@dataclass(slots=True, eq=False)
class NotificationRate:
    """Of one session. Above PER_SECOND the newest change of each thing (a list, a resource) is kept, and told in the
    next second, as its client would not look again without it; other notifications are dropped."""

    _since: float = 0.0
    _count: int = 0
    _kept: dict[bytes, tuple[ToStream, Call | None]] = field(default_factory=dict)

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
