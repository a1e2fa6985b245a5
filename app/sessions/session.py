"""Session: one client's connection to one backend process. Bound to a principal, not to a token.

NEW --connect--> CONNECTING --process--> CONNECTED --initialize--> INITIALIZING --answered--> OPEN --close--> CLOSED
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import msgspec

from app.backends.connections.respawning import RespawningConnection
from app.backends.connections.session_connection import SessionConnection
from app.backends.connections.source import ConnectionLease, ConnectionSource
from app.domain import BackendSpec, Limits, Principal, public_id
from app.errors import BackendTimeout, GatewayError, InvalidMessage, RoutesUnavailable, ShuttingDown
from app.limits.caller_limits import Allowance
from app.limits.tenant_limits import TenantGate
from app.processes.endings import Exit
from app.protocol.commands import NOISE, Answer, Call, Command, Dropped, Failed, Listen, Several, ToBackend, ToStream
from app.protocol.eras.sessionless_envelope import SESSIONLESS, refuses_handshake
from app.protocol.exchange import Exchange, negotiated_version
from app.protocol.handshake_record import to_be_repeated
from app.protocol.jsonrpc import INTERNAL_ERROR, Notification, Request, Response
from app.protocol.revisions import ASSUMED, Revision
from app.sessions import endings
from app.sessions._calls import CallParts, SessionCalls
from app.sessions.call_observers import UNWATCHED, Watchers, observers_of
from app.sessions.loop_pause import HeldLines, StandstillDetector
from app.sessions.streams.journal import Journal
from app.sessions.streams.resumption import Resumption
from app.sessions.streams.session_streams import SessionStreams
from app.sessions.streams.streams import EventStream, Reply, Sink
from app.telemetry.capture.session_capture import SessionCapture
from app.telemetry.metrics import Metrics


class SessionState(Enum):
    NEW = "new"  # has an id, no process
    CONNECTING = "connecting"  # waits for a process
    CONNECTED = "connected"  # has a process that was sent nothing yet
    INITIALIZING = "initializing"  # `initialize` was sent
    OPEN = "open"  # `initialize` was answered with a result
    CLOSED = "closed"


class Trigger(Enum):
    CONNECT = "connect"
    PROCESS = "process"
    INITIALIZE = "initialize"
    ADOPT = "adopt"  # the process speaks 2026-07-28: there is no handshake
    ANSWERED = "answered"
    RESTORE = "restore"  # it was open on another node
    REFUSED = "refused"  # the backend answered `initialize` with an error: another try is allowed
    CLOSE = "close"


TRANSITIONS: dict[SessionState, dict[Trigger, SessionState]] = {
    SessionState.NEW: {
        Trigger.CONNECT: SessionState.CONNECTING,
        Trigger.RESTORE: SessionState.OPEN,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.CONNECTING: {Trigger.PROCESS: SessionState.CONNECTED, Trigger.CLOSE: SessionState.CLOSED},
    SessionState.CONNECTED: {
        Trigger.INITIALIZE: SessionState.INITIALIZING,
        Trigger.ADOPT: SessionState.OPEN,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.INITIALIZING: {
        Trigger.ANSWERED: SessionState.OPEN,
        Trigger.REFUSED: SessionState.CONNECTED,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.OPEN: {Trigger.CLOSE: SessionState.CLOSED},
    SessionState.CLOSED: {},
}


_SESSIONLESS = SESSIONLESS.encode()  # in each line that refuses `initialize` for it
POOLED_WAITING = 128  # calls that may wait at least: clients of a pooled session cannot open another one


class Surroundings(NamedTuple):
    """What the registry gives to each session."""

    transport: str
    gate: TenantGate
    metrics: Metrics
    on_closed: Callable[["Session", str], None]
    standstill: StandstillDetector
    stream_after_s: float
    on_timeout: Callable[["Session", Failed], None] = lambda session, failed: None
    on_opened: Callable[["Session", str], None] = lambda session, how: None  # and how
    watchers: Watchers = UNWATCHED
    on_request: Callable[["Session"], None] = lambda session: None  # something is under way


class Session:
    """One client, one BackendConnection, one Exchange. Starts no task: the process, the client and the sweep drive
    it."""

    def __init__(self, session_id: str, principal: Principal, spec: BackendSpec, around: Surroundings) -> None:
        self.id, self.public_id = session_id, public_id(session_id)
        self.principal, self.spec = principal, spec
        self.transport, self.gate, self._metrics, self._on_closed, self._standstill = around[:5]
        self._on_timeout, self._on_opened, self._on_request = around.on_timeout, around.on_opened, around.on_request
        self.version: str = Revision.R2024_11_05 if self.transport == "sse" else ASSUMED  # until the handshake
        call_s, initialize_s = spec.timeouts.call_s, spec.timeouts.initialize_s
        self.exchange = Exchange(call_s, initialize_s=initialize_s, max_calls=spec.calls_per_session)
        self.connection = SessionConnection(around.metrics)
        self.streams = SessionStreams(self, self.exchange, self.connection.hold_up, around.stream_after_s)
        parts = CallParts(spec, self.exchange, self.connection, self.streams, around.gate, around.standstill)
        observers = observers_of(self, around.gate, around.metrics, around.watchers)
        self.calls = SessionCalls(parts, around.metrics, observers)
        self.opened_at = self.last_seen = self.heard_at = time.monotonic()  # heard: from its process
        self.state, self._closed_for = SessionState.NEW, ""
        self.hello: bytes | None = None  # `initialize` as sent to the process, if it was
        self.journal: Journal | None = None  # of a durable session
        self._held = HeldLines(self.streams.back_pressure.change)
        self.refusal: GatewayError | None = None  # the answer to requests after the end, where one was given
        self.is_pooled = False  # shared by clients of 2026-07-28: its requests are not those of clients
        self.waited_s, self.bytes_received = 0.0, 0  # for its process, and from it
        self.address = ""  # of the client that opened it, where this node knows it
        self.client_info: msgspec.Raw | None = None  # `clientInfo` of a client that sent no `initialize`

    def _follow(self, trigger: Trigger) -> None:
        """Raises KeyError if the table has no such transition: a bug of the gateway."""
        self.state = TRANSITIONS[self.state][trigger]

    @property
    def log_fields(self) -> dict[str, object]:
        """Which one it is, for log lines."""
        names = {"tenant": self.spec.tenant, "backend": self.spec.name, "principal": self.principal.name}
        return {"session": self.public_id, **names}

    # --- opening

    def opened_by(self, address: str, client_info: msgspec.Raw | None = None) -> None:
        """Notes the client that has opened it."""
        self.address, self.client_info = address, client_info

    def become_pooled(self, listen: EventStream, reserved: int) -> None:
        """Clients of 2026-07-28 share it; what names no call goes to `listen`. `reserved` calls are the gateway's."""
        self.streams.listen_on(listen)
        self.is_pooled = True
        self.exchange.waiting.reserve(reserved, POOLED_WAITING)

    async def connect(self, source: ConnectionSource, limits: Limits) -> None:
        """Leases a process; if this raises, the caller closes the session.

        Raises:
            InvalidMessage: the session has, or waits for, a process already.
            BackendError: no process is available.
            SessionNotFound, ShuttingDown, Disabled: the session was closed meanwhile.
        """
        if self.state is SessionState.CLOSED:
            raise self._closed_meanwhile()
        if Trigger.CONNECT not in TRANSITIONS[self.state]:
            raise InvalidMessage("the session is initialized already")
        self._follow(Trigger.CONNECT)
        asked_at, asked_for = time.monotonic(), self.principal
        lease = await self.connection.ask(source, self.spec, limits, asked_for)
        if lease is None:
            raise self._closed_meanwhile()
        self._follow(Trigger.PROCESS)
        self.last_seen = time.monotonic()
        self.waited_s = self.last_seen - asked_at
        self.connection.attach(lease, self)
        if self.principal is not asked_for:  # `known_as`, while there was no lease to tell
            self.connection.caller_is(self.principal)
        if self.journal is not None:
            self.journal.attach(lease.record if isinstance(lease, RespawningConnection) else None)

    def _closed_meanwhile(self) -> GatewayError:
        leaves = self._closed_for in endings.LEAVING
        return self.refusal or (ShuttingDown() if leaves else endings.later_request(self._closed_for))

    def make_durable(self, journal: Journal) -> Resumption:
        """From now on the journal records everything that another node needs to continue this session."""
        self.journal = journal
        return self.streams.make_durable(journal)

    def restore(self, lease: ConnectionLease, version: str, opened_at: float, hello: bytes | None = None) -> None:
        """Opens the session as it was on another node, which had sent `hello`; its process may still be starting."""
        self._follow(Trigger.RESTORE)
        self.hello = hello
        self.version, self.opened_at = version, opened_at
        self.connection.attach(lease, self)
        self._on_opened(self, "taken over")

    def adopt(self, version: str) -> None:
        """Opens the session without a handshake: the revision that its process speaks has none."""
        self._follow(Trigger.ADOPT)
        self.version = version
        self.connection.handshake_succeeded()
        self._on_opened(self, "no handshake")

    def observe(self, capture: SessionCapture | None) -> None:
        """An inspection sees what passes from now on, on both sides; None: it has ended."""
        self.calls.observe(capture)
        self.connection.capture(capture, self)

    def known_as(self, principal: Principal) -> None:
        """A credential of its principal may be in other groups than the one that the session was opened with."""
        if principal.groups != self.principal.groups:
            self.principal = replace(self.principal, groups=principal.groups)
            self.connection.caller_is(self.principal)

    # --- from the client

    def reply(self, expected: int, *, may_stream: bool, expires_at: float | None = None) -> Reply:
        """A Reply for a POST with `expected` requests; `expires_at` is that of its credential, in Unix time."""
        return Reply(expected, may_stream=may_stream, make_stream=self.streams.new, expires_at=expires_at)

    def request(self, message: Request, stream: Sink | Listen, *, is_own: bool = False) -> None:
        """Sends a request, or queues it until its turn; its outcome goes to `stream`. `is_own`: it is the gateway's.

        Raises:
            InvalidMessage: the id is in flight, or it is too early or too late for this method.
            QuotaExceeded: too many calls are in flight, or they come too fast.
            BackendError: the process is gone or does not read.
            RoutesUnavailable: this node stood still, and another may own the session by now.
        """
        if self.state is not SessionState.OPEN or message.method == "initialize":
            self._admit(message)
        if self._standstill.is_detected():
            raise RoutesUnavailable
        now = self.last_seen = time.monotonic()
        self._on_request(self)
        line = self.calls.begin(message, stream, now, is_own=is_own)
        if message.method == "initialize":
            self._follow(Trigger.INITIALIZE)
            self.hello = line

    def refuse(self, message: Request, error: GatewayError) -> None:
        """Answers a request with an error on the listen stream; closes a session that has no process."""
        call = Call(message.id, b"", message.method, Listen.STREAM, True, 0.0, 0.0)
        self.streams.listen.answer(Failed(call, error))
        if not self.connection.is_attached and self.state is SessionState.CONNECTING:
            self.close("no_process", error)

    def notify(self, message: Notification) -> None:
        """Sends a notification.

        Raises:
            RateLimited: they come too fast.
            BackendError, RoutesUnavailable: as `request`.
        """
        now = self._accept()
        self.gate.check_rate(now)
        line = self._line_of(message, now)
        self.calls.told(message)
        if line is not None:
            self.connection.send(line)

    def try_notify(self, message: Notification) -> None:
        """Sends a notification of the gateway's own; ignores a process that is gone or does not read."""
        line = self._line_of(message, time.monotonic())
        if line is not None:
            self.connection.tell(line)

    def _line_of(self, message: Notification, now: float) -> bytes | None:
        """The line to send; None where the notification cancels a call that was not sent yet."""
        withdrawn = self.exchange.withdraw(message) if self.exchange.waiting.calls else None
        if withdrawn is None:
            return self.exchange.notification(message, now)
        self._carry_out(withdrawn)
        return None

    def refuse_question(self, our_id: bytes, why: str, code: int = INTERNAL_ERROR) -> None:
        """Answers a question of the backend with an error."""
        line = self.exchange.questions.refuse(our_id, why, code)
        if line is not None:
            self.connection.tell(line)

    def respond(self, message: Response) -> None:
        """Sends the answer to a question of the backend; drops one to a question that is not open.

        Raises:
            BackendError, RoutesUnavailable: as `request`.
        """
        self._accept()
        line = self.exchange.questions.answer(message)
        self.calls.told(message)
        if line is None:
            self._metrics.messages_dropped.labels("unknown_response").inc()
        else:
            self.connection.send(line)

    def _accept(self) -> float:
        """Notes that the client is there; returns the time. Raises RoutesUnavailable as `request`."""
        if self._standstill.is_detected():
            raise RoutesUnavailable
        self.last_seen = time.monotonic()
        return self.last_seen

    def _admit(self, message: Request) -> None:
        if message.method == "initialize":
            if Trigger.INITIALIZE not in TRANSITIONS[self.state]:
                raise InvalidMessage("the session is initialized already")
        elif self.state is SessionState.CLOSED:
            raise self.refusal or endings.later_request(self._closed_for)
        elif message.method not in ("ping", "server/discover") or not self.connection.is_attached:
            raise InvalidMessage("the first request of a session is `initialize`")

    # --- from the backend (BackendListener)

    def backend_sent(self, line: bytes) -> None:
        if self.state is SessionState.INITIALIZING and self._bridges(line):
            return
        if self._standstill.is_detected():
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
            elif type(command) is Dropped and command.reason == NOISE:
                self.connection.heard_noise(line)

    def backend_answered(self, call: bytes, result: bytes) -> None:
        """As `backend_sent`, of an answer whose result is at hand (BridgedSession)."""
        if self._standstill.is_detected():
            self._held.add(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call, result))
        else:
            self._carry_out(self.exchange.answered(call, result))

    def call_counted(self, call: bytes, allowances: Sequence[Allowance]) -> None:
        """As ToolsetSession."""
        counted = self.exchange.calls.get(call)
        if counted is not None and counted.stream is not Listen.STREAM:
            counted.stream.counted(allowances)

    def deliver_held(self) -> None:
        """Handles what the process said during a standstill, as the session is still ours. Idempotent."""
        for line in self._held.take():
            self.backend_sent(line)
        self.calls.give_turns(time.monotonic())

    def backend_asked(self, line: bytes, among: tuple[bytes, ...]) -> None:
        """A question of the backend that belongs to one of these calls (BridgedSession)."""
        self._carry_out(self.exchange.receive_question(line, among, time.monotonic()))

    def _bridges(self, line: bytes) -> bool:
        """Whether this line refuses `initialize`, as the process speaks 2026-07-28 only; puts a bridge before it."""
        if self.hello is None or self.is_pooled or self.connection.is_bridged:
            return False
        if _SESSIONLESS not in line or not refuses_handshake(line):
            return False
        if self.journal is not None:
            self.journal.end()  # it does not have the bridge's state
        self.connection.bridge(self)
        self.connection.tell(to_be_repeated(self.hello))
        return True

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        command = self.exchange.receive_oversized(beginning, end)
        self._carry_out(command)
        if type(command) is Failed:
            self._came_to_nothing(command.call)

    def backend_exited(self, exit: Exit) -> None:
        was_open = self.state is SessionState.OPEN
        hint = None if was_open else "It ended before it answered `initialize`."
        self.close(endings.BACKEND_EXITED, exit.error(started=was_open, hint=hint))

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        failed = self.exchange.calls.get(call)
        if failed is not None:
            self.exchange.abandon(failed)
            self._carry_out(Failed(failed, error))

    def step_begins(self, call: bytes) -> None:
        if self._standstill.is_detected():
            raise RoutesUnavailable
        self.calls.begin_step(self.exchange.calls.get(call), time.monotonic())

    def step_ends(self) -> None:
        self.gate.end_step()

    def _answered(self, answer: Answer, now: float) -> None:
        call, response = answer.call, answer.response
        if call.method == "initialize":
            self._initialized(response)
        self.last_seen = now
        self.calls.answer(answer, now, keeps=not self.is_pooled)
        if response.member == "error":
            self._came_to_nothing(call)

    def _came_to_nothing(self, call: Call) -> None:
        """A failed `initialize` of a POST ends the session: its client has no session id and opens another."""
        if call.method == "initialize" and call.stream is not Listen.STREAM:
            self.close("not_initialized")

    def _initialized(self, response: Response) -> None:
        if response.member == "error":
            self._follow(Trigger.REFUSED)
            return
        self._follow(Trigger.ANSWERED)
        self.version = negotiated_version(response.value) or self.version
        self.connection.handshake_succeeded()
        self._on_opened(self, "handshake")

    def _carry_out(self, command: Command) -> None:
        match command:
            case ToStream(stream=stream):
                self.calls.pushed(command)
                (self.streams.listen if stream is Listen.STREAM else stream).push(command)
            case ToBackend(line=line):
                self.connection.tell(line)
            case Failed():
                self.last_seen = time.monotonic()
                self.calls.fail(command)
            case Several(lines=lines):
                for each in lines:
                    self.backend_sent(each)
            case Dropped(reason=reason):
                self._metrics.messages_dropped.labels(reason).inc()
            case Answer():
                self._answered(command, time.monotonic())

    # --- from its streams (StreamOwner)

    def client_seen(self) -> None:
        self.last_seen = time.monotonic()

    def message_dropped(self, reason: str, question: bytes | None) -> None:
        self._metrics.messages_dropped.labels(reason).inc()
        if question is not None:
            self.refuse_question(question, "nobody reads the client's stream")

    # --- time, and the end

    def sweep(self, now: float) -> None:
        """Ends overdue calls and questions; turns a POST that has waited long into a stream."""
        if self.exchange.has_questions:
            self.exchange.questions.client_is_there(self.streams.is_read, now)
        for command in list(self.exchange.expire(now, self.connection.unsent())):
            if isinstance(command, Failed) and isinstance(command.error, BackendTimeout):
                self._on_timeout(self, command)  # before its caller is told: it may know why
            self._carry_out(command)
            if isinstance(command, Failed) and command.call.method == "initialize":
                self.close("initialize_timeout", command.error)
                return
        self.streams.sweep(now, self.connection.answering)

    def close(self, reason: str, error: GatewayError | None = None, *, refusal: GatewayError | None = None) -> None:
        """Ends the session, its streams and its lease. Idempotent.

        Calls in flight get `error`, by default that of the reason. Calls that waited for their turn, or for a process,
        were not sent, and get what later requests get: `refusal`, by default that of the reason.
        """
        if self.state is SessionState.CLOSED:
            return
        if reason == endings.DELETED:
            self.streams.stream_calls()
        self.refusal = refusal
        not_sent = refusal or endings.too_late(reason, is_pooled=self.is_pooled)
        error = error or endings.cut_off(reason)
        for failed in self.exchange.fail_all(error, waiting=not_sent, unsent=self.connection.unsent()):
            self._carry_out(failed)
        self._follow(Trigger.CLOSE)
        self._closed_for = reason
        self.streams.end(random.randint(*endings.DRAIN_RETRY_MS) if reason in endings.LEAVING else None)  # noqa: S311 - no secret
        self.connection.release(reason)
        if self.journal is not None and reason == endings.TAKEN_OVER:
            self.journal.let_go()  # its next owner may not have read it yet
        elif self.journal is not None and reason not in endings.LEAVING:
            self.journal.end()
        self._on_closed(self, reason)
