"""Where messages for a client wait until an HTTP response carries them: Reply for a POST, EventStream for a stream."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from app.protocol.commands import Answer, Call, Failed, ToStream
from app.protocol.event_ids import EventId

MAX_EVENTS = 256
MAX_BYTES = 1 << 20
FAILED_SIZE = 256  # what a failure counts as

NOWHERE = EventId("", 0)  # the place of what is on no stream that can be resumed

# What a stream yields: a message as bytes, or a failure that the transport turns into one.
Item = bytes | Failed


class Fate(Enum):
    """What has become of a message of a stream that can be resumed."""

    QUEUED = "queued"  # waits in the stream for a connection; the log has it too
    ALONE = "alone"  # the same, but the log had no room for it
    KEPT = "kept"  # only the log has it, and no connection has taken it
    SENT = "sent"  # a connection has taken it, which does not say that it arrived


QUEUED, SENT = Fate.QUEUED, Fate.SENT  # on the path of each event, where looking up a member is what shows


class Entry:
    """One message. `question` and `coalesce` are those of ToStream; an answer has its `call` instead.

    Where the stream can be resumed it has a place in it (`id`), a time, a fate, its place in the session's journal
    once it was written there (`serial`), and whether the store has said that it has it (`is_stored`).
    """

    __slots__ = ("at", "call", "coalesce", "fate", "id", "is_stored", "item", "question", "serial", "size")

    def __init__(
        self, item: Item, call: Call | None = None, *, coalesce: bytes | None = None, question: bytes | None = None
    ) -> None:
        self.item, self.call, self.coalesce, self.question = item, call, coalesce, question
        self.size = len(item) if isinstance(item, bytes) else FAILED_SIZE
        self.id = NOWHERE
        self.at, self.serial, self.is_stored, self.fate = 0.0, 0, False, QUEUED


class Recorder(Protocol):
    """Numbers what a stream sends and writes it down, so that it can be sent again."""

    collects: bool  # whether what nobody waits for is only written down, instead of queued

    def record(self, entry: Entry) -> None:
        """Takes the stream's next event."""

    def took(self, entry: Entry) -> None:
        """A connection has taken the event."""

    def forget(self, entry: Entry) -> None:
        """The event has left the stream's queue, and nobody has seen it."""

    def outdated(self, changes: Sequence[Entry]) -> Sequence[Entry]:
        """Those of these changes of one thing, oldest first, that need not be sent when another one comes."""


class EventStream:
    """Messages in order for one reader at a time; bounded at MAX_EVENTS and MAX_BYTES.

    At the limit with a reader attached, `on_pressure(True)` asks the owner to stop reading the backend and
    nothing is lost; without a reader the oldest message that is no answer is dropped and counted. The owner
    ends the stream; a reader that leaves only detaches, and one that takes nothing can be made to `fall_behind`.
    `taken` counts what readers have taken.

    A stream that can be resumed has a `recorder`, which gets every message when it comes. `retry_ms` is set by an
    owner that ends the stream though the client may come back for more.
    """

    __slots__ = (
        "_entries", "_is_full", "_on_dropped", "_on_pressure", "_reader", "_waiter", "attached", "bytes", "ended",
        "is_behind", "recorder", "retry_ms", "taken",
    )  # fmt: skip

    def __init__(self, on_pressure: Callable[[bool], None], on_dropped: Callable[[str, bytes | None], None]) -> None:
        self._on_pressure = on_pressure
        self._on_dropped = on_dropped  # hears why, and the question's id where it was one
        self._entries: deque[Entry] | None = None  # made when first needed: most sessions never queue
        self._waiter: asyncio.Future[None] | None = None
        self._reader: object = None
        self._is_full = False
        self.bytes = self.taken = 0
        self.attached = self.ended = False
        self.is_behind = False  # its reader; a recorder has what is missing here
        self.recorder: Recorder | None = None
        self.retry_ms: int | None = None

    @property
    def event_id(self) -> bytes | None:
        """None: only what a Reader reads has ids."""
        return None

    @property
    def is_full(self) -> bool:
        """Whether it holds the backend up, until its reader has taken something."""
        return self._is_full

    @property
    def is_spent(self) -> bool:
        """Whether it has ended and nothing waits in it."""
        return self.ended and not self._entries

    @property
    def queued_from(self) -> int | None:
        """The number of the first event that waits in it; None where none does."""
        return self._entries[0].id.number if self._entries else None

    @property
    def queued(self) -> set[int]:
        """The numbers of the events that wait in it."""
        return {entry.id.number for entry in self._entries or ()}

    def is_read_by(self, reader: object) -> bool:
        """Whether this reader has the stream."""
        return reader is self._reader

    def push(self, command: ToStream) -> None:
        """Queues a notification or a question."""
        if command.coalesce is not None and self._replace(command):
            return
        self._append(Entry(command.payload, coalesce=command.coalesce, question=command.question))

    def answer(self, outcome: Answer | Failed) -> None:
        """Queues an answer; it is never dropped."""
        item: Item = outcome.payload() if isinstance(outcome, Answer) else outcome
        self._append(Entry(item, outcome.call))

    def resume_with(self, recorder: Recorder) -> None:
        """From now on the stream can be resumed; what waits in it gets its numbers."""
        self.recorder = recorder
        for entry in self._entries or ():
            recorder.record(entry)

    def queue(self, entry: Entry) -> None:
        """Puts a recorded event back, in a session that was rebuilt."""
        if self._entries is None:
            self._entries = deque()
        self._entries.append(entry)
        self.bytes += entry.size

    def skip(self, number: int) -> None:
        """Takes out what waits up to this number: the client says that it has it."""
        while self._entries and self._entries[0].id.number <= number:
            self._take()

    def end(self) -> None:
        """Lets the reader finish after what is queued. Idempotent."""
        self.ended = True
        self._set_full(False)
        self._wake()

    def attach(self, reader: object = None) -> None:
        """A reader takes the stream; one that has it loses it, and hears so from `next`."""
        self.attached, self._reader = True, reader
        self._wake()
        self.catch_up()

    def fall_behind(self) -> None:
        """The reader takes nothing, and holds the backend up no longer: until `catch_up` what is no answer goes into
        the log only, or where there is none, into the queue at the cost of the oldest."""
        self.is_behind = True
        if self.recorder is not None and self.recorder.collects:
            self._leave_to_log([entry for entry in self._entries or () if entry.call is not None])
        else:
            self._drop_oldest()
        self._set_full(False)

    def catch_up(self) -> None:
        """The reader takes something again, and has what is only in the log."""
        self.is_behind = False
        self._set_full(self._over_limit() and not self.ended)

    def detach(self, reader: object = None) -> bool:
        """The reader has left; what it has not read stays. False where it had lost the stream to another."""
        if reader is not self._reader:
            return False
        self.attached, self._reader = False, None
        self._wake()  # one that is made to leave may wait
        self._set_full(False)
        if self.recorder is not None and self.recorder.collects:
            self._leave_to_log([])
        return True

    async def next(self, reader: object = None) -> Item | None:
        """The next message; None once the stream has ended and is empty, or another reader has it."""
        while reader is self._reader and not self._entries:
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if reader is not self._reader:
            return None
        item = self._take().item
        if self._is_full and not self._over_limit():
            self._set_full(False)
        elif self.is_behind and self.recorder is None:
            self.catch_up()
        return item

    def take_all(self) -> list[Item]:
        """What waits, at once."""
        return [self._take().item for _ in range(len(self._entries or ()))]

    def _take(self) -> Entry:
        assert self._entries is not None
        entry = self._entries.popleft()
        self.bytes -= entry.size
        self.taken += 1
        if self.recorder is not None:
            self.recorder.took(entry)
        return entry

    def _leave_to_log(self, staying: Sequence[Entry]) -> None:
        for entry in self._entries or ():
            if entry in staying:
                continue
            if entry.fate is Fate.ALONE:
                self._on_dropped("replay_full", entry.question)
            entry.fate = Fate.KEPT
        self._entries = deque(staying) if staying else None
        self.bytes = sum(entry.size for entry in staying)

    def _append(self, entry: Entry) -> None:
        if self.ended:
            self._on_dropped("client_gone", entry.question)
            return
        if self.recorder is not None:
            if self.recorder.collects and (not self.attached or self._is_left_out(entry)):
                entry.fate = Fate.KEPT
                self.recorder.record(entry)
                return
            self.recorder.record(entry)
        if self._entries is None:
            self._entries = deque()
        self._entries.append(entry)
        self.bytes += entry.size
        if self._over_limit():
            if self.attached and not self.is_behind:
                self._set_full(True)
            else:
                self._drop_oldest()
        self._wake()

    def _is_left_out(self, entry: Entry) -> bool:
        """Whether a reader that is behind finds this in the log only: all but answers, one of any size or several."""
        return self.is_behind and (entry.call is None or (bool(self._entries) and self.bytes + entry.size > MAX_BYTES))

    def _replace(self, command: ToStream) -> bool:
        """Whether the message has taken the place of another; an event does not get another message, but goes."""
        if self.recorder is not None:
            changes = [entry for entry in self._entries or () if entry.coalesce == command.coalesce]
            for entry in self.recorder.outdated(changes):
                self._remove(entry)
            return False
        for entry in self._entries or ():
            if entry.coalesce == command.coalesce:
                self.bytes += len(command.payload) - entry.size
                entry.item, entry.size = command.payload, len(command.payload)
                return True
        return False

    def _remove(self, entry: Entry) -> None:
        assert self._entries is not None
        self._entries.remove(entry)
        self.bytes -= entry.size
        if self.recorder is not None:
            self.recorder.forget(entry)

    def _drop_oldest(self) -> None:
        assert self._entries is not None
        while self._over_limit():
            victim = next((entry for entry in self._entries if entry.call is None), None)
            if victim is None:
                return
            self._remove(victim)
            self._on_dropped("stream_full", victim.question)

    def _over_limit(self) -> bool:
        return self.bytes > MAX_BYTES or len(self._entries or ()) > MAX_EVENTS

    def _set_full(self, full: bool) -> None:
        if full != self._is_full:
            self._is_full = full
            self._on_pressure(full)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "attached" if self.attached else "waiting"
        return f"<EventStream {state} [{len(self._entries or ())} events, {self.bytes} bytes]>"


class Sink(Protocol):
    """Where a call's messages go; what a Session needs of it."""

    may_stream: bool  # whether it takes more than the answer
    expires_at: float | None  # when the credential ends that the call came with, in Unix time

    @property
    def stream(self) -> EventStream | None:
        """What it has become, if it is no single answer any more."""

    @property
    def is_read(self) -> bool:
        """Whether somebody is there to answer what is asked on it."""

    def answer(self, outcome: Answer | Failed) -> None:
        """The call's outcome."""

    def push(self, command: ToStream) -> None:
        """A notification or a question that belongs to the call."""

    def become_stream(self) -> object:
        """The call has been silent for long: from now on its connection is kept alive."""


class Reply:
    """The answer to one POST: one JSON body, unless something else comes first or it takes long; then a stream.

    `outcome` is done when the head can be sent: with None once `stream` carries everything, else `outcomes`
    holds what every request of the POST came to. Whoever sends that takes it: an outcome names its call, and that this
    reply, which would be a circle.
    """

    __slots__ = ("_expected", "_make_stream", "expires_at", "failure", "may_stream", "outcome", "outcomes", "stream")

    def __init__(
        self,
        expected: int,
        *,
        may_stream: bool,
        make_stream: Callable[[], EventStream],
        expires_at: float | None = None,
    ) -> None:
        self._expected = expected
        self._make_stream = make_stream
        self.may_stream, self.expires_at = may_stream, expires_at
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcomes: list[Answer | Failed] = []
        self.stream: EventStream | None = None
        self.failure = ""  # of an answer that is no success, where there was one

    @property
    def is_read(self) -> bool:
        """See Sink."""
        return self.stream is not None and self.stream.attached

    def answer(self, outcome: Answer | Failed) -> None:
        """One of the requests is done."""
        self._expected -= 1
        if outcome.call.error_type and isinstance(outcome, Answer):
            self.failure = outcome.failure()
        if self.stream is not None:
            self.stream.answer(outcome)
            if not self._expected:
                self.stream.end()
            return
        self.outcomes.append(outcome)
        if not self._expected and not self.outcome.done():
            self.outcome.set_result(None)

    def take(self) -> list[Answer | Failed]:
        """The outcomes, once."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def push(self, command: ToStream) -> None:
        """Something else comes first: from now on this is a stream."""
        self.become_stream().push(command)

    def become_stream(self) -> EventStream:
        """Switches to a stream, if it is none yet; answers that have come already go into it first."""
        if self.stream is None:
            self.stream = self._make_stream()
            self.stream.attached = True
            for outcome in self.take():
                self.stream.answer(outcome)
            if not self._expected:
                self.stream.end()
            if not self.outcome.done():
                self.outcome.set_result(None)
        return self.stream
