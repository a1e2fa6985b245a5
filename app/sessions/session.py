"""Session: one client's line to one process of its own. Bound to a principal, never to a token's bytes."""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendExited, BackendTimeout, GatewayError, InvalidMessage, RoutesUnavailable, ShuttingDown
from app.limits.gates import TenantGate
from app.links.session_link import SessionLink
from app.links.source import LinkLease, LinkSource
from app.metrics import Metrics
from app.processes.link import Exit
from app.protocol.commands import Answer, Call, Command, Dropped, Failed, Listen, Several, ToBackend, ToStream
from app.protocol.eras.modern import refuses_handshake
from app.protocol.exchange import Exchange, negotiated_version
from app.protocol.jsonrpc import INTERNAL_ERROR, Notification, Request, Response
from app.protocol.lifecycle import Lifecycle, SessionState, Trigger
from app.protocol.revisions import ASSUMED
from app.sessions.calls import SessionCalls, error_type_of
from app.sessions.endings import (
    BACKEND_EXITED,
    DELETED,
    DRAIN_RETRY_MS,
    LEAVING,
    TAKEN_OVER,
    cut_off,
    later_request,
    too_late,
)
from app.sessions.standstill import Fence, HeldLines
from app.streams.journal import Journal
from app.streams.resumption import Resumption
from app.streams.session_streams import SessionStreams
from app.streams.streams import EventStream, Reply, Sink

LINE_WAITING = 128  # calls that may wait at least where their client cannot open another session
_BEFORE_OPEN = ("ping", "server/discover")
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
        self.transport, self.gate, self._metrics, self._on_closed, self._fence = around[:5]
        self._on_timeout, self._on_opened = around.on_timeout, around.on_opened
        self.version: str = ASSUMED
        call_s, initialize_s = spec.timeouts.call_s, spec.timeouts.initialize_s
        self.exchange = Exchange(call_s, initialize_s=initialize_s, max_calls=spec.calls_per_session)
        self.link = SessionLink(around.metrics)
        self.streams = SessionStreams(self, self.exchange, self.link.hold_up, around.stream_after_s)
        self.calls = SessionCalls(self, spec, around.gate, around.metrics, around.fence)
        self.opened_at = self.last_seen = self.heard_at = time.monotonic()  # from its client, from its process
        self._lifecycle = Lifecycle()
        self.hello: bytes | None = None  # `initialize` as its process got it, where it had one
        self.journal: Journal | None = None  # of a session that can go on at another node
        self._held = HeldLines(self.streams.pressure)
        self._closed_for = ""
        self.refusal: GatewayError | None = None  # what is said to whoever asks after the end, where that is known
        self.is_line = False  # of 2026-07-28 clients: what it is asked is not what a client asked
        self.waited_s = 0.0  # for its process
        self.bytes_received = 0  # from its process
        self.address = ""  # the client's that opened it, where this node knows it
        self.client_info: msgspec.Raw | None = None  # what that client says of itself, where that is not in `hello`

    @property
    def state(self) -> SessionState:
        """Where the session is in its life."""
        return self._lifecycle.state

    # --- opening

    def become_line(self, listen: EventStream, reserved: int) -> None:
        """Clients of 2026-07-28 share it: what names no call goes to `listen`, and so many calls are for our own."""
        self.streams.listen_on(listen)
        self.is_line, self.exchange.waiting.reserved = True, reserved
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
        lease = await self.link.ask(source, self.spec, limits, self.principal)
        if lease is None:
            raise self.refusal or (ShuttingDown() if self._closed_for in LEAVING else later_request(self._closed_for))
        self._lifecycle.follow(Trigger.PROCESS)
        self.last_seen = time.monotonic()
        self.waited_s = self.last_seen - asked_at
        self.link.attach(lease, self)
        if self.journal is not None:
            self.journal.attach(lease)

    def make_durable(self, journal: Journal) -> Resumption:
        """From now on everything that another node needs to go on with this session gets into the journal."""
        self.journal = journal
        return self.streams.make_durable(journal)

    def restore(self, lease: LinkLease, version: str, opened_at: float, hello: bytes | None = None) -> None:
        """Opens the session as it was on another node, which had sent `hello`; its process may be on its way."""
        self._lifecycle.follow(Trigger.RESTORE)
        self.hello = hello
        self.version, self.opened_at = version, opened_at
        self.link.attach(lease, self)
        self._on_opened(self, "taken over")

    def adopt(self, version: str) -> None:
        """Opens the session without a handshake: its process speaks a revision that has none."""
        self._lifecycle.follow(Trigger.ADOPT)
        self.version = version
        self.link.handshake_succeeded()
        self._on_opened(self, "no handshake")

    # --- from the client

    def reply(self, expected: int, *, may_stream: bool, expires_at: float | None = None) -> Reply:
        """A Reply for a POST with this many requests, sent with a credential that ends then."""
        return Reply(expected, may_stream=may_stream, make_stream=self.streams.new, expires_at=expires_at)

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
        if self._fence.is_closed():
            raise RoutesUnavailable
        now = self.last_seen = time.monotonic()
        line = self.calls.begin(message, stream, now, is_own=is_own)
        if message.method == "initialize":
            self._lifecycle.follow(Trigger.INITIALIZE)
            self.hello = line

    def refuse(self, message: Request, error: GatewayError) -> None:
        """Answers a request with an error on the listen stream; without a process the session is over."""
        call = Call(message.id, b"", message.method, Listen.STREAM, True, 0.0, 0.0)
        self.streams.listen.answer(Failed(call, error))
        if not self.link.is_attached and self.state is SessionState.CONNECTING:
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
            self.link.send(line)

    def try_notify(self, message: Notification) -> None:
        """The same for a notification of our own; a process that is gone or deaf will be noticed by others."""
        line = self._line_of(message, time.monotonic())
        if line is not None:
            self.link.tell(line)

    def _line_of(self, message: Notification, now: float) -> bytes | None:
        """What the process is to hear: nothing where a call is cancelled that it has not heard of."""
        withdrawn = self.exchange.withdraw(message) if self.exchange.waiting.calls else None
        if withdrawn is None:
            return self.exchange.notification(message, now)
        self._carry_out(withdrawn)
        return None

    def refuse_question(self, our_id: bytes, why: str, code: int = INTERNAL_ERROR) -> None:
        """Tells the backend that its question is not asked."""
        line = self.exchange.questions.refuse(our_id, why, code)
        if line is not None:
            self.link.tell(line)

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
            self.link.send(line)

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
        elif message.method not in _BEFORE_OPEN or not self.link.is_attached:
            raise InvalidMessage("the first request of a session is `initialize`")

    # --- from the backend (BackendListener)

    def backend_sent(self, line: bytes) -> None:
        """One line of the process."""
        if self._lifecycle.state is SessionState.INITIALIZING and self._bridges(line):
            return
        if self._fence.is_closed():
            self._held.add(line)
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

    def deliver_held(self) -> None:
        """The session is ours: what the process said goes its way, and whose turn came meanwhile. Idempotent."""
        for line in self._held.take():
            self.backend_sent(line)
        self.calls.give_turns(time.monotonic())

    def backend_asked(self, line: bytes, related: bytes) -> None:
        """A question that belongs to this call (BridgedSession)."""
        self._carry_out(self.exchange.receive_question(line, related, time.monotonic()))

    def _bridges(self, line: bytes) -> bool:
        """Whether the process has just refused `initialize` because it speaks 2026-07-28 only: then it is bridged."""
        if self.hello is None or self.is_line or self.link.is_bridged or not refuses_handshake(line):
            return False
        if self.journal is not None:
            self.journal.end()  # what the bridge knows is not written down
        self.link.bridge(self)
        self.link.tell(self.hello)
        return True

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        """A line over the limit was thrown away."""
        command = self.exchange.receive_oversized(beginning, end)
        self._carry_out(command)
        if type(command) is Failed:
            self._came_to_nothing(command.call)

    def backend_exited(self, exit: Exit) -> None:
        """The process is gone: every call gets its error, and the session ends."""
        was_open = self.state is SessionState.OPEN
        hint = None if was_open else "It ended before it answered `initialize`."
        words = f"the backend ended: {exit.description}"
        self.close(BACKEND_EXITED, BackendExited(words, started=was_open, stderr=exit.stderr, hint=hint))

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
        self.last_seen = now
        self.calls.done(call, call.error_type, now)
        size = len(response.value)
        if size > LARGE_ANSWER_BYTES:
            self.link.asked_for(size)
        target = self.streams.listen if call.stream is Listen.STREAM else call.stream
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
        self.link.handshake_succeeded()
        self._on_opened(self, "handshake")

    def _carry_out(self, command: Command) -> None:
        match command:
            case ToStream(stream=stream):
                (self.streams.listen if stream is Listen.STREAM else stream).push(command)
            case ToBackend(line=line):
                self.link.tell(line)
            case Failed():
                self.calls.fail(command)
            case Several(lines=lines):
                for each in lines:
                    self.backend_sent(each)
            case Dropped(reason=reason):
                self._metrics.messages_dropped.labels(reason).inc()
            case Answer():
                self._answered(command, time.monotonic())

    # --- from its streams and calls (StreamOwner, CallsOwner)

    def client_seen(self) -> None:
        """See StreamOwner and CallsOwner."""
        self.last_seen = time.monotonic()

    def message_dropped(self, reason: str, question: bytes | None) -> None:
        """See StreamOwner: a question gets an error for an answer."""
        self._metrics.messages_dropped.labels(reason).inc()
        if question is not None:
            self.refuse_question(question, "nobody reads the client's stream")

    # --- time, and the end

    def sweep(self, now: float) -> None:
        """Ends what is overdue; lets a POST that has waited long become a stream."""
        if self.exchange.has_questions:
            self.exchange.questions.client_is_there(self.streams.is_read, now)
        for command in list(self.exchange.expire(now)):
            self._carry_out(command)
            if not isinstance(command, Failed):
                continue
            if isinstance(command.error, BackendTimeout):
                self._on_timeout(self, command)
            if command.call.method == "initialize":
                self.close("initialize_timeout", command.error)
                return
        self.streams.sweep(now, self.link.answering)

    def close(self, reason: str, error: GatewayError | None = None, *, refusal: GatewayError | None = None) -> None:
        """Ends the session: calls in flight get `error`, or what the reason says; streams end, and so does the lease.

        Calls that waited for their turn hear what a request would hear that came now, which is `refusal` if there is
        one: nothing of them was sent.
        """
        if self.state is SessionState.CLOSED:
            return
        if reason == DELETED:
            self.streams.stream_calls()
        self.refusal = refusal
        not_sent = refusal or too_late(reason, is_line=self.is_line)
        for failed in self.exchange.fail_all(error or cut_off(reason), waiting=not_sent):
            self._carry_out(failed)
        self._lifecycle.follow(Trigger.CLOSE)
        self._closed_for = reason
        self.streams.end(random.randint(*DRAIN_RETRY_MS) if reason in LEAVING else None)  # noqa: S311 - no secret
        self.link.release(reason)
        if self.journal is not None and reason == TAKEN_OVER:
            self.journal.let_go()  # it is its next owner's, who may not have read it yet
        elif self.journal is not None and reason not in LEAVING:
            self.journal.end()
        self._on_closed(self, reason)

    def __repr__(self) -> str:
        return f"<Session {self.id[:6]}… {self.transport} {self.state.value} {self.exchange!r}>"
