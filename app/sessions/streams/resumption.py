"""Resumption: the streams of a session that can be resumed, and their readers. See docs/architecture.md, "Resuming"."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import anyio

from app.protocol.event_ids import STREAM_NAME_BYTES, EventId
from app.sessions.streams._replay import ReplayLog, Tenant
from app.sessions.streams.entry import SENT, Entry, Fate, Item
from app.sessions.streams.journal import Journal
from app.sessions.streams.streams import EventStream

# The gateway ends a POST's stream that has been silent for this long, and the client polls for the rest with GET
# (2025-11-25, "polling"). None: never; keep-alive comments hold the connection instead.
POLL_AFTER_S: float | None = None
POLL_RETRY_MS = 1000


class Reader:
    """One response that reads a stream: first what the log has after `start`, then what comes.

    `next` returns None at the end, or when a newer reader has taken the stream.
    """

    __slots__ = ("_backlog", "_on_left", "_patience_s", "_place", "_polls_in_ms", "_recorder", "_stream")

    def __init__(
        self,
        stream: EventStream,
        recorder: "StreamRecorder",
        start: EventId,
        on_left: Callable[[EventStream], None],
        patience_s: float | None,
    ) -> None:
        self._stream, self._recorder, self._place, self._on_left = stream, recorder, start, on_left
        stream.skip(start.number)
        self._backlog = recorder.missed(stream, start)
        self._patience_s = patience_s
        self._polls_in_ms: int | None = None
        stream.attach(self)

    @property
    def event_id(self) -> bytes:
        """The id of the message that `next` returned last; before the first, the place where it goes on."""
        return self._place.encode()

    @property
    def retry_ms(self) -> int | None:
        """When the client should come back, if the gateway has ended the response on purpose."""
        return self._stream.retry_ms if self._polls_in_ms is None else self._polls_in_ms

    async def next(self) -> Item | None:
        if self._stream.is_read_by(self):
            event = self._next_missed()
            if event is not None:
                self._recorder.took(event)
                self._stream.took_from_log()
                self._place = event.id
                return event.item
        item = await self._stream.next(self) if self._patience_s is None else await self._next_in_time()
        if item is not None:
            self._place = self._recorder.place
        return item

    def _next_missed(self) -> Entry | None:
        """The next event from the log, if it comes before those in the stream's queue."""
        if self._stream.is_behind and not self._backlog:
            self._backlog = self._recorder.missed(self._stream, self._place)
            self._stream.catch_up()
        if not self._backlog:
            return None
        queued_from = self._stream.queued_from
        is_next = queued_from is None or self._backlog[0].id.number < queued_from
        return self._backlog.popleft() if is_next else None

    async def _next_in_time(self) -> Item | None:
        with anyio.move_on_after(self._patience_s) as patience:
            return await self._stream.next(self)
        if patience.cancelled_caught:
            self._polls_in_ms = POLL_RETRY_MS
        return None

    def end(self) -> None:
        """Ends the response but not the stream: the client may come back for the rest."""
        self._polls_in_ms = POLL_RETRY_MS
        self.leave()

    def leave(self) -> None:
        """The response is over. Idempotent; does nothing if another reader has taken the stream."""
        if self._stream.detach(self):
            self._on_left(self._stream)


class StreamRecorder:
    """Numbers the events of one stream, and logs them. Fulfils streams.Recorder.

    `number` is the last event's; `place` is that of the last event that a connection has taken.
    """

    __slots__ = ("_owner", "collects", "name", "number", "place")

    def __init__(self, owner: "Resumption", name: str, *, collects: bool) -> None:
        self._owner, self.name, self.collects = owner, name, collects
        self.number, self.place = 0, EventId(name, 0)

    def goes_on(self, number: int, taken: int) -> None:
        """Continues the stream of another node: its last event, and the last that a connection has taken."""
        self.number, self.place = number, EventId(self.name, taken)

    def skip_to(self, number: int) -> None:
        """The next event gets a later number than this."""
        self.number = max(self.number, number)

    def record(self, entry: Entry) -> None:
        self.number += 1
        entry.numbered(EventId(self.name, self.number), time.monotonic())
        self._owner.append(entry)

    def took(self, entry: Entry) -> None:
        entry.mark(SENT)
        if entry.id.number > self.place.number:
            self.place = entry.id
            if self._owner.journal is not None:
                self._owner.journal.changed()

    def forget(self, entry: Entry) -> None:
        self._owner.remove(entry)

    def outdated(self, changes: Sequence[Entry]) -> Sequence[Entry]:
        return changes if self._owner.journal is None else self._owner.journal.outdated(changes)

    def missed(self, stream: EventStream, place: EventId) -> deque[Entry]:
        """The events of this stream after that place that are in the log only."""
        queued = stream.queued
        return deque(event for event in self._owner.log.after(place) if event.id.number not in queued)


class Resumption:
    """The streams of one session that have event ids, and the log of their events.

    `on_dropped` is called, as in EventStream, for events that leave the log before a connection has taken them. A
    durable session has a `journal` of all events.
    """

    __slots__ = ("_on_dropped", "_streams", "journal", "log")

    def __init__(
        self, tenant: Tenant, on_dropped: Callable[[str, bytes | None], None], journal: Journal | None = None
    ) -> None:
        self._on_dropped, self.journal = on_dropped, journal
        self._streams: dict[str, tuple[StreamRecorder, EventStream]] = {}  # by name
        self.log = ReplayLog(tenant, None if journal is None else journal.replaced)

    def read(
        self,
        stream: EventStream,
        start: EventId | None,
        on_left: Callable[[EventStream], None],
        *,
        collects: bool,
        may_poll: bool,
    ) -> Reader:
        """A reader of the stream, from `start` or else from where the last one left it.

        `collects`: see Recorder. `may_poll`: its client understands a response that ends for polling (POLL_AFTER_S).
        """
        recorder = stream.recorder
        if not isinstance(recorder, StreamRecorder):
            recorder = self.name(stream, collects=collects)
        patience_s = POLL_AFTER_S if recorder.collects and may_poll else None
        return Reader(stream, recorder, start or recorder.place, on_left, patience_s)

    def name(self, stream: EventStream, *, collects: bool, name: str | None = None) -> StreamRecorder:
        """From now on this stream can be resumed, under this name or one that nobody can guess."""
        recorder = StreamRecorder(self, name or secrets.token_hex(STREAM_NAME_BYTES), collects=collects)
        self._streams[recorder.name] = recorder, stream
        stream.resume_with(recorder)
        if self.journal is not None:
            self.journal.changed()
        return recorder

    def __iter__(self) -> Iterator[tuple[StreamRecorder, EventStream]]:
        return iter(self._streams.values())

    def find(self, place: EventId) -> EventStream | None:
        """The stream to resume; None if nothing is left of it, or there never was such an event."""
        if place.stream not in self._streams:
            return None
        recorder, stream = self._streams[place.stream]
        if place.number > recorder.number or (stream.is_spent and not self.log.after(place)):
            return None
        return stream

    def is_at_end(self, place: EventId) -> bool:
        """Whether this was the last event of a stream that has ended."""
        found = self._streams.get(place.stream)
        return found is not None and found[0].number == place.number and self.find(place) is None

    def append(self, event: Entry) -> None:
        """Adds an event to the log; older ones may have to go."""
        if self.journal is not None:
            self.journal.recorded(event)
        dropped = self.log.append(event)
        if dropped:
            self._forget(dropped, "replay_full")

    def remove(self, event: Entry) -> None:
        """Removes an event that will not be sent."""
        if event.fate is not Fate.ALONE:
            self.log.remove(event)
            if self.journal is not None:
                self.journal.dropped(event)

    def trim(self, now: float) -> None:
        self._forget(self.log.trim(now), "replay_expired")

    def _forget(self, events: list[Entry], reason: str) -> None:
        for event in events:
            if self.journal is not None:
                self.journal.dropped(event)
            if event.fate is Fate.KEPT:
                self._on_dropped(reason, event.question)
            name = event.id.stream
            if name in self._streams and self._streams[name][1].is_spent and not self.log.holds(name):
                del self._streams[name]
