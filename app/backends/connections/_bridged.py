"""BridgedConnection: a process that speaks 2026-07-28 only, for a session with a handshake."""

import asyncio
from typing import Protocol, runtime_checkable

from app.backends.connections._captured import Capture, PassingConnection, recaptured
from app.errors import CallCutOff, GatewayError, InvalidMessage, InvalidResponse, ResponseTooLarge, is_refusal
from app.processes.connection import BackendConnection, BackendListener, CallListener
from app.processes.endings import Exit
from app.protocol import tolerant
from app.protocol.eras.bridge import Bridge, Out, Pause, ToServer
from app.protocol.jsonrpc import answered_id, several


@runtime_checkable
class BridgedSession(CallListener, Protocol):
    """A Session."""

    def backend_asked(self, line: bytes, among: tuple[bytes, ...]) -> None:
        """A question that belongs to one of the calls with these ids."""


class BridgedConnection(PassingConnection):
    """Stands between a Session and its connection, and translates both ways. The session's lease owns the
    connection."""

    def __init__(
        self, connection: BackendConnection, session: BridgedSession, *, for_sessionless: bool = False
    ) -> None:
        super().__init__(connection)
        self._session = session
        self._bridge = Bridge(for_sessionless=for_sessionless)
        self._pauses: dict[bytes, asyncio.TimerHandle] = {}
        connection.attach(self)

    # --- BackendConnection

    def attach(self, listener: BackendListener) -> None:
        """Does nothing: the constructor has attached the session."""

    def capture(self, capture: Capture | None, member: str = "") -> None:
        """As Capturable: it sees what the process gets and says."""
        self._connection = recaptured(self._connection, self, capture, member, self._bridge.call_of)

    def send(self, line: bytes) -> None:
        """Answers of the bridge itself come later, not from within this call."""
        for out in self._bridge.from_session(line):
            if isinstance(out, ToServer):
                self._send(out)
            else:
                asyncio.get_running_loop().call_soon(self._tell, out)

    def _send(self, out: ToServer) -> None:
        """Three cases if the line cannot be written. 1. It belongs to no call, or 2. it is the call itself: raises.
        3. It is a later round of a call: that call fails."""
        try:
            self._connection.send(out.line)
        except GatewayError as error:
            call = None if out.call is None else self._bridge.abandon(out.call)
            if call is None or call == out.call:
                raise
            asyncio.get_running_loop().call_soon(self._session.backend_failed, call, _of_a_later_round(error))

    def end(self) -> None:
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()

    def answering(self) -> bytes | None:
        named = self._connection.answering()
        return self._bridge.call_of(answered_id(named)) if named else named

    # --- BackendListener

    def backend_sent(self, line: bytes) -> None:
        try:
            for out in self._bridge.from_server(line):
                self._tell(out)
        except InvalidMessage as error:
            messages = several(line)
            for each in messages:
                self.backend_sent(each)
            why = InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}")
            if not messages and not self._fail(tolerant.broken(line).answers, why):
                self._session.backend_sent(line)  # which counts it

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        if not self._fail(tolerant.answered(beginning, end), ResponseTooLarge()):
            self._session.backend_sent_too_much(beginning, end)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self._fail(call, error)

    def _fail(self, inner_id: bytes | None, error: GatewayError) -> bool:
        call = None if inner_id is None else self._bridge.abandon(inner_id)
        if call is not None:
            self._session.backend_failed(call, error if call == inner_id else _of_a_later_round(error))
        return call is not None

    def backend_exited(self, exit: Exit) -> None:
        self._session.backend_exited(exit)

    def _tell(self, out: Out) -> None:
        if isinstance(out, ToServer):
            try:
                self._send(out)
            except GatewayError:
                return  # a subscription, or the handshake, which its deadline or the process's end will end
        elif isinstance(out, Pause):
            self._pauses[out.call] = asyncio.get_running_loop().call_later(out.seconds, self._go_on, out.call)
        elif out.related is None:
            self._session.backend_sent(out.line)
        else:
            self._session.backend_asked(out.line, (out.related,))

    def _go_on(self, call: bytes) -> None:
        del self._pauses[call]
        for out in self._bridge.go_on(call):
            self._tell(out)


def _of_a_later_round(error: GatewayError) -> GatewayError:
    """A refusal would say that the call was not sent; an earlier round of it was."""
    return CallCutOff(f"the call could not go on: {error}") if is_refusal(error) else error
