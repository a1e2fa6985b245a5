"""Resumption: which streams of a session can be resumed, and who reads them. See docs/architecture.md, "Resuming"."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import anyio

from app.protocol.event_ids import STREAM_NAME_BYTES, EventId
from app.streams.journal import Journal
from app.streams.replay import ReplayLog
from app.streams.streams import SENT, Entry, EventStream, Fate, Item

# A POST's stream that has been silent for this long is ended by us, and the client polls for the rest with GET
# (2025-11-25, "polling"). None: never; keep-alive comments hold the connection instead.
POLL_AFTER_S: float | None = None
POLL_RETRY_MS = 1000


class Reader:
    """One response's hold on a stream: first what the log has after `start`, then what comes.

    `next` gives None at the end, or when a newer reader has taken the stream over.
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
        """The id of the message that `next` gave last; before the first, the place where it goes on."""
        return self._place.encode()

    @property
    def retry_ms(self) -> int | None:
        """After how long the client should come back, where we have ended the response and not the stream."""
        return self._stream.retry_ms if self._polls_in_ms is None else self._polls_in_ms

    async def next(self) -> Item | None:
        """The next message of the stream."""
        if self._stream.is_read_by(self):
            event = self._next_missed()
            if event is not None:
                self._recorder.took(event)
                self._stream.taken += 1
                self._place = event.id
                return event.item
        item = await self._stream.next(self) if self._patience_s is None else await self._next_in_time()
        if item is not None:
            self._place = self._recorder.place
        return item

    def _next_missed(self) -> Entry | None:
        """What is in the log only, if it comes before what waits in the stream."""
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
        """Ends the response and not the stream: the client may come back for the rest."""
        self._polls_in_ms = POLL_RETRY_MS
        self.leave()

    def leave(self) -> None:
        """The response is over. Idempotent; says nothing where another has taken the stream over."""
        if self._stream.detach(self):
            self._on_left(self._stream)


class StreamRecorder:
    """One stream's part of its session's log: names it, numbers its events. `collects` as in streams.Recorder.

    `number` is the last event's, `place` behind the last one that a connection has taken.
    """

    __slots__ = ("_owner", "collects", "name", "number", "place")

    def __init__(self, owner: "Resumption", name: str, *, collects: bool) -> None:
        self._owner, self.name, self.collects = owner, name, collects
        self.number, self.place = 0, EventId(name, 0)

    def record(self, entry: Entry) -> None:
        """Writes the stream's next event down."""
        self.number += 1
        entry.id, entry.at = EventId(self.name, self.number), time.monotonic()
        self._owner.append(entry)

    def took(self, entry: Entry) -> None:
        """A connection has taken the event, perhaps again."""
        entry.fate = SENT
        if entry.id.number > self.place.number:
            self.place = entry.id
            if self._owner.journal is not None:
                self._owner.journal.changed()

    def forget(self, entry: Entry) -> None:
        """The event has left the stream's queue, and nobody has seen it."""
        self._owner.remove(entry)

    def outdated(self, changes: Sequence[Entry]) -> Sequence[Entry]:
        """All, unless another node may have to know of them."""
        return changes if self._owner.journal is None else self._owner.journal.outdated(changes)

    def missed(self, stream: EventStream, place: EventId) -> deque[Entry]:
        """What the log has of this stream after that place, and its queue has not."""
        queued = stream.queued
        return deque(event for event in self._owner.log.after(place) if event.id.number not in queued)


class Resumption:
    """The streams of one session that have event ids, and the log of what was on them.

    `on_dropped` hears of what left the log although no connection has ever taken it, as in EventStream. A durable
    session's `journal` hears of everything.
    """

    __slots__ = ("_on_dropped", "_streams", "journal", "log")

    def __init__(self, on_dropped: Callable[[str, bytes | None], None], journal: Journal | None = None) -> None:
        self._on_dropped, self.journal = on_dropped, journal
        self._streams: dict[str, EventStream] = {}
        self.log = ReplayLog()
        if journal is not None:
            self.log.on_replaced = journal.replaced

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

        With `collects`, what comes while nobody reads goes into the log instead of the stream's own queue; it may
        be ended for polling (POLL_AFTER_S) if the client knows how: `may_poll`.
        """
        recorder = stream.recorder
        if not isinstance(recorder, StreamRecorder):
            recorder = self.name(stream, collects=collects)
        patience_s = POLL_AFTER_S if recorder.collects and may_poll else None
        return Reader(stream, recorder, start or recorder.place, on_left, patience_s)

    def name(self, stream: EventStream, *, collects: bool, name: str | None = None) -> StreamRecorder:
        """From now on this stream can be resumed, under a name that nobody can guess or the one it had."""
        recorder = StreamRecorder(self, name or secrets.token_hex(STREAM_NAME_BYTES), collects=collects)
        self._streams[recorder.name] = stream
        stream.resume_with(recorder)
        if self.journal is not None:
            self.journal.changed()
        return recorder

    def __iter__(self) -> Iterator[tuple[StreamRecorder, EventStream]]:
        for stream in self._streams.values():
            if isinstance(stream.recorder, StreamRecorder):
                yield stream.recorder, stream

    def find(self, place: EventId) -> EventStream | None:
        """The stream to go on with; None where nothing is left of it, or there never was such an event."""
        stream = self._streams.get(place.stream)
        if stream is None or not isinstance(stream.recorder, StreamRecorder):
            return None
        if place.number > stream.recorder.number:
            return None
        if stream.is_spent and not self.log.after(place):
            return None
        return stream

    def is_at_end(self, place: EventId) -> bool:
        """Whether nothing comes after this event: its stream has ended with it."""
        stream = self._streams.get(place.stream)
        recorder = None if stream is None else stream.recorder
        return isinstance(recorder, StreamRecorder) and recorder.number == place.number and self.find(place) is None

    def append(self, event: Entry) -> None:
        """Writes an event into the log, at the cost of older ones."""
        if self.journal is not None:
            self.journal.recorded(event)
        dropped = self.log.append(event)
        if dropped:
            self._forget(dropped, "replay_full")

    def remove(self, event: Entry) -> None:
        """Takes an event out that nobody will see."""
        if event.fate is not Fate.ALONE:
            self.log.remove(event)
            if self.journal is not None:
                self.journal.dropped(event)

    def trim(self, now: float) -> None:
        """Drops what is too old."""
        self._forget(self.log.trim(now), "replay_expired")

    def _forget(self, events: list[Entry], reason: str) -> None:
        for event in events:
            if self.journal is not None:
                self.journal.dropped(event)
            if event.fate is Fate.KEPT:
                self._on_dropped(reason, event.question)
            name = event.id.stream
            if name in self._streams and self._streams[name].is_spent and not self.log.holds(name):
                del self._streams[name]

    def __repr__(self) -> str:
        return f"<Resumption [{len(self._streams)} streams] {self.log!r}>"
