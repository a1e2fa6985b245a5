"""ReplayLog: what the resumable streams of one session have sent, or would have. Pure: no clock, no I/O."""

from collections import deque
from collections.abc import Iterator

from app.errors import ResponseTooLarge
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.sessions.streams import FAILED_SIZE, Entry

MAX_EVENTS = 1000
MAX_BYTES = 4 << 20
MAX_AGE_S = 600.0


class Recorded:
    """One event in the log. `sent` once a connection has taken it, which does not say that it arrived."""

    __slots__ = ("at", "entry", "id", "sent")

    def __init__(self, event_id: EventId, entry: Entry, at: float, *, sent: bool) -> None:
        self.id, self.entry, self.at, self.sent = event_id, entry, at, sent


class ReplayLog:
    """The events of all streams of a session, oldest first; bounded at MAX_EVENTS, MAX_BYTES and MAX_AGE_S.

    At the limit the oldest event that is no answer goes. With only answers left, the oldest large one is
    replaced by an error that says so, which the client can understand; a lost answer it would wait for.
    """

    __slots__ = ("_counts", "_events", "bytes")

    def __init__(self) -> None:
        self._events: deque[Recorded] | None = None  # made when first needed: most listen streams carry nothing
        self._counts: dict[str, int] = {}  # by stream
        self.bytes = 0

    def append(self, event: Recorded) -> list[Recorded]:
        """Writes an event down; returns what had to go for it."""
        if self._events is None:
            self._events = deque()
        self._events.append(event)
        self.bytes += event.entry.size
        self._counts[event.id.stream] = self._counts.get(event.id.stream, 0) + 1
        return list(self._make_room())

    def after(self, event_id: EventId) -> list[Recorded]:
        """What there is of this stream, and of no other, after this event."""
        stream, number = event_id
        return [event for event in self._events or () if event.id.stream == stream and event.id.number > number]

    def holds(self, stream: str) -> bool:
        """Whether there is anything of this stream."""
        return stream in self._counts

    def trim(self, now: float) -> list[Recorded]:
        """Drops what is too old, answers included; returns it."""
        dropped = []
        while self._events and self._events[0].at + MAX_AGE_S < now:
            dropped.append(self._remove(self._events[0]))
        return dropped

    def _make_room(self) -> Iterator[Recorded]:
        events = self._events
        assert events is not None
        while len(events) > MAX_EVENTS or self.bytes > MAX_BYTES:
            victim = next((event for event in events if event.entry.call is None), None)
            if victim is not None:
                yield self._remove(victim)
            elif len(events) > MAX_EVENTS:
                yield self._remove(events[0])
            else:
                self._shrink(next(event.entry for event in events if event.entry.size > FAILED_SIZE))

    def _shrink(self, answer: Entry) -> None:
        assert answer.call is not None
        self.bytes += FAILED_SIZE - answer.size
        answer.item, answer.size = (
            Failed(answer.call, ResponseTooLarge("the answer was too large to be kept")),
            FAILED_SIZE,
        )

    def _remove(self, event: Recorded) -> Recorded:
        assert self._events is not None
        if event is self._events[0]:
            self._events.popleft()
        else:
            self._events.remove(event)
        self.bytes -= event.entry.size
        stream = event.id.stream
        self._counts[stream] -= 1
        if not self._counts[stream]:
            del self._counts[stream]
        return event

    def __len__(self) -> int:
        return len(self._events or ())

    def __repr__(self) -> str:
        return f"<ReplayLog [{len(self)} events of {len(self._counts)} streams, {self.bytes} bytes]>"
