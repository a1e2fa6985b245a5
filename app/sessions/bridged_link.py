"""BridgedLink: a process that speaks 2026-07-28 only, as a session of the handshake era sees it."""

import asyncio
from typing import Protocol

from app.backends.link import BackendLink, BackendListener, Exit
from app.errors import GatewayError, InvalidMessage
from app.protocol.bridge import Bridge, Out, ToServer


class BridgedSession(BackendListener, Protocol):
    """The session's side."""

    def backend_asked(self, line: bytes, related: bytes) -> None:
        """A question that belongs to this call, by our id of it."""


class BridgedLink:
    """Stands between a Session and its link, and translates both ways. Owns nothing: the session's lease does."""

    def __init__(self, link: BackendLink, session: BridgedSession) -> None:
        self._link, self._session = link, session
        self._bridge = Bridge()
        link.attach(self)

    # --- BackendLink

    def attach(self, listener: BackendListener) -> None:
        """See BackendLink. The session is there from the beginning."""

    def send(self, line: bytes) -> None:
        """See BackendLink. What the bridge answers itself comes soon, not from within this call."""
        for out in self._bridge.from_session(line):
            if isinstance(out, ToServer):
                self._link.send(out.line)
            else:
                asyncio.get_running_loop().call_soon(self._tell, out)

    def pause_reading(self) -> None:
        """See BackendLink."""
        self._link.pause_reading()

    def resume_reading(self) -> None:
        """See BackendLink."""
        self._link.resume_reading()

    def asked_for(self, size: int) -> None:
        """See BackendLink."""
        self._link.asked_for(size)

    # --- BackendListener

    def backend_sent(self, line: bytes) -> None:
        """See BackendListener."""
        try:
            for out in self._bridge.from_server(line):
                self._tell(out)
        except InvalidMessage:
            self._session.backend_sent(line)  # which counts it, and ends the call it names

    def backend_sent_too_much(self, prefix: bytes) -> None:
        """See BackendListener."""
        self._session.backend_sent_too_much(prefix)

    def backend_exited(self, exit: Exit) -> None:
        """See BackendListener."""
        self._session.backend_exited(exit)

    def _tell(self, out: Out) -> None:
        if isinstance(out, ToServer):
            try:
                self._link.send(out.line)
            except GatewayError:
                return  # the call ends by its deadline, or with the process
        elif out.related is None:
            self._session.backend_sent(out.line)
        else:
            self._session.backend_asked(out.line, out.related)
