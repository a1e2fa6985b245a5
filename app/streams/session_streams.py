"""SessionStreams: the streams of one session, who reads them, and what becomes of those that nobody reads."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from app.errors import Conflict
from app.protocol.commands import Call, Listen
from app.protocol.event_ids import EventId, is_primed, listen_name
from app.protocol.exchange import Exchange
from app.protocol.jsonrpc import answered_id
from app.streams.journal import Journal
from app.streams.replay import ReplayLog
from app.streams.resumption import Reader, Resumption
from app.streams.streams import EventStream, Sink

UNREAD_S = 1.0  # how long a stream from which its reader takes nothing may hold up the session's others


class StreamOwner(Protocol):
    """The session, as its streams see it."""

    @property
    def id(self) -> str:
        """The session's."""

    @property
    def version(self) -> str:
        """Of the protocol that its client speaks."""

    def client_seen(self) -> None:
        """Its client has taken a stream, or left one."""

    def message_dropped(self, reason: str, question: bytes | None) -> None:
        """Nobody will see this message; a question has this id."""


class SessionStreams:
    """`listen` is the stream of the session's own messages; each call's belongs to its Reply."""

    __slots__ = (
        "_exchange", "_full", "_held_up", "_hold_up", "_listening", "_owner", "_resumption", "_silent_s", "listen",
    )  # fmt: skip

    def __init__(
        self, owner: StreamOwner, exchange: Exchange, hold_up: Callable[[bool], None], silent_s: float
    ) -> None:
        """`hold_up` stops reading the process, or goes on. A call that is silent for `silent_s` becomes a stream."""
        self._owner, self._exchange, self._hold_up, self._silent_s = owner, exchange, hold_up, silent_s
        self._full = 0
        self.listen = self.new()
        self._listening: Reader | None = None  # the last that read the listen stream
        self._held_up: dict[EventStream, tuple[int, float]] = {}  # by full streams: what was taken of each, since when
        self._resumption: Resumption | None = None  # made for the first stream that can be resumed

    @property
    def is_full(self) -> bool:
        """Whether the process is not read, because somebody does not read what it said."""
        return self._full > 0

    @property
    def replay(self) -> ReplayLog | None:
        """What may be resumed; also after the session's end."""
        return None if self._resumption is None else self._resumption.log

    def new(self) -> EventStream:
        """A stream for a response; it slows the session's process down while it is full."""
        return EventStream(self.pressure, self._owner.message_dropped)

    def listen_on(self, stream: EventStream) -> None:
        """What names no call goes to this stream from now on, and somebody reads it."""
        self.listen, self._exchange.listening = stream, True

    def make_durable(self, journal: Journal) -> Resumption:
        """From now on the journal hears of every event."""
        self._resumption = Resumption(self._owner.message_dropped, journal)
        journal.log = self._resumption.log
        return self._resumption

    # --- readers

    def open_listener(self) -> EventStream:
        """Takes the listen stream: to keep it (HTTP+SSE), or to `read` it.

        Raises:
            Conflict: somebody reads it already; a message goes to one stream only.
        """
        if self.listen.attached:
            raise Conflict("the session has a stream for server messages already")
        self.listen.attach()
        self._exchange.listening = True
        self._owner.client_seen()
        return self.listen

    def read(self, stream: EventStream, start: EventId | None = None) -> Reader:
        """A response takes a stream, the listen stream or a POST's, to be resumed from then on; it says `leave`.

        A reader that has it already loses it: a client resumes because its connection is dead, which we may not
        have noticed.
        """
        is_listen = stream is self.listen
        if self._resumption is None:
            self._resumption = Resumption(self._owner.message_dropped)
        if is_listen:
            self._exchange.listening = True
            if stream.recorder is None:
                self._resumption.name(stream, collects=False, name=listen_name(self._owner.id))
        self._owner.client_seen()
        may_poll = is_primed(self._owner.version)
        reader = self._resumption.read(stream, start, self._reader_left, collects=not is_listen, may_poll=may_poll)
        if is_listen:
            self._listening = reader
        return reader

    def resume(self, place: EventId) -> Reader | None:
        """A reader of what comes after that event on its stream; None where nothing is left of it, or ever was.

        The listen stream is there as long as the session, also at a node that has heard of no such event.
        """
        stream = None if self._resumption is None else self._resumption.find(place)
        if stream is None and place.stream == listen_name(self._owner.id):
            return self.read(self.listen)
        return None if stream is None else self.read(stream, place)

    def has_told_all(self, place: EventId) -> bool:
        """Whether that was the last event of a stream that has ended."""
        return self._resumption is not None and self._resumption.is_at_end(place)

    def is_read(self, stream: Sink | Listen) -> bool:
        """Whether somebody is there to answer what is asked on it."""
        return self.listen.attached if stream is Listen.STREAM else stream.is_read

    def _reader_left(self, stream: EventStream) -> None:
        if stream is self.listen:
            self._exchange.listening = False
        self._owner.client_seen()

    # --- back-pressure, and time

    def pressure(self, full: bool) -> None:
        """A stream has become full, or has room again: the process is read while none is full."""
        self._full += 1 if full else -1
        self._hold_up(self._full > 0)

    def sweep(self, now: float, answering: Callable[[], bytes | None]) -> None:
        """Lets a POST that has waited long become a stream, and no stream that is not read hold up the others.

        `answering` says whose answer has begun to arrive, as BackendLink.answering.
        """
        self._stream_silent_calls(now, answering)
        if self._full or self._held_up:
            self._let_unread_streams_go(now)

    def _stream_silent_calls(self, now: float, answering: Callable[[], bytes | None]) -> None:
        """What has been silent for long becomes a stream, so that its connection stays alive; but not what is being
        answered: some clients take less of an event than of a JSON body."""
        silent = [
            call
            for call in self._exchange.every_call()
            if now - call.started > self._silent_s and call.may_stream and call.method != "initialize"
        ]
        if not silent:
            return
        named = answering()
        for call in silent:
            is_being_answered = named is not None and (not named or answered_id(named) == call.gateway_id)
            if call.stream is not Listen.STREAM and not is_being_answered:
                call.stream.become_stream()

    def _let_unread_streams_go(self, now: float) -> None:
        """A response that takes nothing of its stream would hold up the process, and so every other of the session.

        The listen stream loses it; what comes then waits for the next one, bounded, and the oldest notification goes
        first. A call's falls behind: it finds in the log what is kept there when it takes something again.
        """
        own = Counter(map(self._stream_of, self._exchange.every_call()))
        held_up, self._held_up = self._held_up, {}
        for stream in {self.listen, *own}:
            if stream is None or not stream.is_full:
                continue
            has_others = own.total() > own[stream] or (stream is not self.listen and self.listen.attached)
            taken, since = held_up.get(stream, (-1, now))
            if stream.taken != taken or not has_others:
                self._held_up[stream] = stream.taken, now
            elif now - since <= UNREAD_S:
                self._held_up[stream] = taken, since
            elif stream is not self.listen:
                stream.fall_behind()
            elif self._listening is not None:
                self._listening.end()

    def _stream_of(self, call: Call) -> EventStream | None:
        return self.listen if call.stream is Listen.STREAM else call.stream.stream

    def trim(self, now: float) -> None:
        """Forgets events that are too old to be resumed."""
        if self._resumption is not None:
            self._resumption.trim(now)

    def stream_calls(self) -> None:
        """For a client that ends its session while calls of its own are open. While it closes, the official Python
        client stumbles over JSON answers now and then, and never over the same as event streams."""
        for call in self._exchange.every_call():
            if call.may_stream and call.stream is not Listen.STREAM:
                call.stream.become_stream()

    def end(self, retry_ms: int | None) -> None:
        """The session is over; its client may come back after so long, where that is known."""
        if retry_ms is not None:
            self.listen.retry_ms = retry_ms
        self.listen.end()

    def __repr__(self) -> str:
        return f"<SessionStreams [{self._full} full] listen: {self.listen!r}>"
