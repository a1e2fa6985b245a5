"""CapturedConnection: a connection that tells an inspection what passes. It is there while one is open; others pay
nothing. PassingConnection: what a connection around another one passes on as it is."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from app.errors import GatewayError, InvalidMessage
from app.processes.connection import BackendConnection, BackendListener, CallListener
from app.processes.endings import Exit
from app.protocol.jsonrpc import parse_backend, several

Outer = Callable[[bytes], bytes | None]


class Capture(Protocol):
    """What is told (`telemetry.capture.session_capture.SessionCapture`)."""

    def to_backend(self, line: bytes, member: str = "", outer: Outer | None = None) -> None:
        """A line is written. `outer`: the session's id of a call, by that which is in the line."""

    def from_backend(self, line: bytes, member: str = "") -> None:
        """A message has come; `passed_on` follows when all that it causes has happened."""

    def passed_on(self) -> None: ...


@runtime_checkable
class Capturable(Protocol):
    """A connection with others behind it, which are captured instead: all is seen as the processes see it."""

    def capture(self, capture: Capture | None, member: str = "") -> None:
        """`capture` is told from now on; None: nobody any more."""


class PassingConnection:
    """Around `_connection`, which may be replaced by another one."""

    def __init__(self, connection: BackendConnection) -> None:
        self._connection = connection

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    def asked_for(self, size: int) -> None:
        self._connection.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        self._connection.heard_noise(line)

    def answering(self) -> bytes | None:
        return self._connection.answering()


class CapturedConnection(PassingConnection):
    """Fulfils BackendConnection toward the session, and CallListener toward the connection."""

    def __init__(
        self,
        connection: BackendConnection,
        listener: CallListener,
        capture: Capture,
        member: str = "",
        outer: Outer | None = None,
    ) -> None:
        super().__init__(connection)
        self._listener, self._capture, self._member, self._outer = listener, capture, member, outer
        connection.attach(self)

    def removed(self) -> BackendConnection:
        """The connection, which talks to the listener itself again."""
        self._connection.attach(self._listener)
        return self._connection

    # --- BackendConnection

    def attach(self, listener: BackendListener) -> None:
        assert isinstance(listener, CallListener)
        self._listener = listener

    def send(self, line: bytes) -> None:
        self._capture.to_backend(line, self._member, self._outer)
        self._connection.send(line)

    # --- CallListener

    def backend_sent(self, line: bytes) -> None:
        """The messages of a batch are handed over one by one, as the listener would take them: so each is known to be
        what it causes."""
        for each in _messages(line):
            self._capture.from_backend(each, self._member)
            try:
                self._listener.backend_sent(each)
            finally:
                self._capture.passed_on()

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._listener.backend_sent_too_much(beginning, end)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self._listener.backend_failed(call, error)

    def backend_exited(self, exit: Exit) -> None:
        self._listener.backend_exited(exit)


def recaptured(
    connection: BackendConnection,
    listener: CallListener,
    capture: Capture | None,
    member: str = "",
    outer: Outer | None = None,
) -> BackendConnection:
    """The connection with this capture instead of the one that it may have; or with none."""
    if isinstance(connection, Capturable):
        connection.capture(capture, member)
        return connection
    bare = connection.removed() if isinstance(connection, CapturedConnection) else connection
    return bare if capture is None else CapturedConnection(bare, listener, capture, member, outer)


def _messages(line: bytes) -> list[bytes]:
    try:
        parse_backend(line)
    except InvalidMessage:
        return several(line) or [line]
    return [line]
