"""Unasked: what the process behind a line says without a call's name, and which of its caller's calls hears it.

stdio does not say to which call a question or a log message of the handshake era belongs. All calls of a line are the
same person's, so any of them will do.
"""

from collections.abc import Callable, Iterable

from app.protocol.commands import ToStream
from app.protocol.jsonrpc import Notification, Request, parse_backend
from app.protocol.modern import MAY_ASK
from app.sessions.modern_call import ModernCall, Question
from app.sessions.session import Session
from app.sessions.streams import EventStream


class Unasked(EventStream):
    """A line's listen stream: it belongs to no client. What no call can hear goes to `on_said`."""

    __slots__ = ("_on_closed", "_on_said", "_session")

    def __init__(
        self, session: Session, on_said: Callable[[Session, ToStream], None], on_closed: Callable[[Session], None]
    ) -> None:
        super().__init__(lambda full: None, lambda reason, question: None)
        self._session, self._on_said, self._on_closed = session, on_said, on_closed

    def push(self, command: ToStream) -> None:
        """Something the process said or asked."""
        call = _hearer(self._session, command)
        if call is None:
            self._on_said(self._session, command)
        else:
            _tell(call, command)

    def end(self) -> None:
        """The line is gone."""
        if not self.ended:
            super().end()
            self._on_closed(self._session)


def ask_waiting(session: Session, question: Question, since: float) -> None:
    """Asks a call whose request waits, of those that were there then; if there is none, nobody."""
    call = _to_be_asked(call for call in _calls(session) if call.is_waited_for and call.began_at < since)
    if call is not None:
        _tell(call, question.as_command())


def _tell(call: ModernCall, command: ToStream) -> None:
    if command.question is not None:
        call.line.exchange.ask_on(command.question, call)
    call.push(command)


def _hearer(session: Session, command: ToStream) -> ModernCall | None:
    """1. A question: see `_to_be_asked`. 2. A log message: the oldest call that wants it. 3. Anything else: none."""
    message = parse_backend(command.payload)
    if isinstance(message, Request):
        return _to_be_asked(_calls(session))
    if isinstance(message, Notification) and message.method == "notifications/message":
        return next((call for call in _calls(session) if call.wants(message.params or {})), None)
    return None


def _to_be_asked(calls: Iterable[ModernCall]) -> ModernCall | None:
    """The oldest that may be asked, of those that `asked_after` puts first."""
    may_be_asked = (call for call in calls if call.message.method in MAY_ASK)
    return min(may_be_asked, key=ModernCall.asked_after, default=None)


def _calls(session: Session) -> list[ModernCall]:
    """Oldest first."""
    streams = (call.stream for call in session.exchange.calls.values())
    return [stream for stream in streams if isinstance(stream, ModernCall) and not stream.is_done]
