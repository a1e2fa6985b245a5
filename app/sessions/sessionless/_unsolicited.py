"""UnsolicitedMessages: messages of a pooled session's process that name no call, and which call gets them.

On stdio, questions and log messages of the handshake era do not name their call. All calls of a pooled session are the
same principal's, so any may get them; but its client may be slow or leave.
"""

from collections.abc import Callable, Iterable

from app.protocol.commands import Call, ToStream
from app.protocol.eras.sessionless_envelope import MAY_ASK
from app.protocol.jsonrpc import Notification, Request, parse_backend
from app.sessions.session import Session
from app.sessions.sessionless._questions import Question
from app.sessions.sessionless.call import SessionlessCall
from app.sessions.streams.streams import EventStream

# Notifications that are no vendor's: subscriptions get those that they asked for.
_KNOWN = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
    "notifications/resources/updated", "notifications/elicitation/complete", "notifications/tasks/status",
    "notifications/tasks", "notifications/roots/list_changed", "notifications/initialized", "notifications/cancelled",
})  # fmt: skip


class UnsolicitedMessages(EventStream):
    """The listen stream of a pooled session. What no call should get goes to `on_said`."""

    __slots__ = ("_on_closed", "_on_said", "_reached", "_session")

    def __init__(
        self, session: Session, on_said: Callable[[Session, ToStream], None], on_closed: Callable[[Session], None]
    ) -> None:
        super().__init__(lambda full: None, lambda reason, question: None)
        self._session, self._on_said, self._on_closed = session, on_said, on_closed
        self._reached = 0.0  # the process has reacted to a call that it got then: earlier ones are slow

    def push(self, command: ToStream) -> None:
        call = self._hearer(command)
        if call is None:
            self._on_said(self._session, command)
        else:
            self._tell(call, command)

    def end(self) -> None:
        if not self.ended:
            super().end()
            self._on_closed(self._session)

    def has_reacted(self, call: Call) -> None:
        """The process has answered or asked something for this call: older calls that still run are slow."""
        self._reached = max(self._reached, _heard_at(call))

    def ask_waiting(self, question: Question, since: float, slower_than: SessionlessCall | None) -> None:
        """Asks a call that began before `since` and whose request waits, if there is one.

        With `slower_than` only a call that the process got after that one.
        """
        calls = self._calls_for(question.id)
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
        """The call for a question: see `_to_be_asked`; for a log message: the oldest that wants it; for a vendor's
        notification: the oldest that may have caused it, as this revision has no other stream for it; else none."""
        message = parse_backend(command.payload)
        if isinstance(message, Request):
            return self._to_be_asked(self._calls_for(message.id))
        if not isinstance(message, Notification):
            return None
        if message.method == "notifications/message":
            return next((call for call in self._calls() if call.stream.wants(message.params or {})), None)
        if message.method in _KNOWN:
            return None
        return next((call for call in self._calls() if call.stream.message.method in MAY_ASK), None)

    def _to_be_asked(self, calls: Iterable[Call]) -> Call | None:
        """Of the calls that may be asked, by these preferences:

        1. whose request waits,
        2. that the process has not passed over: most processes work in order and ask at once,
        3. without open questions,
        4. among those passed over, asked least often: clients take part in a few rounds (the official one in 10),
        5. the oldest.
        """

        def rank(call: Call) -> tuple[bool, bool, bool, int, float]:
            asked, heard_at = call.stream, _heard_at(call)
            is_slow = heard_at < self._reached
            times = asked.times_asked if is_slow else 0
            return (not asked.is_waited_for, is_slow, bool(asked.questions), times, heard_at)

        return min((call for call in calls if call.stream.message.method in MAY_ASK), key=rank, default=None)

    def _calls_for(self, question: bytes) -> list[Call]:
        """The calls for which this question of ours may have been asked."""
        questions = self._session.exchange.questions
        return [call for call in self._calls() if questions.may_belong_to(question, call.gateway_id)]

    def _calls(self) -> list[Call]:
        """Calls of clients, oldest first."""
        calls = self._session.exchange.calls.values()
        return [call for call in calls if isinstance(call.stream, SessionlessCall) and not call.stream.is_done]


def _heard_at(call: Call) -> float:
    """When the process last got something of this call: the call itself, or the answer to a question."""
    return float(max(call.started + call.waited_s, call.stream.fed_at))
