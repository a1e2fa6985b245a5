"""ReplayLog: the events of one session's resumable streams, for clients that resume. Pure: no clock, no I/O."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from app.errors import ResponseTooLarge
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.sessions.streams.entry import FAILED_SIZE, Entry, Fate

MAX_EVENTS = 1000
MAX_BYTES = 4 << 20
MAX_OF_TENANT = 32 << 20  # in all of its sessions on a node: above, what gets an event keeps LEAST_BYTES
LEAST_BYTES = 256 << 10  # more than MAX_EVENTS failures have
MAX_AGE_S = 600.0


class Tenant(Protocol):
    """As TenantGate."""

    replay_bytes: int  # in all of its logs

    def count_replay(self, size: int) -> None: ...


class ReplayLog:
    """The events of all streams of a session, oldest first; bounded at MAX_EVENTS, MAX_BYTES, MAX_OF_TENANT and
    MAX_AGE_S. It counts for its tenant for as long as anything refers to it.

    At the limit the oldest event that is no answer goes. If only answers are left, an error replaces the oldest large
    one: for an answer that is missing the client would wait.
    """

    __slots__ = ("_counts", "_events", "_on_replaced", "_tenant", "bytes")

    def __init__(self, tenant: Tenant, on_replaced: Callable[[Entry, Entry], None] | None = None) -> None:
        """`on_replaced` is called with an answer and the error that has replaced it."""
        self._tenant, self._on_replaced = tenant, on_replaced
        self._events: deque[Entry] | None = None  # made when first needed: most listen streams carry nothing
        self._counts: dict[str, int] | None = None  # by stream
        self.bytes = 0

    def __del__(self) -> None:
        self._count(-self.bytes)

    def append(self, event: Entry) -> list[Entry]:
        """Adds an event; returns those that had to go for it."""
        if self._events is None or self._counts is None:
            self._events, self._counts = deque(), {}
        self._events.append(event)
        self._count(event.size)
        self._counts[event.id.stream] = self._counts.get(event.id.stream, 0) + 1
        return list(self._make_room()) if self._is_full() else []

    def after(self, event_id: EventId) -> list[Entry]:
        """The events of this stream after this one."""
        stream, number = event_id
        return [event for event in self._events or () if event.id.stream == stream and event.id.number > number]

    def holds(self, stream: str) -> bool:
        """Whether there is an event of this stream."""
        return stream in (self._counts or ())

    def trim(self, now: float) -> list[Entry]:
        """Removes and returns the events that are too old, answers included."""
        dropped = []
        while self._events and self._events[0].at + MAX_AGE_S < now:
            dropped.append(self.remove(self._events[0]))
        return dropped

    def remove(self, event: Entry) -> Entry:
        assert self._events is not None
        assert self._counts is not None
        if event is self._events[0]:
            self._events.popleft()
        else:
            self._events.remove(event)
        self._count(-event.size)
        if event.fate is Fate.QUEUED:
            event.mark(Fate.ALONE)
        stream = event.id.stream
        self._counts[stream] -= 1
        if not self._counts[stream]:
            del self._counts[stream]
        return event

    def _count(self, size: int) -> None:
        self.bytes += size
        self._tenant.count_replay(size)

    def _is_full(self) -> bool:
        most = MAX_BYTES if self._tenant.replay_bytes <= MAX_OF_TENANT else LEAST_BYTES
        return self.bytes > most or len(self) > MAX_EVENTS

    def _make_room(self) -> Iterator[Entry]:
        events = self._events
        assert events is not None
        while self._is_full():
            victim = next((event for event in events if event.call is None), None)
            if victim is not None:
                yield self.remove(victim)
            elif len(events) > MAX_EVENTS:
                yield self.remove(events[0])
            else:
                self._shrink(next(index for index, event in enumerate(events) if event.size > FAILED_SIZE))

    def _shrink(self, index: int) -> None:
        """Puts an error in an answer's place; the answer itself stays, as it may still be in its stream's queue."""
        assert self._events is not None
        answer = self._events[index]
        assert answer.call is not None
        too_large = ResponseTooLarge("the answer was too large to be kept").after_sending()
        fate = Fate.KEPT if answer.fate is Fate.KEPT else Fate.SENT
        error = Entry(Failed(answer.call, too_large), answer.call, id=answer.id, at=answer.at, fate=fate)
        if answer.fate is not Fate.SENT:
            answer.mark(Fate.ALONE)
        self._events[index] = error
        self._count(error.size - answer.size)
        if self._on_replaced is not None:
            self._on_replaced(answer, error)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._events or ())

    def __len__(self) -> int:
        return len(self._events or ())
