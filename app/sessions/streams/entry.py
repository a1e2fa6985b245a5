"""Entry: one message on a stream, and whether it was sent."""

from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from app.protocol.commands import Answer, Call, Failed
from app.protocol.event_ids import EventId

FAILED_SIZE = 256  # of a failure, for the limits

NOWHERE = EventId("", 0)  # of an entry on a stream that cannot be resumed

# What a stream yields: a message as bytes, an answer with a large result, or a failure that the transport writes.
Item = bytes | Answer | Failed


class Fate(Enum):
    """Where an entry of a stream that can be resumed is."""

    QUEUED = "queued"  # in the stream's queue and in the log
    ALONE = "alone"  # in the queue only: the log had no room for it
    KEPT = "kept"  # in the log only, and no connection has taken it
    SENT = "sent"  # a connection has taken it; whether it arrived is not known


QUEUED, ALONE, KEPT, SENT = (
    Fate.QUEUED,
    Fate.ALONE,
    Fate.KEPT,
    Fate.SENT,
)  # used for each event; looking a member up in an enum is slow


def bytes_of(item: bytes | Answer) -> bytes:
    """The JSON for the client."""
    return item.payload() if isinstance(item, Answer) else item


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
        if isinstance(self.item, bytes):
            self.size = len(self.item)
        else:
            self.size = FAILED_SIZE if isinstance(self.item, Failed) else self.item.size

    def replaced(self, item: bytes) -> None:
        """A newer message has taken its place in the queue."""
        self.item, self.size = item, len(item)

    def numbered(self, id: EventId, at: float) -> None:
        self.id, self.at = id, at

    def mark(self, fate: Fate) -> None:
        """A large result that is in the log only no longer counts as unread: the log has a limit of its own."""
        if type(self.item) is Answer and fate in (KEPT, SENT) and self.fate is not ALONE:
            self.item = self.item.payload()
        self.fate = fate

    def written(self, serial: int) -> None:
        self.serial = serial

    def stored(self) -> None:
        self.is_stored = True
