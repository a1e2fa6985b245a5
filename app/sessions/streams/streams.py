"""Queues of messages for a client, which an HTTP response sends: Reply for a POST, EventStream for a stream."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from app.limits.caller_limits import Allowance
from app.protocol.commands import Answer, Failed, ToStream
from app.sessions.streams.entry import Entry, Fate, Item

MAX_EVENTS = 256
MAX_BYTES = 1 << 20


class Recorder(Protocol):
    """Numbers a stream's events and logs them, so that they can be sent again."""

    collects: bool  # whether events go to the log only, and not into the queue, while the stream has no reader

    def record(self, entry: Entry) -> None:
        """Numbers and logs the stream's next event."""

    def took(self, entry: Entry) -> None:
        """A connection has taken the event."""

    def forget(self, entry: Entry) -> None:
        """The event was dropped from the stream's queue; no connection has taken it."""

    def outdated(self, changes: Sequence[Entry]) -> Sequence[Entry]:
        """Those of these changes of one thing, oldest first, that need not be sent when a newer one comes."""


class EventStream:
    """Messages in order for one reader at a time; bounded at MAX_EVENTS and MAX_BYTES.

    At the limit with a reader attached, `on_pressure(True)` asks the owner to stop reading the backend, and nothing is
    lost; without a reader the oldest message that is no answer is dropped and counted. The owner ends the stream. A
    reader that leaves only detaches; one that takes nothing can be made to `fall_behind`.

    A stream that can be resumed has a `recorder`, which gets every message when it comes.
    """

    __slots__ = (
        "_entries", "_on_dropped", "_on_pressure", "_reader", "_waiter", "attached", "bytes", "ended", "is_behind",
        "is_full", "recorder", "retry_ms", "taken",
    )  # fmt: skip

    event_id: bytes | None = None  # only what a Reader reads has ids

    def __init__(self, on_pressure: Callable[[bool], None], on_dropped: Callable[[str, bytes | None], None]) -> None:
        """`on_dropped` is called with the reason, and with the id of a question."""
        self._on_pressure, self._on_dropped = on_pressure, on_dropped
        self._entries: deque[Entry] | None = None  # made when first needed: most sessions never queue
        self._waiter: asyncio.Future[None] | None = None
        self._reader: object = None
        self.is_full = False  # it holds the backend up, until its reader has taken something
        self.bytes = self.taken = 0  # queued now; messages that readers have taken
        self.attached = self.ended = False
        self.is_behind = False  # the reader; the recorder has what is missing in the queue
        self.recorder: Recorder | None = None
        self.retry_ms: int | None = None  # when the client may come back, if the stream ends before the session

    @property
    def is_spent(self) -> bool:
        """Whether it has ended and its queue is empty."""
        return self.ended and not self._entries

    @property
    def queued_from(self) -> int | None:
        """The number of the first event in the queue."""
        return self._entries[0].id.number if self._entries else None

    @property
    def queued(self) -> set[int]:
        """The numbers of the events in the queue."""
        return {entry.id.number for entry in self._entries or ()}

    def is_read_by(self, reader: object) -> bool:
        return reader is self._reader

    def push(self, command: ToStream) -> None:
        """Queues a notification or a question."""
        if command.coalesce is not None and self._replace(command):
            return
        self._append(Entry(command.payload, coalesce=command.coalesce, question=command.question))

    def answer(self, outcome: Answer | Failed) -> None:
        """Queues an answer; it is never dropped."""
        item: Item = outcome
        if isinstance(outcome, Answer) and outcome.large is None:
            item = outcome.payload()
        self._append(Entry(item, outcome.call))

    def resume_with(self, recorder: Recorder) -> None:
        """From now on the stream can be resumed; the events in the queue get numbers."""
        self.recorder = recorder
        for entry in self._entries or ():
            recorder.record(entry)

    def queue(self, entry: Entry) -> None:
        """Adds an entry to the queue, without regard to the limits."""
        if self._entries is None:
            self._entries = deque()
        self._entries.append(entry)
        self.bytes += entry.size

    def skip(self, number: int) -> None:
        """Removes events up to this number, which the client has received."""
        while self._entries and self._entries[0].id.number <= number:
            self._take()

    def retry_after(self, retry_ms: int) -> None:
        """The stream will end soon; its client may come back after so long."""
        self.retry_ms = retry_ms

    def end(self) -> None:
        """The reader gets what is queued, and then the end. Idempotent."""
        self.ended = True
        self._set_full(False)
        self._wake()

    def attach(self, reader: object = None) -> None:
        """A reader takes the stream; another one that has it loses it, and gets the end from `next`."""
        self.attached, self._reader = True, reader
        self._wake()
        self.catch_up()

    def fall_behind(self) -> None:
        """The reader takes nothing; it no longer holds the backend up. Until `catch_up` messages that are no answers go
        into the log only; without a log they go into the queue, and the oldest are dropped."""
        self.is_behind = True
        if self.recorder is not None and self.recorder.collects:
            self._leave_to_log([entry for entry in self._entries or () if entry.call is not None])
        else:
            self._drop_oldest()
        self._set_full(False)

    def catch_up(self) -> None:
        """The reader takes messages again, and has got those that were in the log only."""
        self.is_behind = False
        self._set_full(self._over_limit() and not self.ended)

    def detach(self, reader: object = None) -> bool:
        """The reader has left; what it has not read stays. Returns False if another reader has the stream."""
        if reader is not self._reader:
            return False
        self.attached, self._reader = False, None
        self._wake()  # it may still wait, if it was made to leave
        self._set_full(False)
        if self.recorder is not None and self.recorder.collects:
            self._leave_to_log([])
        return True

    async def next(self, reader: object = None) -> Item | None:
        """The next message; None at the end, or if another reader has the stream."""
        while reader is self._reader and not self._entries:
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if reader is not self._reader:
            return None
        item = self._take()
        if self.is_full and not self._over_limit():
            self._set_full(False)
        elif self.is_behind and self.recorder is None:
            self.catch_up()
        return item

    def took_from_log(self) -> None:
        """The reader has taken an event from the log."""
        self.taken += 1

    def take_all(self) -> list[Item]:
        """Empties the queue."""
        return [self._take() for _ in range(len(self._entries or ()))]

    def _take(self) -> Item:
        assert self._entries is not None
        entry = self._entries.popleft()
        item = entry.item
        self.bytes -= entry.size
        self.taken += 1
        if self.recorder is not None:
            self.recorder.took(entry)
        return item

    def _leave_to_log(self, staying: Sequence[Entry]) -> None:
        for entry in self._entries or ():
            if entry in staying:
                continue
            if entry.fate is Fate.ALONE:
                self._on_dropped("replay_full", entry.question)
            entry.mark(Fate.KEPT)
        self._entries = deque(staying) if staying else None
        self.bytes = sum(entry.size for entry in staying)

    def _append(self, entry: Entry) -> None:
        if self.ended:
            self._on_dropped("client_gone", entry.question)
            return
        if self.recorder is not None:
            if self.recorder.collects and (not self.attached or self._is_left_out(entry)):
                entry.mark(Fate.KEPT)
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
        """Whether this goes to the log only, as the reader is behind. The first answer never does, however large."""
        return self.is_behind and (entry.call is None or (bool(self._entries) and self.bytes + entry.size > MAX_BYTES))

    def _replace(self, command: ToStream) -> bool:
        """Whether the message has replaced one in the queue. With a recorder outdated events are removed instead."""
        if self.recorder is not None:
            changes = [entry for entry in self._entries or () if entry.coalesce == command.coalesce]
            for entry in self.recorder.outdated(changes):
                self._remove(entry)
            return False
        for entry in self._entries or ():
            if entry.coalesce == command.coalesce:
                self.bytes += len(command.payload) - entry.size
                entry.replaced(command.payload)
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
        if full != self.is_full:
            self.is_full = full
            self._on_pressure(full)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Sink(Protocol):
    """Where the messages of a call go."""

    may_stream: bool  # whether it takes more than the answer
    expires_at: float | None  # of the credential of the call, in Unix time

    @property
    def stream(self) -> EventStream | None:
        """The stream, if it has become one."""

    @property
    def is_read(self) -> bool:
        """Whether a client is there to answer questions."""

    def answer(self, outcome: Answer | Failed) -> None:
        """The call's outcome."""

    def push(self, command: ToStream) -> None:
        """A notification or a question that belongs to the call."""

    def counted(self, allowances: Sequence[Allowance]) -> None:
        """The call counts for these limits of its caller."""

    def become_stream(self) -> object:
        """The call has been silent for long: keeps its connection alive from now on."""


class Reply:
    """The answer to one POST: a JSON body, or a stream if another message comes first or it takes long.

    `outcome` is done when the head can be sent. Then either `stream` is there, or `outcomes` has the outcome of every
    request of the POST; `take` them, to break the reference cycle of outcome, call and reply.
    """

    __slots__ = (
        "_expected", "_make_stream", "allowances", "expires_at", "failure", "may_stream", "outcome", "outcomes",
        "stream",
    )  # fmt: skip

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
        self.failure = ""  # of the last answer that was no success
        self.allowances: Sequence[Allowance] = ()  # for which its last call counts

    @property
    def is_read(self) -> bool:
        return self.stream is not None and self.stream.attached

    def answer(self, outcome: Answer | Failed) -> None:
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
        """Returns the outcomes, and forgets them."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def push(self, command: ToStream) -> None:
        self.become_stream().push(command)

    def counted(self, allowances: Sequence[Allowance]) -> None:
        self.allowances = allowances

    def become_stream(self) -> EventStream:
        """The stream that this is from now on; answers that have come already go into it first."""
        if self.stream is None:
            self.stream = self._make_stream()
            self.stream.attach()
            for outcome in self.take():
                self.stream.answer(outcome)
            if not self._expected:
                self.stream.end()
            if not self.outcome.done():
                self.outcome.set_result(None)
        return self.stream
