"""SessionStreams: the streams of one session, their readers, and what happens to those that nobody reads."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from app.errors import Conflict
from app.protocol.commands import Call, Listen
from app.protocol.event_ids import EventId, is_primed, listen_name
from app.protocol.exchange import Exchange
from app.protocol.jsonrpc import answered_id
from app.sessions.streams._replay import ReplayLog, Tenant
from app.sessions.streams.journal import Journal
from app.sessions.streams.resumption import Reader, Resumption
from app.sessions.streams.streams import EventStream, Sink

UNREAD_S = 1.0  # how long a stream whose reader takes nothing may hold up the session's other streams
LOOK_S = 0.5  # what one look at it counts at most: while this node stands still no reader can take anything


class BackPressure:
    """Of one session. `hold_up` stops reading the process, or goes on; `every_call` yields the calls in flight."""

    __slots__ = ("_every_call", "_full", "_hold_up", "_unread")

    def __init__(self, hold_up: Callable[[bool], None], every_call: Callable[[], Iterable[Call]]) -> None:
        self._hold_up, self._every_call = hold_up, every_call
        self._full = 0
        # Of full streams: `taken`, how long nothing was taken, and when that was looked at.
        self._unread: dict[EventStream, tuple[int, float, float]] = {}

    @property
    def is_on(self) -> bool:
        """Whether the process is not read."""
        return self._full > 0

    def change(self, full: bool) -> None:
        """A stream has become full, or has room again. The process is read while none is full."""
        self._full += 1 if full else -1
        self._hold_up(self._full > 0)

    def relieve(self, listen: EventStream, now: float) -> bool:
        """Stops a stream whose reader takes nothing from holding up the process, and with it the session's others.

        A call's stream falls behind: when its reader goes on, it gets from the log what it has missed.

        Returns:
            Whether to detach the reader of the listen stream, which then keeps a bounded number of messages.
        """
        if not self._full and not self._unread:
            return False
        own = Counter(listen if call.stream is Listen.STREAM else call.stream.stream for call in self._every_call())
        before, self._unread = self._unread, {}
        is_listener_stuck = False
        for stream in {listen, *own}:
            if stream is None or not stream.is_full:
                continue
            has_others = own.total() > own[stream] or (stream is not listen and listen.attached)
            taken, unread_s, looked_at = before.get(stream, (-1, 0.0, now))
            unread_s += min(now - looked_at, LOOK_S)
            if stream.taken != taken or not has_others:
                self._unread[stream] = stream.taken, 0.0, now
            elif unread_s <= UNREAD_S:
                self._unread[stream] = taken, unread_s, now
            elif stream is not listen:
                stream.fall_behind()
            else:
                is_listener_stuck = True
        return is_listener_stuck


class StreamOwner(Protocol):
    """The session, as its streams see it."""

    id: str
    version: str

    @property
    def gate(self) -> Tenant:
        """Of its tenant."""

    def client_seen(self) -> None:
        """Its client has taken a stream, or left one."""

    def message_dropped(self, reason: str, question: bytes | None) -> None:
        """A message will not be sent; `question` is the id of a question."""


class SessionStreams:
    """`listen` is the stream of messages that belong to no call; the Reply of a call has the call's stream."""

    __slots__ = ("_exchange", "_listening", "_owner", "_resumption", "_silent_s", "back_pressure", "listen")

    def __init__(
        self, owner: StreamOwner, exchange: Exchange, hold_up: Callable[[bool], None], silent_s: float
    ) -> None:
        """`hold_up` stops reading the process, or goes on. A POST that is silent for `silent_s` becomes a stream."""
        self._owner, self._exchange, self._silent_s = owner, exchange, silent_s
        self.back_pressure = BackPressure(hold_up, exchange.every_call)
        self.listen = self.new()
        self._listening: Reader | None = None  # the last one of the listen stream
        self._resumption: Resumption | None = None  # made for the first stream that can be resumed

    @property
    def replay(self) -> ReplayLog | None:
        """The log of what may be resumed; also after the session's end."""
        return None if self._resumption is None else self._resumption.log

    def new(self) -> EventStream:
        """A stream for a response; it holds the process up while it is full."""
        return EventStream(self.back_pressure.change, self._owner.message_dropped)

    def listen_on(self, stream: EventStream) -> None:
        """Uses this stream, which has a reader, for messages that belong to no call."""
        self.listen = stream
        self._exchange.note_listener(is_there=True)

    def make_durable(self, journal: Journal) -> Resumption:
        """From now on the journal records every event."""
        self._resumption = Resumption(self._owner.gate, self._owner.message_dropped, journal)
        return self._resumption

    # --- readers

    def open_listener(self) -> EventStream:
        """Takes the listen stream: to keep it (HTTP+SSE), or to `read` it.

        Raises:
            Conflict: it has a reader already; a message goes to one stream only.
        """
        if self.listen.attached:
            raise Conflict("the session has a stream for server messages already")
        self.listen.attach()
        self._exchange.note_listener(is_there=True)
        self._owner.client_seen()
        return self.listen

    def read(self, stream: EventStream, start: EventId | None = None) -> Reader:
        """A response takes the listen stream or that of a POST, which can be resumed from then on; it calls `leave`.

        Another reader loses it: a client resumes when its connection is dead, which we may not have noticed.
        """
        is_listen = stream is self.listen
        if self._resumption is None:
            self._resumption = Resumption(self._owner.gate, self._owner.message_dropped)
        if is_listen:
            self._exchange.note_listener(is_there=True)
            if stream.recorder is None:
                self._resumption.name(stream, collects=False, name=listen_name(self._owner.id))
        self._owner.client_seen()
        may_poll = is_primed(self._owner.version)
        reader = self._resumption.read(stream, start, self._reader_left, collects=not is_listen, may_poll=may_poll)
        if is_listen:
            self._listening = reader
        return reader

    def resume(self, place: EventId) -> Reader | None:
        """A reader of what comes after that event on its stream; None if there is no such stream, or it is spent.

        The listen stream lasts as long as the session, also on a node that does not know the event.
        """
        stream = None if self._resumption is None else self._resumption.find(place)
        if stream is None and place.stream == listen_name(self._owner.id):
            return self.read(self.listen)
        return None if stream is None else self.read(stream, place)

    def has_told_all(self, place: EventId) -> bool:
        """Whether that was the last event of a stream that has ended."""
        return self._resumption is not None and self._resumption.is_at_end(place)

    def is_read(self, stream: Sink | Listen) -> bool:
        """Whether a client is there to answer questions on it."""
        return self.listen.attached if stream is Listen.STREAM else stream.is_read

    def _reader_left(self, stream: EventStream) -> None:
        if stream is self.listen:
            self._exchange.note_listener(is_there=False)
        self._owner.client_seen()

    # --- time, and the end

    def sweep(self, now: float, answering: Callable[[], bytes | None]) -> None:
        """Turns POSTs that have waited long into streams; lets no stream that is not read hold up the others.

        `answering` is that of BackendConnection.
        """
        self._stream_silent_calls(now, answering)
        if self.back_pressure.relieve(self.listen, now) and self._listening is not None:
            self._listening.end()

    def _stream_silent_calls(self, now: float, answering: Callable[[], bytes | None]) -> None:
        """Turns POSTs that are silent for long into streams, to keep their connections alive. Not if the answer has
        begun to arrive: some clients accept less in an event than in a JSON body."""
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

    def trim(self, now: float) -> None:
        if self._resumption is not None:
            self._resumption.trim(now)

    def stream_calls(self) -> None:
        """For a client that ends its session while it has calls: while it closes, the official Python client sometimes
        fails on JSON answers, and never on event streams."""
        for call in self._exchange.every_call():
            if call.may_stream and call.stream is not Listen.STREAM:
                call.stream.become_stream()

    def end(self, retry_ms: int | None) -> None:
        """The session has ended; `retry_ms` is when its client should come back, if it should."""
        if retry_ms is not None:
            self.listen.retry_after(retry_ms)
        self.listen.end()
