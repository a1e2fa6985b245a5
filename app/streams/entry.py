"""Entry: one message on a stream, and whether it was sent."""

from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from app.protocol.commands import Call, Failed
from app.protocol.event_ids import EventId

FAILED_SIZE = 256  # of a failure, for the limits

NOWHERE = EventId("", 0)  # of an entry on a stream that cannot be resumed

# What a stream yields: a message as bytes, or a failure that the transport turns into one.
Item = bytes | Failed


class Fate(Enum):
    """Where an entry of a stream that can be resumed is."""

    QUEUED = "queued"  # in the stream's queue and in the log
    ALONE = "alone"  # in the queue only: the log had no room for it
    KEPT = "kept"  # in the log only, and no connection has taken it
    SENT = "sent"  # a connection has taken it; whether it arrived is not known


QUEUED, SENT = Fate.QUEUED, Fate.SENT  # used for each event; looking a member up in an enum is slow


@dataclass(eq=False, slots=True)
class Entry:
    """One message. `question` and `coalesce` are those of ToStream; an answer has its `call` instead.

    On a stream that can be resumed it has a place (`id`), a time, a fate, a number in the session's journal once it was
    written there (`serial`, else 0), and whether the store has confirmed that (`is_stored`).
    """

    item: Item
    call: Call | None = None
    _: KW_ONLY
    coalesce: bytes | None = None
    question: bytes | None = None
    id: EventId = NOWHERE
    at: float = 0.0
    fate: Fate = QUEUED
    serial: int = field(default=0, init=False)
    is_stored: bool = field(default=False, init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.item) if isinstance(self.item, bytes) else FAILED_SIZE

    def replaced(self, item: bytes) -> None:
        """A newer message has taken its place in the queue."""
        self.item, self.size = item, len(item)

    def numbered(self, id: EventId, at: float) -> None:
        self.id, self.at = id, at

    def mark(self, fate: Fate) -> None:
        self.fate = fate

    def written(self, serial: int) -> None:
        self.serial = serial

    def stored(self) -> None:
        self.is_stored = True
