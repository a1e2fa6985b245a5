"""SessionCalls: the calls of one session, from the gate that lets them in to the count of what they came to."""

import time
from typing import Protocol

from app.domain import BackendSpec
from app.errors import BackendError, CredentialExpired, GatewayError, QuotaExceeded
from app.limits.gates import TenantGate
from app.links.session_link import SessionLink
from app.metrics import Metrics, error_label, method_label
from app.protocol.commands import Call, Failed, Listen
from app.protocol.eras.modern import MODERN, SUPPORTED
from app.protocol.exchange import Exchange
from app.protocol.jsonrpc import Request, Response, code_of
from app.reached import Reached
from app.sessions.standstill import Fence
from app.streams.session_streams import SessionStreams
from app.streams.streams import Sink

KNOWN_VERSIONS = frozenset(SUPPORTED)


class CallsOwner(Protocol):
    """The session, as its calls see it."""

    is_line: bool  # what it is asked is not what a client asked
    version: str

    @property
    def transport(self) -> str:
        """How its client comes."""

    @property
    def exchange(self) -> Exchange:
        """Which calls there are."""

    @property
    def link(self) -> SessionLink:
        """Where they go."""

    @property
    def streams(self) -> SessionStreams:
        """Where a failure goes that belongs to no POST."""

    def client_seen(self) -> None:
        """Something was done for its client."""


class SessionCalls:
    """Lets calls in, sends those whose turn has come, and counts them when they are over."""

    __slots__ = (
        "_exchange", "_fence", "_gate", "_is_giving_turns", "_metrics", "_session", "_spec", "begun", "bytes_sent",
    )  # fmt: skip

    def __init__(
        self, session: CallsOwner, spec: BackendSpec, gate: TenantGate, metrics: Metrics, fence: Fence
    ) -> None:
        self._session, self._spec, self._gate, self._metrics, self._fence = session, spec, gate, metrics, fence
        self._exchange = session.exchange
        self._is_giving_turns = False
        self.begun = self.bytes_sent = 0

    def begin(self, message: Request, stream: Sink | Listen, now: float, *, is_own: bool) -> bytes | None:
        """Sends a call, or has it wait for its turn. Returns its line; None where it waits.

        Raises:
            As Session.request.
        """
        may_stream = stream is Listen.STREAM or stream.may_stream
        self._gate.begin_call(now)
        try:
            call, line = self._exchange.request(message, stream, now, may_stream=may_stream, is_own=is_own)
            try:
                if line is not None:
                    self._session.link.send(line)
                    self.bytes_sent += len(line)
            except BackendError:
                self._exchange.abandon(call)
                raise
        except BaseException as error:
            self._gate.end_call()
            self._note_limit(error)
            raise
        self.begun += 1
        return line

    def require_room(self, messages: int, calls: int, size: int) -> None:
        """Looks whether a batch fits whole, before anything of it is passed on.

        Raises:
            QuotaExceeded, RateLimited, Overloaded: it does not.
        """
        try:
            self._exchange.waiting.require_room(calls, size)
        except QuotaExceeded as error:
            self._note_limit(error)
            raise
        self._gate.require_room(messages, calls, time.monotonic())

    def _note_limit(self, error: BaseException) -> None:
        """The exchange knows its limit, and not whose it is."""
        if isinstance(error, QuotaExceeded) and error.reached is None:
            self._metrics.rate_limited.labels(error.limit).inc()
            allowed, used = self._spec.calls_per_session, self._exchange.in_flight
            error.at(Reached.of_backend(error.limit, self._spec.key, allowed, used, of="session"))

    def give_turns(self, now: float) -> None:
        """Sends the calls whose turn has come. Some are answered while they are sent, so this is not begun twice."""
        if self._is_giving_turns or self._fence.is_closed():
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
            self._session.link.send(line)
            self.bytes_sent += len(line)
        except GatewayError as error:
            self._exchange.abandon(call)
            self.fail(Failed(call, error, was_sent=False))

    def fail(self, failed: Failed) -> None:
        """A call comes to nothing; whoever made it hears so."""
        call, error = failed.call, failed.error.after_sending() if failed.was_sent else failed.error
        self._session.client_seen()
        self.done(call, error.reason, time.monotonic(), was_sent=failed.was_sent)
        (self._session.streams.listen if call.stream is Listen.STREAM else call.stream).answer(failed)

    def done(self, call: Call, error_type: str, now: float, *, was_sent: bool = True) -> None:
        """A call has its outcome: its place is free, for the next that waits for one, its time is counted."""
        self._gate.end_call()
        if self._exchange.waiting.calls:
            self.give_turns(now)
        seconds, method, session = now - call.started, method_label(call.method), self._session
        if was_sent:
            self._metrics.client_operations.labels(method, error_type).observe(seconds - call.waited_s)
        if not session.is_line:
            version = session.version if session.version in KNOWN_VERSIONS else "_OTHER"  # a backend says what it likes
            self._metrics.server_operations.labels(method, error_type, session.transport, version).observe(seconds)

    def count_request(self, method: str, error_type: str, seconds: float) -> None:
        """A client of 2026-07-28 has got an answer that came from this line, or needed nothing from it."""
        labels = method_label(method), error_type, self._session.transport, MODERN
        self._metrics.server_operations.labels(*labels).observe(seconds)

    def __repr__(self) -> str:
        return f"<SessionCalls [{self.begun} begun] {self._exchange!r}>"


def is_past(expires_at: float | None) -> bool:
    """Whether a credential has expired that ends then, in Unix time."""
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
    code = code_of(response)
    return "_OTHER" if code is None else error_label(code)
