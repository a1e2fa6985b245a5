"""Session: one client's line to one process of its own. Bound to a principal, never to a token's bytes."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import anyio
import msgspec

from app.auth.api_keys import ISSUER as KEY
from app.domain import BackendSpec, Limits, Principal
from app.errors import (
    BackendError,
    BackendExited,
    BackendTimeout,
    Conflict,
    CredentialExpired,
    GatewayError,
    InvalidMessage,
    NodeLost,
    QuotaExceeded,
    RoutesUnavailable,
    ShuttingDown,
)
from app.limits.gates import TenantGate
from app.links.bridged import BridgedLink
from app.links.source import LinkLease, LinkSource
from app.metrics import Metrics, error_label, method_label
from app.processes.link import BackendLink, Exit
from app.protocol.commands import Answer, Call, Command, Dropped, Failed, Listen, Several, ToBackend, ToStream
from app.protocol.eras.modern import MODERN, SUPPORTED, refuses_handshake
from app.protocol.event_ids import EventId, is_primed, listen_name
from app.protocol.exchange import Exchange, negotiated_version
from app.protocol.jsonrpc import Notification, Request, Response, answered_id, members_of
from app.protocol.lifecycle import Lifecycle, SessionState, Trigger
from app.protocol.revisions import ASSUMED
from app.reached import Reached
from app.sessions.endings import call_not_sent, call_under_way, later_request
from app.sessions.standstill import Fence
from app.streams.journal import Journal
from app.streams.replay import ReplayLog
from app.streams.resumption import Reader, Resumption
from app.streams.streams import EventStream, Reply, Sink

DRAIN_RETRY_MS = (1000, 5000)  # clients of a node that stops come back spread over this
HANDED_OVER, SHUTDOWN, TAKEN_OVER = "handed_over", "shutdown", "taken_over"
DELETED = "deleted"  # by its client
BACKEND_EXITED = "backend_exited"
LINE_WAITING = 128  # calls that may wait at least where their client cannot open another session
UNREAD_S = 1.0  # how long a stream from which its reader takes nothing may hold up the session's others
LEAVING = (SHUTDOWN, HANDED_OVER)
_BEFORE_OPEN = ("ping", "server/discover")
KNOWN_VERSIONS = frozenset(SUPPORTED)
LARGE_ANSWER_BYTES = 64 << 10  # below it an answer is noise to the flood limit


class Surroundings(NamedTuple):
    """What a session is given by its registry."""

    transport: str
    gate: TenantGate
    metrics: Metrics
    on_closed: Callable[["Session", str], None]
    fence: Fence
    stream_after_s: float
    on_timeout: Callable[["Session", Failed], None] = lambda session, failed: None
    on_opened: Callable[["Session", str], None] = lambda session, how: None  # how: as SessionLog.opened


class Session:
    """One client, one BackendLink, one Exchange. Starts no task: the process, the client and the sweep drive it.

    The registry makes it, sweeps it and hears `on_closed`; `close` gives everything back and may be called twice.
    """

    def __init__(self, session_id: str, principal: Principal, spec: BackendSpec, around: "Surroundings") -> None:
        self.id = session_id
        self.principal, self.spec = principal, spec
        self.transport, self.gate, self._metrics, self._on_closed, self._fence, self._stream_after_s = around[:6]
        self._on_timeout, self._on_opened = around.on_timeout, around.on_opened
        self.version: str = ASSUMED
        call_s, initialize_s = spec.timeouts.call_s, spec.timeouts.initialize_s
        self.exchange = Exchange(call_s, initialize_s=initialize_s, max_calls=spec.calls_per_session)
        self._is_giving_turns = False
        self.listen = EventStream(self._pressure, self._stream_dropped)
        self.opened_at = self.last_seen = self.heard_at = time.monotonic()  # from its client, from its process
        self._lifecycle = Lifecycle()
        self._lease: LinkLease | None = None
        self._link: BackendLink | None = None
        self._hello: bytes | None = None  # `initialize` as it was sent
        self._full_streams = 0
        self._listening: Reader | None = None  # the last that read the listen stream
        self._held_up: dict[EventStream, tuple[int, float]] = {}  # by full streams: what was taken of each, since when
        self._resumption: Resumption | None = None  # made for the first stream that can be resumed
        self.journal: Journal | None = None  # of a session that can go on at another node
        self._held: list[bytes] | None = None  # what the process said behind a closed fence
        self._closed_for = ""
        self.refusal: GatewayError | None = None  # what is said to whoever asks after the end, where that is known
        self._connecting: anyio.CancelScope | None = None
        self.is_line = False  # of 2026-07-28 clients: what it is asked is not what a client asked
        self.waited_s = 0.0  # for its process
        self.calls_begun = self.bytes_sent = self.bytes_received = 0  # to and from its process
        self.address = ""  # the client's that opened it, where this node knows it
        self.client_info: msgspec.Raw | None = None  # what that client says of itself, where that is not in `hello`

    @property
    def state(self) -> SessionState:
        """Where the session is in its life."""
        return self._lifecycle.state

    @property
    def is_held_up(self) -> bool:
        """Whether the process is not read, because somebody does not read what it said."""
        return self._full_streams > 0

    @property
    def hello(self) -> bytes | None:
        """`initialize` as its process got it, where it had one."""
        return self._hello

    @property
    def found_warm(self) -> bool:
        """Whether its process ran already when the session asked for one."""
        return self._lease is not None and self._lease.was_warm

    @property
    def process(self) -> str | None:
        """The id of the process behind it, once it has one."""
        return None if self._lease is None else self._lease.link.id

    # --- opening

    def become_line(self, listen: EventStream, reserved: int) -> None:
        """Clients of 2026-07-28 share it: what names no call goes to `listen`, and so many calls are for our own."""
        self.listen, self.is_line = listen, True
        self.exchange.listening, self.exchange.waiting.reserved = True, reserved
        self.exchange.waiting.max_waiting = max(self.exchange.waiting.max_waiting, LINE_WAITING)

    async def connect(self, source: LinkSource, limits: Limits) -> None:
        """Takes a link to a process; where it raises, the caller closes the session.

        Raises:
            InvalidMessage: the session has, or waits for, a process already.
            BackendError: there is none to be had.
            SessionNotFound, ShuttingDown, Disabled: the session was closed meanwhile.
        """
        if not self._lifecycle.allows(Trigger.CONNECT):
            raise InvalidMessage("the session is initialized already")
        self._lifecycle.follow(Trigger.CONNECT)
        asked_at = time.monotonic()
        lease: LinkLease | None = None
        with anyio.CancelScope() as self._connecting:  # whoever waits for nothing keeps no place in the line
            lease = await source.lease(self.spec, limits, self.principal)
        if lease is None or self.state is SessionState.CLOSED:
            if lease is not None:
                lease.release("session_closed")
            raise self.refusal or (ShuttingDown() if self._closed_for in LEAVING else later_request(self._closed_for))
        self._lifecycle.follow(Trigger.PROCESS)
        self._lease, self._link, self.last_seen = lease, lease.link, time.monotonic()
        self.waited_s = self.last_seen - asked_at
        self._link.attach(self)
        if self.journal is not None:
            self.journal.attach(lease)

    def make_durable(self, journal: Journal) -> Resumption:
        """From now on everything that another node needs to go on with this session gets into the journal."""
        self.journal, self._resumption = journal, Resumption(self._stream_dropped, journal)
        journal.log = self._resumption.log
        return self._resumption

    def restore(self, lease: LinkLease, version: str, opened_at: float, hello: bytes | None = None) -> None:
        """Opens the session as it was on another node, which had sent `hello`; its process may be on its way."""
        self._lifecycle.follow(Trigger.RESTORE)
        self._hello = hello
        self.version, self.opened_at = version, opened_at
        self._lease, self._link = lease, lease.link
        self._link.attach(self)
        self._on_opened(self, "taken over")

    def adopt(self, version: str) -> None:
        """Opens the session without a handshake: its process speaks a revision that has none."""
        self._lifecycle.follow(Trigger.ADOPT)
        self.version = version
        assert self._lease is not None
        self._lease.handshake_succeeded()
        self._on_opened(self, "no handshake")

    # --- from the client

    def reply(self, expected: int, *, may_stream: bool, expires_at: float | None = None) -> Reply:
        """A Reply for a POST with this many requests, sent with a credential that ends then."""
        return Reply(expected, may_stream=may_stream, make_stream=self.new_stream, expires_at=expires_at)

    def request(self, message: Request, stream: Sink | Listen, *, is_own: bool = False) -> None:
        """Passes a request on, or has it wait for its turn; its outcome goes to `stream`. Its own are the gateway's.

        Raises:
            InvalidMessage: the id is in flight, or it is too early or too late for this method.
            QuotaExceeded: too many calls are in flight, or they come too fast.
            BackendError: the process is gone or does not read.
            RoutesUnavailable: this node stood still, and another may have the session by now.
        """
        if self._lifecycle.state is not SessionState.OPEN or message.method == "initialize":
            self._admit(message)
        now = self._accept()
        may_stream = stream is Listen.STREAM or stream.may_stream
        self.gate.begin_call(now)
        try:
            call, line = self.exchange.request(message, stream, now, may_stream=may_stream, is_own=is_own)
            try:
                if line is not None:
                    self._require_link().send(line)
                    self.bytes_sent += len(line)
            except BackendError:
                self.exchange.abandon(call)
                raise
        except BaseException as error:
            self.gate.end_call()
            self._note_limit(error)
            raise
        self.calls_begun += 1
        if message.method == "initialize":
            self._lifecycle.follow(Trigger.INITIALIZE)
            self._hello = line

    def require_room(self, messages: int, calls: int, size: int) -> None:
        """Looks whether a batch fits whole, before anything of it is passed on.

        Raises:
            QuotaExceeded, RateLimited, Overloaded: it does not.
        """
        try:
            self.exchange.waiting.require_room(calls, size)
        except QuotaExceeded as error:
            self._note_limit(error)
            raise
        self.gate.require_room(messages, calls, time.monotonic())

    def _note_limit(self, error: BaseException) -> None:
        """The exchange knows its limit, and not whose it is."""
        if isinstance(error, QuotaExceeded) and error.reached is None:
            self._metrics.rate_limited.labels(error.limit).inc()
            allowed, used = self.spec.calls_per_session, self.exchange.in_flight
            error.at(Reached.of_backend(error.limit, self.spec.key, allowed, used, of="session"))

    def _give_turns(self, now: float) -> None:
        """Sends the calls whose turn has come. Some are answered while they are sent, so this is not begun twice."""
        if self._is_giving_turns or self._fence.is_closed():
            return
        self._is_giving_turns = True
        try:
            while (turn := self.exchange.next_turn(now)) is not None:
                self._send_in_turn(*turn)
        finally:
            self._is_giving_turns = False

    def _send_in_turn(self, call: Call, line: bytes) -> None:
        try:
            if call.stream is not Listen.STREAM and _is_over(call.stream.expires_at):
                raise CredentialExpired
            self._require_link().send(line)
            self.bytes_sent += len(line)
        except GatewayError as error:
            self.exchange.abandon(call)
            self._carry_out(Failed(call, error, was_sent=False))

    def refuse(self, message: Request, error: GatewayError) -> None:
        """Answers a request with an error on the listen stream; without a process the session is over."""
        call = Call(message.id, b"", message.method, Listen.STREAM, True, 0.0, 0.0)
        self.listen.answer(Failed(call, error))
        if self._link is None and self.state is SessionState.CONNECTING:
            self.close("no_process", error)

    def notify(self, message: Notification) -> None:
        """Passes a notification on.

        Raises:
            RateLimited: they come too fast.
            BackendError: the process is gone or does not read.
            RoutesUnavailable: as `request`.
        """
        now = self._accept()
        self.gate.check_rate(now)
        line = self._line_of(message, now)
        if line is not None:
            self._require_link().send(line)

    def try_notify(self, message: Notification) -> None:
        """The same for a notification of our own; a process that is gone or deaf will be noticed by others."""
        line = self._line_of(message, time.monotonic())
        if line is not None:
            self._tell_backend(line)

    def _line_of(self, message: Notification, now: float) -> bytes | None:
        """What the process is to hear: nothing where a call is cancelled that it has not heard of."""
        withdrawn = self.exchange.withdraw(message) if self.exchange.waiting.calls else None
        if withdrawn is None:
            return self.exchange.notification(message, now)
        self._carry_out(withdrawn)
        return None

    def refuse_question(self, our_id: bytes, why: str, code: int) -> None:
        """Tells the backend that its question is not asked."""
        line = self.exchange.questions.refuse(our_id, why, code)
        if line is not None:
            self._tell_backend(line)

    def respond(self, message: Response) -> None:
        """Passes the answer to a backend's question on; one that was not asked is dropped.

        Raises:
            RoutesUnavailable: as `request`.
        """
        self._accept()
        line = self.exchange.response(message)
        if line is None:
            self._metrics.messages_dropped.labels("unknown_response").inc()
        else:
            self._require_link().send(line)

    def _accept(self) -> float:
        """The time; what came before a gap, and was read only after it, is not accepted before the fence is open."""
        if self._fence.is_closed():
            raise RoutesUnavailable
        self.last_seen = time.monotonic()
        return self.last_seen

    def _admit(self, message: Request) -> None:
        if message.method == "initialize":
            if not self._lifecycle.allows(Trigger.INITIALIZE):
                raise InvalidMessage("the session is initialized already")
        elif self._lifecycle.state is SessionState.CLOSED:
            raise self.refusal or later_request(self._closed_for)
        elif message.method not in _BEFORE_OPEN or self._link is None:
            raise InvalidMessage("the first request of a session is `initialize`")

    def _require_link(self) -> BackendLink:
        if self._link is None:
            raise InvalidMessage("the first request of a session is `initialize`")
        return self._link

    # --- from the backend (BackendListener)

    def backend_sent(self, line: bytes) -> None:
        """One line of the process."""
        if self._lifecycle.state is SessionState.INITIALIZING and self._bridges(line):
            return
        if self._fence.is_closed():
            self._hold(line)
            return
        now = self.heard_at = time.monotonic()
        self.bytes_received += len(line)
        command = self.exchange.receive(line, now)
        if type(command) is Answer:
            self._answered(command, now)
        else:
            self._carry_out(command)
            if type(command) is Failed:
                self._came_to_nothing(command.call)

    def _hold(self, line: bytes) -> None:
        """Keeps a line until it is known that the session is still ours; no more are read meanwhile."""
        if self._held is None:
            self._held = []
            self._pressure(full=True)
        self._held.append(line)

    def deliver_held(self) -> None:
        """The session is ours: what the process said goes its way, and whose turn came meanwhile. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            self._pressure(full=False)
        for line in held or ():
            self.backend_sent(line)
        self._give_turns(time.monotonic())

    def backend_asked(self, line: bytes, related: bytes) -> None:
        """A question that belongs to this call (BridgedSession)."""
        self._carry_out(self.exchange.receive_question(line, related, time.monotonic()))

    def _bridges(self, line: bytes) -> bool:
        """Whether the process has just refused `initialize` because it speaks 2026-07-28 only: then it is bridged."""
        if self._hello is None or self.is_line or isinstance(self._link, BridgedLink) or not refuses_handshake(line):
            return False
        if self.journal is not None:
            self.journal.end()  # what the bridge knows is not written down
        self._link = BridgedLink(self._require_link(), self)
        self._tell_backend(self._hello)
        return True

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        """A line over the limit was thrown away."""
        command = self.exchange.receive_oversized(beginning, end)
        self._carry_out(command)
        if type(command) is Failed:
            self._came_to_nothing(command.call)

    def backend_exited(self, exit: Exit) -> None:
        """The process is gone: every call gets its error, and the session ends."""
        error = BackendExited(
            f"the backend ended: {exit.description}",
            started=self.state is SessionState.OPEN,
            stderr=exit.stderr,
            hint=None if self.state is SessionState.OPEN else "It ended before it answered `initialize`.",
        )
        self.close(BACKEND_EXITED, error)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        """One call of ours comes to nothing, by its id there; the session goes on (CallListener)."""
        failed = self.exchange.calls.get(call)
        if failed is not None:
            self.exchange.abandon(failed)
            self._carry_out(Failed(failed, error))

    def _answered(self, answer: Answer, now: float) -> None:
        call, response = answer.call, answer.response
        if call.method == "initialize":
            self._initialized(response)
        call.error_type = error_type_of(call.method, response)
        self._done(call, call.error_type, now)
        size = len(response.value)
        if size > LARGE_ANSWER_BYTES:
            self._require_link().asked_for(size)
        target = self.listen if call.stream is Listen.STREAM else call.stream
        target.answer(answer)
        if response.member == "error":
            self._came_to_nothing(call)

    def _came_to_nothing(self, call: Call) -> None:
        """Where that was the `initialize` of a POST, its client has no session and begins another with the next."""
        if call.method == "initialize" and call.stream is not Listen.STREAM:
            self.close("not_initialized")

    def _initialized(self, response: Response) -> None:
        if response.member == "error":
            self._lifecycle.follow(Trigger.REFUSED)
            return
        self._lifecycle.follow(Trigger.ANSWERED)
        self.version = negotiated_version(response.value) or ASSUMED
        assert self._lease is not None
        self._lease.handshake_succeeded()
        self._on_opened(self, "handshake")

    def _carry_out(self, command: Command) -> None:
        match command:
            case ToStream(stream=stream):
                (self.listen if stream is Listen.STREAM else stream).push(command)
            case ToBackend(line=line):
                self._tell_backend(line)
            case Failed(call=call):
                error = command.error.after_sending() if command.was_sent else command.error
                self._done(call, error.reason, time.monotonic(), was_sent=command.was_sent)
                (self.listen if call.stream is Listen.STREAM else call.stream).answer(command)
            case Several(lines=lines):
                for each in lines:
                    self.backend_sent(each)
            case Dropped(reason=reason):
                self._metrics.messages_dropped.labels(reason).inc()
            case Answer():
                self._answered(command, time.monotonic())

    def _tell_backend(self, line: bytes) -> None:
        """Writes a line of our own; a process that is gone or deaf will be noticed by others."""
        try:
            self._require_link().send(line)
        except GatewayError:
            self._metrics.messages_dropped.labels("backend_deaf").inc()

    def _done(self, call: Call, error_type: str, now: float, *, was_sent: bool = True) -> None:
        """A call has its outcome: its place is free, for the next that waits for one, its time is counted."""
        self.gate.end_call()
        self.last_seen = now
        if self.exchange.waiting.calls:
            self._give_turns(now)
        seconds, method = now - call.started, method_label(call.method)
        if was_sent:
            self._metrics.client_operations.labels(method, error_type).observe(seconds - call.waited_s)
        if not self.is_line:
            version = self.version if self.version in KNOWN_VERSIONS else "_OTHER"  # a backend may say what it likes
            self._metrics.server_operations.labels(method, error_type, self.transport, version).observe(seconds)

    def count_request(self, method: str, error_type: str, seconds: float) -> None:
        """A client of 2026-07-28 has got an answer that came from this line, or needed nothing from it."""
        labels = method_label(method), error_type, self.transport, MODERN
        self._metrics.server_operations.labels(*labels).observe(seconds)

    # --- streams

    def open_listener(self) -> EventStream:
        """Takes the stream of the session's own messages: to keep it (HTTP+SSE), or to `read` it.

        Raises:
            Conflict: somebody reads it already; a message goes to one stream only.
        """
        if self.listen.attached:
            raise Conflict("the session has a stream for server messages already")
        self.listen.attach()
        self.exchange.listening = True
        self.last_seen = time.monotonic()
        return self.listen

    def read(self, stream: EventStream, start: EventId | None = None) -> Reader:
        """A response takes a stream, the listen stream or a POST's, to be resumed from then on; it says `leave`.

        A reader that has it already loses it: a client resumes because its connection is dead, which we may not
        have noticed.
        """
        is_listen = stream is self.listen
        if self._resumption is None:
            self._resumption = Resumption(self._stream_dropped)
        if is_listen:
            self.exchange.listening = True
            if stream.recorder is None:
                self._resumption.name(stream, collects=False, name=listen_name(self.id))
        self.last_seen = time.monotonic()
        may_poll = is_primed(self.version)
        reader = self._resumption.read(stream, start, self._reader_left, collects=not is_listen, may_poll=may_poll)
        if is_listen:
            self._listening = reader
        return reader

    def resume(self, place: EventId) -> Reader | None:
        """A reader of what comes after that event on its stream; None where nothing is left of it, or ever was.

        The listen stream is there as long as the session, also at a node that has heard of no such event.
        """
        stream = None if self._resumption is None else self._resumption.find(place)
        if stream is None and place.stream == listen_name(self.id):
            return self.read(self.listen)
        return None if stream is None else self.read(stream, place)

    def has_told_all(self, place: EventId) -> bool:
        """Whether that was the last event of a stream that has ended."""
        return self._resumption is not None and self._resumption.is_at_end(place)

    def _reader_left(self, stream: EventStream) -> None:
        if stream is self.listen:
            self.exchange.listening = False
        self.last_seen = time.monotonic()

    def new_stream(self) -> EventStream:
        """A stream for a response; it slows this session's process down while it is full."""
        return EventStream(self._pressure, self._stream_dropped)

    def _pressure(self, full: bool) -> None:
        """A stream has become full, or has room again: the process is read while none is full."""
        self._full_streams += 1 if full else -1
        if self._link is not None:
            if self._full_streams:
                self._link.pause_reading()
            else:
                self._link.resume_reading()

    def _stream_dropped(self, reason: str, question: bytes | None) -> None:
        self._metrics.messages_dropped.labels(reason).inc()
        if question is not None:
            line = self.exchange.questions.refuse(question, "nobody reads the client's stream")
            if line is not None:
                self._tell_backend(line)

    # --- time, and the end

    def sweep(self, now: float) -> None:
        """Ends what is overdue; lets a POST that has waited long become a stream."""
        if self.exchange.has_questions:
            self.exchange.questions.client_is_there(self._is_read, now)
        for command in list(self.exchange.expire(now)):
            self._carry_out(command)
            if not isinstance(command, Failed):
                continue
            if isinstance(command.error, BackendTimeout):
                self._on_timeout(self, command)
            if command.call.method == "initialize":
                self.close("initialize_timeout", command.error)
                return
        self._stream_silent_calls(now)
        if self._full_streams or self._held_up:
            self._let_unread_streams_go(now)

    def _stream_silent_calls(self, now: float) -> None:
        """What has been silent for long becomes a stream, so that its connection stays alive; but not what is being
        answered: some clients take less of an event than of a JSON body."""
        silent = [
            call
            for call in self.exchange.every_call()
            if now - call.started > self._stream_after_s and call.may_stream and call.method != "initialize"
        ]
        if not silent:
            return
        answering = None if self._link is None else self._link.answering()
        for call in silent:
            is_being_answered = answering is not None and (not answering or answered_id(answering) == call.gateway_id)
            if call.stream is not Listen.STREAM and not is_being_answered:
                call.stream.become_stream()

    def _let_unread_streams_go(self, now: float) -> None:
        """A response that takes nothing of its stream would hold up the process, and so every other of the session.

        The listen stream loses it; what comes then waits for the next one, bounded, and the oldest notification goes
        first. A call's falls behind: it finds in the log what is kept there when it takes something again.
        """
        own = Counter(map(self._stream_of, self.exchange.every_call()))
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

    def _is_read(self, stream: Sink | Listen) -> bool:
        return self.listen.attached if stream is Listen.STREAM else stream.is_read

    @property
    def replay(self) -> ReplayLog | None:
        """What may be resumed of its streams; also after its end."""
        return None if self._resumption is None else self._resumption.log

    def trim(self, now: float) -> None:
        """Forgets events that are too old to be resumed."""
        if self._resumption is not None:
            self._resumption.trim(now)

    def expired(self, now: float) -> str | None:
        """Why the session should end now, if it should: "idle", "too_old", or "credential_expired" where that is a key,
        for nobody can come back with another. Events too old to replay go here too."""
        self.trim(now)
        timeouts = self.spec.timeouts
        if now - self.opened_at > timeouts.absolute_s:
            return "too_old"
        if self.principal.issuer == KEY and not self.exchange.in_flight and _is_over(self.principal.expires_at):
            return "credential_expired"
        if self.exchange.in_flight or self.listen.attached or self.state is SessionState.CONNECTING:
            return None
        return "idle" if now - self.last_seen > timeouts.idle_s else None

    def idle_since(self, now: float) -> float | None:
        """Since when its client has been silent; None while anything goes on: a call, a question, a task, somebody who
        reads its stream. Whoever ends it for that asks and ends it without waiting in between."""
        if self.exchange.in_flight or self.exchange.has_questions or self.listen.attached:
            return None
        if self.state in (SessionState.CONNECTING, SessionState.CLOSED) or self.exchange.running_tasks.is_any(now):
            return None
        return self.last_seen

    def close(self, reason: str, error: GatewayError | None = None, *, refusal: GatewayError | None = None) -> None:
        """Ends the session: calls in flight get `error`, streams end, the process is given back.

        Without an error they hear that nobody knows what has become of them: a 404 would say so of the session, which
        may go on elsewhere, and a 503 that they can be sent again. Those that waited for their turn hear what a request
        would hear that came now, which is `refusal` if there is one: nothing of them was sent.
        """
        if self.state is SessionState.CLOSED:
            return
        if reason == DELETED:
            self._end_as_streams()
        self.refusal = refusal
        lost = NodeLost() if reason in (*LEAVING, TAKEN_OVER) else call_under_way(reason)
        too_late = refusal or _too_late(reason, is_line=self.is_line)
        for failed in self.exchange.fail_all(error or lost, waiting=too_late):
            self._carry_out(failed)
        self._lifecycle.follow(Trigger.CLOSE)
        self._closed_for = reason
        if self._connecting is not None:
            self._connecting.cancel()
        if reason in LEAVING:
            self.listen.retry_ms = random.randint(*DRAIN_RETRY_MS)  # noqa: S311 - no secret
        self.listen.end()
        if isinstance(self._link, BridgedLink):
            self._link.end()
        if self._lease is not None:
            self._lease.release(reason)
        if self.journal is not None and reason == TAKEN_OVER:
            self.journal.let_go()  # it is its next owner's, who may not have read it yet
        elif self.journal is not None and reason not in LEAVING:
            self.journal.end()
        self._on_closed(self, reason)

    def _end_as_streams(self) -> None:
        """For a client that ends its session while calls of its own are open. While it closes, the official Python
        client stumbles over JSON answers now and then, and never over the same as event streams."""
        for call in self.exchange.every_call():
            if call.may_stream and call.stream is not Listen.STREAM:
                call.stream.become_stream()

    def __repr__(self) -> str:
        return f"<Session {self.id[:6]}… {self.transport} {self.state.value} {self.exchange!r}>"


def _too_late(reason: str, *, is_line: bool) -> GatewayError:
    """What a request gets that comes after such an end; where the session may go on elsewhere, it can be sent again."""
    if reason in LEAVING:
        return ShuttingDown()
    if reason == TAKEN_OVER:
        return RoutesUnavailable()
    return call_not_sent(reason) if is_line else later_request(reason)


def _is_over(expires_at: float | None) -> bool:
    return expires_at is not None and expires_at <= time.time()


def error_type_of(method: str, response: Response) -> str:
    """How an answer is counted: "" where it is a success."""
    if response.member == "error":
        return _error_type(response)
    return "tool_error" if method == "tools/call" and _is_tool_error(response) else ""


def _is_tool_error(response: Response) -> bool:
    """Whether a tool result says isError; it stands first or last, so a large result is not searched."""
    value = bytes(response.value) if len(response.value) < 256 else _ends(response)
    return b'"isError":true' in value or b'"isError": true' in value


def _ends(response: Response) -> bytes:
    view = memoryview(response.value)
    return bytes(view[:64]) + bytes(view[-64:])


def _error_type(response: Response) -> str:
    try:
        return error_label(int(bytes(members_of(response.value)["code"])))
    except (KeyError, ValueError):
        return "_OTHER"
