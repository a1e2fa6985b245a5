"""Unasked: what the process behind a line says without a call's name, and which of its caller's calls hears it.

stdio does not say to which call a question or a log message of the handshake era belongs. All calls of a line are the
same person's, so any of them will do; but its client may be slow or leave, and so it had better be the right one.
"""

from collections.abc import Callable, Iterable

from app.protocol.commands import Call, ToStream
from app.protocol.eras.modern import MAY_ASK
from app.protocol.jsonrpc import Notification, Request, parse_backend
from app.sessionless.call import SessionlessCall
from app.sessionless.questions import Question
from app.sessions.session import Session
from app.streams.streams import EventStream


class Unasked(EventStream):
    """A line's listen stream: it belongs to no client. What no call can hear goes to `on_said`."""

    __slots__ = ("_on_closed", "_on_said", "_reached", "_session")

    def __init__(
        self, session: Session, on_said: Callable[[Session, ToStream], None], on_closed: Callable[[Session], None]
    ) -> None:
        super().__init__(lambda full: None, lambda reason, question: None)
        self._session, self._on_said, self._on_closed = session, on_said, on_closed
        self._reached = 0.0  # what came to the process until then has had its turn

    def push(self, command: ToStream) -> None:
        """Something the process said or asked."""
        call = self._hearer(command)
        if call is None:
            self._on_said(self._session, command)
        else:
            self._tell(call, command)

    def end(self) -> None:
        """The line is gone."""
        if not self.ended:
            super().end()
            self._on_closed(self._session)

    def has_reacted(self, call: Call) -> None:
        """The process has answered or asked something: calls that came before this one and still run are slow ones."""
        self._reached = max(self._reached, _heard_at(call))

    def ask_waiting(self, question: Question, since: float, slower_than: SessionlessCall | None) -> None:
        """Asks a call whose request waits, of those that were there then; if there is none, nobody.

        `slower_than`: one that came to the process after this, which took its question only for being the older.
        """
        calls = self._calls()
        after = next((_heard_at(call) for call in calls if call.stream is slower_than), 0.0)
        there = (call for call in calls if call.stream.is_waited_for and call.stream.began_at < since)
        call = self._to_be_asked(call for call in there if _heard_at(call) >= after)
        if call is not None:
            self._tell(call, question.as_command())

    def _tell(self, call: Call, command: ToStream) -> None:
        if command.question is not None:
            self._session.exchange.questions.ask_on(command.question, call.stream)
            self.has_reacted(call)
        call.stream.push(command)

    def _hearer(self, command: ToStream) -> Call | None:
        """Of a question: see `_to_be_asked`. Of a log message: the oldest call that wants it. Else none."""
        message = parse_backend(command.payload)
        if isinstance(message, Request):
            return self._to_be_asked(self._calls())
        if isinstance(message, Notification) and message.method == "notifications/message":
            return next((call for call in self._calls() if call.stream.wants(message.params or {})), None)
        return None

    def _to_be_asked(self, calls: Iterable[Call]) -> Call | None:
        """The oldest call that may be asked; of several it is one

        1. whose request waits: somebody is there,
        2. that the process has not passed over: most take what comes in order, and ask at once,
        3. that is not about to ask something,
        4. that was asked least often, if it was passed over: clients take part in a few rounds (10, the official one).
        """

        def rank(call: Call) -> tuple[bool, bool, bool, int, float]:
            asked, heard_at = call.stream, _heard_at(call)
            is_slow = heard_at < self._reached
            times = asked.times_asked if is_slow else 0
            return (not asked.is_waited_for, is_slow, bool(asked.questions), times, heard_at)

        return min((call for call in calls if call.stream.message.method in MAY_ASK), key=rank, default=None)

    def _calls(self) -> list[Call]:
        """Those of clients, oldest first."""
        calls = self._session.exchange.calls.values()
        return [call for call in calls if isinstance(call.stream, SessionlessCall) and not call.stream.is_done]


def _heard_at(call: Call) -> float:
    """When the process was last told something of it: the call itself, or the answer to a question."""
    return float(max(call.started + call.waited_s, call.stream.fed_at))
