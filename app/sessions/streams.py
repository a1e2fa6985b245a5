"""Where messages for a client wait until an HTTP response carries them: Reply for a POST, EventStream for a stream."""

import asyncio
from collections import deque
from collections.abc import Callable

from app.protocol.commands import Answer, Failed, ToStream

MAX_EVENTS = 256
MAX_BYTES = 1 << 20

# What a stream yields: a message as bytes, or a failure that the transport turns into one.
Item = bytes | Failed


class _Entry:
    """One waiting message. `question` and `coalesce` are those of ToStream; an answer has neither."""

    __slots__ = ("coalesce", "is_answer", "item", "question", "size")

    def __init__(self, item: Item, *, is_answer: bool, coalesce: bytes | None, question: bytes | None) -> None:
        self.item, self.is_answer, self.coalesce, self.question = item, is_answer, coalesce, question
        self.size = len(item) if isinstance(item, bytes) else 256


class EventStream:
    """Messages in order for one reader at a time; bounded at MAX_EVENTS and MAX_BYTES.

    At the limit with a reader attached, `on_pressure(True)` asks the owner to stop reading the backend and
    nothing is lost; without a reader the oldest message that is no answer is dropped and counted. The owner
    ends the stream; a reader that leaves only detaches.
    """

    __slots__ = ("_entries", "_is_full", "_on_dropped", "_on_pressure", "_waiter", "attached", "bytes", "ended")

    def __init__(self, on_pressure: Callable[[bool], None], on_dropped: Callable[[str, bytes | None], None]) -> None:
        self._on_pressure = on_pressure
        self._on_dropped = on_dropped  # hears why, and the question's id where it was one
        self._entries: deque[_Entry] | None = None  # made when first needed: most sessions never queue
        self._waiter: asyncio.Future[None] | None = None
        self._is_full = False
        self.bytes = 0
        self.attached = False
        self.ended = False

    def push(self, command: ToStream) -> None:
        """Queues a notification or a question."""
        if command.coalesce is not None and self._replace(command):
            return
        self._append(_Entry(command.payload, is_answer=False, coalesce=command.coalesce, question=command.question))

    def answer(self, outcome: Answer | Failed) -> None:
        """Queues an answer; it is never dropped."""
        item: Item = outcome.payload() if isinstance(outcome, Answer) else outcome
        self._append(_Entry(item, is_answer=True, coalesce=None, question=None))

    def end(self) -> None:
        """Lets the reader finish after what is queued. Idempotent."""
        self.ended = True
        self._set_full(False)
        self._wake()

    def attach(self) -> None:
        """A reader takes the stream; at most one at a time may."""
        self.attached = True
        self._set_full(self._over_limit())

    def detach(self) -> None:
        """The reader has left; what it has not read stays."""
        self.attached = False
        self._waiter = None
        self._set_full(False)

    async def next(self) -> Item | None:
        """The next message; None once the stream has ended and is empty."""
        while not self._entries:
            if self.ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        entry = self._entries.popleft()
        self.bytes -= entry.size
        if self._is_full and not self._over_limit():
            self._set_full(False)
        return entry.item

    def _append(self, entry: _Entry) -> None:
        if self.ended:
            self._on_dropped("client_gone", entry.question)
            return
        if self._entries is None:
            self._entries = deque()
        self._entries.append(entry)
        self.bytes += entry.size
        if self._over_limit():
            if self.attached:
                self._set_full(True)
            else:
                self._drop_oldest()
        self._wake()

    def _replace(self, command: ToStream) -> bool:
        for entry in self._entries or ():
            if entry.coalesce == command.coalesce:
                self.bytes += len(command.payload) - entry.size
                entry.item, entry.size = command.payload, len(command.payload)
                return True
        return False

    def _drop_oldest(self) -> None:
        assert self._entries is not None
        while self._over_limit():
            victim = next((entry for entry in self._entries if not entry.is_answer), None)
            if victim is None:
                return
            self._entries.remove(victim)
            self.bytes -= victim.size
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


class Reply:
    """The answer to one POST: one JSON body, unless something else comes first or it takes long; then a stream.

    `outcome` is done when the head can be sent: with None once `stream` carries everything, else `outcomes`
    holds what every request of the POST came to.
    """

    __slots__ = ("_expected", "_make_stream", "may_stream", "outcome", "outcomes", "stream")

    def __init__(self, expected: int, *, may_stream: bool, make_stream: Callable[[], EventStream]) -> None:
        self._expected = expected
        self._make_stream = make_stream
        self.may_stream = may_stream
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcomes: list[Answer | Failed] = []
        self.stream: EventStream | None = None

    def answer(self, outcome: Answer | Failed) -> None:
        """One of the requests is done."""
        self._expected -= 1
        if self.stream is not None:
            self.stream.answer(outcome)
            if not self._expected:
                self.stream.end()
            return
        self.outcomes.append(outcome)
        if not self._expected and not self.outcome.done():
            self.outcome.set_result(None)

    def push(self, command: ToStream) -> None:
        """Something else comes first: from now on this is a stream."""
        self.become_stream().push(command)

    def become_stream(self) -> EventStream:
        """Switches to a stream, if it is none yet; answers that have come already go into it first."""
        if self.stream is None:
            self.stream = self._make_stream()
            self.stream.attached = True
            for outcome in self.outcomes:
                self.stream.answer(outcome)
            self.outcomes = []
            if not self._expected:
                self.stream.end()
            if not self.outcome.done():
                self.outcome.set_result(None)
        return self.stream
