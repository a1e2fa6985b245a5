"""SessionCalls: the calls of one session, from the tenant's gate to those who observe their outcomes."""

import time
from typing import NamedTuple

import msgspec

from app.backends.connections.session_connection import SessionConnection
from app.domain import BackendSpec
from app.errors import BackendError, CredentialExpired, GatewayError, LimitReached, QuotaExceeded, ResponseTooLarge
from app.limits.tenant_limits import TenantGate
from app.limits.unread_answers import LARGE_BYTES
from app.protocol.commands import Answer, Call, Failed, Listen, ToStream, is_tool_error
from app.protocol.exchange import Exchange
from app.protocol.jsonrpc import ABSENT, Notification, Request, Response, code_of, members_of
from app.protocol.sse_format import one_line
from app.sessions.call_observers import Asked, CallObserver, CallObservers, ids_now
from app.sessions.loop_pause import StandstillDetector
from app.sessions.streams.session_streams import SessionStreams
from app.sessions.streams.streams import Sink
from app.telemetry.capture.session_capture import SessionCapture
from app.telemetry.metrics import Metrics, error_label


class CallParts(NamedTuple):
    """Of the session, through which its calls pass."""

    spec: BackendSpec
    exchange: Exchange
    connection: SessionConnection
    streams: SessionStreams
    gate: TenantGate
    standstill: StandstillDetector


class SessionCalls:
    """Admits calls, sends those whose turn has come, and tells observers when they are over. Knows no session."""

    __slots__ = (
        "_connection", "_exchange", "_gate", "_is_giving_turns", "_metrics", "_observers", "_own_observers", "_spans",
        "_spec", "_standstill", "_streams", "begun", "bytes_sent", "capture", "count_request",
    )  # fmt: skip

    def __init__(self, parts: CallParts, metrics: Metrics, observers: CallObservers) -> None:
        self._spec, self._exchange, self._connection, self._streams, self._gate, self._standstill = parts
        self._metrics, self._spans, self.count_request = metrics, observers.spans, observers.metrics.count
        self._own_observers: list[CallObserver] = [each for each in observers if each is not None]
        self._observers = self._own_observers
        self._is_giving_turns = False
        self.begun = self.bytes_sent = 0
        self.capture: SessionCapture | None = None  # of an inspection, while one is open

    def observe(self, capture: SessionCapture | None) -> None:
        """An inspection sees the calls from now on, or none does any more."""
        self.capture = capture
        self._observers = self._own_observers if capture is None else [*self._own_observers, capture]

    def told(self, message: Notification | Response) -> None:
        """The client sends something that needs no answer."""
        if self.capture is not None:
            self.capture.told(message)

    def pushed(self, command: ToStream) -> None:
        """The client gets a notification or a question."""
        if self.capture is not None:
            self.capture.pushed(command.payload)

    def begin(self, message: Request, stream: Sink | Listen, now: float, *, is_own: bool) -> bytes | None:
        """Sends a call, or queues it until its turn. Returns its line; None if it waits. Raises as Session.request."""
        may_stream = stream is Listen.STREAM or stream.may_stream
        try:
            self._gate.begin_call(now)
        except GatewayError as error:
            self._refused(message, error, now, is_own=is_own)
            raise
        ids, span, asked = ids_now(), None, message
        if self._spans is not None:
            message, span = self._spans.begin(message, ids)
        try:
            call, line = self._exchange.request(message, stream, now, may_stream=may_stream, is_own=is_own)
            call.came_with(ids, span)
            if self.capture is not None and not is_own:
                self.capture.asked(asked, call)
            try:
                if line is not None:
                    self._connection.send(line)
                    self.bytes_sent += len(line)
            except BackendError:
                self._exchange.abandon(call)
                raise
        except BaseException as error:
            self._gate.end_call()
            self._refused(message, error, now, is_own=is_own)
            raise
        if span is not None and span.is_whole:
            span.context.take()
        self.begun += 1
        self._gate.call_sent()
        return line

    def _refused(self, message: Request, error: BaseException, now: float, *, is_own: bool) -> None:
        self._note_limit(error)
        if not is_own and isinstance(error, GatewayError):
            for each in self._observers:
                each.refused(message, error, now)

    def require_room(self, messages: int, calls: int, size: int) -> None:
        """Raises QuotaExceeded, RateLimited or Overloaded if a batch does not fit whole; sends nothing."""
        try:
            self._exchange.waiting.require_room(calls, size)
        except QuotaExceeded as error:
            self._note_limit(error)
            raise
        self._gate.require_room(messages, calls, time.monotonic())

    def _note_limit(self, error: BaseException) -> None:
        """Adds whose limit it is, which the exchange does not know."""
        if isinstance(error, QuotaExceeded) and error.reached is None:
            self._metrics.rate_limited.labels(error.limit).inc()
            allowed, used = self._spec.calls_per_session, self._exchange.in_flight
            error.at(LimitReached.of_backend(error.limit, self._spec.key, allowed, used, of="session"))

    def give_turns(self, now: float) -> None:
        """Sends the calls whose turn has come. Does nothing if called from within, by an answer that comes at once."""
        if self._is_giving_turns or self._standstill.is_detected():
            return
        self._is_giving_turns = True
        try:
            while (turn := self._exchange.next_turn(now)) is not None:
                self._send_in_turn(*turn)
        finally:
            self._is_giving_turns = False

    def _send_in_turn(self, call: Call, line: bytes) -> None:
        try:
            if call.stream is not Listen.STREAM and is_past(call.stream.expires_at):
                raise CredentialExpired
            self._connection.send(line)
            self.bytes_sent += len(line)
        except GatewayError as error:
            self._exchange.abandon(call)
            self.fail(Failed(call, error, was_sent=False))

    def begin_step(self, call: Call | None, now: float) -> None:
        """Counts a call that a recipe makes for this call. Raises as `StepGate.step_begins`."""
        if call is not None and call.stream is not Listen.STREAM and is_past(call.stream.expires_at):
            raise CredentialExpired
        try:
            self._gate.begin_step(now)
        except GatewayError as error:
            self._note_limit(error)
            raise

    def answer(self, answer: Answer, now: float, *, keeps: bool) -> None:
        """Ends a call with what its backend has answered, and passes that on. `keeps`: what is large, until it is read;
        else it is changed before that (`kept`)."""
        call, response = answer.call, answer.response
        error_type = error_type_of(call.method, response)
        if error_type:
            call.answered_as(error_type)
        size = len(response.value)
        if size > LARGE_BYTES:
            self._connection.asked_for(size)
            if keeps:
                try:
                    answer = self.kept(answer)
                except ResponseTooLarge as error:
                    self.fail(Failed(call, error))
                    return
        self._done(answer, error_type, now, size)
        (self._streams.listen if call.stream is Listen.STREAM else call.stream).answer(answer)

    def kept(self, answer: Answer) -> Answer:
        """The answer, with a large value as it is kept until its client has read it.

        Raises:
            ResponseTooLarge: the tenant's clients have not read too many bytes yet.
        """
        response, large = answer.response, answer.large
        if len(response.value) <= LARGE_BYTES:
            return answer
        json = one_line(bytes(response.value)) if large is None else large.json
        large = self._gate.keep_unread(json, answer.call.size)
        return Answer(answer.call, Response(response.id, response.member, msgspec.Raw(large.json)), large)

    def fail(self, failed: Failed) -> None:
        """Ends a call with an error, and answers it."""
        call, error = failed.call, failed.error.after_sending() if failed.was_sent else failed.error
        self._done(failed, error.reason, time.monotonic())
        (self._streams.listen if call.stream is Listen.STREAM else call.stream).answer(failed)

    def _done(self, outcome: Answer | Failed, error_type: str, now: float, size: int = 0) -> None:
        """A call has its outcome, of so many bytes: frees its place, sends the next that waits for one, and tells those
        who observe calls."""
        self._gate.end_call()
        if self._exchange.waiting.calls:
            self.give_turns(now)
        seconds = now - outcome.call.started
        for each in self._observers:
            each.over(outcome, error_type, seconds, size)

    def served(self, asked: Asked, outcome: Answer | Failed, error_type: str, size: int) -> None:
        """A request of a 2026-07-28 client has its answer, of so many bytes."""
        seconds = time.monotonic() - asked.began_at
        for each in self._observers:
            each.served(asked, outcome, error_type, seconds, size)


def is_past(expires_at: float | None) -> bool:
    """Whether a credential that ends at this Unix time has expired."""
    return expires_at is not None and expires_at <= time.time()


def error_type_of(method: str, response: Response) -> str:
    """The label `error_type` of an answer: "" for a success."""
    if response.member == "error":
        code = code_of(response)
        return "_OTHER" if code is None else error_label(code)
    if method == "tools/call" or method == "tasks/result":
        return "tool_error" if is_tool_error(response.value) else ""
    if method == "tasks/get":  # in 2026-07-28 a finished task has the tool's result within
        return "tool_error" if is_tool_error(members_of(response.value).get("result", ABSENT)) else ""
    return ""
