"""SessionCapture: what a session and the links to its processes tell an inspection, while one is open.

It matches the two sides: a call by the gateway's id, everything else by what it causes, as both sides are told within
one step of the event loop.
"""

from collections.abc import Callable
from typing import NamedTuple

from app.errors import GatewayError, InvalidMessage
from app.protocol.commands import TARGETS, Answer, Call, Failed
from app.protocol.jsonrpc import (
    INTERNAL_ERROR,
    Message,
    Notification,
    Request,
    Response,
    dump,
    error_response,
    parse_backend,
    string_of,
)
from app.telemetry.capture.captured_message import Direction, InspectedMessage, Kind, Side
from app.telemetry.capture.inspection import Inspection

MAX_OPEN = 256  # requests of a session whose answer is waited for, per kind; the oldest is forgotten first

Key = tuple[str, str, str, bytes]
Outer = Callable[[bytes], bytes | None]  # the session's id of a call, by that which a bridge has given it


class _Asked(NamedTuple):
    number: int
    at: float
    method: str
    tool: str


class SessionCapture:
    """Of one session. `is_pooled`: whether it is the gateway's own, for clients that name none."""

    def __init__(
        self,
        inspection: Inspection,
        clock: Callable[[], float],
        *,
        session: str = "",
        is_pooled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._inspection, self._clock = inspection, clock
        self._session, self._is_pooled = session, is_pooled
        self._open: dict[Key, _Asked] = {}
        self._calls: dict[bytes, int] = {}  # the client's request, by the gateway's id
        self._cause = 0  # what is being passed on

    # --- the client's side

    def asked(self, message: Request, call: Call) -> None:
        """The client's request was accepted, and is sent now or later."""
        if self._is_pooled():
            message = getattr(call.stream, "message", message)
        number = self._add("client", "to_server", message, dump(message))
        _bounded(self._calls)[call.gateway_id] = number
        self._cause = 0

    def came_back(self, message: Request) -> None:
        """A client of 2026-07-28 continues a call, with answers to questions."""
        self._add("client", "to_server", message, dump(message))
        self._cause = 0

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """The client's request was not accepted, or could not be sent. The client of a pooled session is not known."""
        self._cause = 0
        if self._is_pooled():
            return
        if ("client", "", "to_server", message.id) not in self._open:
            self._add("client", "to_server", message, dump(message))
        self._failed(message.id, error)

    def told(self, message: Notification | Response) -> None:
        """The client sends something that needs no answer."""
        self._cause = self._add("client", "to_server", message, dump(message))

    def over(self, outcome: Answer | Failed, error_type: str, seconds: float, size: int) -> None:
        """A call has its outcome. Of a pooled session the client gets another."""
        if not self._is_pooled():
            self._answered(outcome)

    def served(self, asked: object, outcome: Answer | Failed, error_type: str, seconds: float, size: int) -> None:
        """A client of 2026-07-28 gets the outcome of its request."""
        self._answered(outcome)

    def _answered(self, outcome: Answer | Failed) -> None:
        self._calls.pop(outcome.call.gateway_id, None)
        if isinstance(outcome, Failed):
            self._failed(outcome.call.id, outcome.error)
        else:
            response = Response(outcome.call.id, outcome.response.member, outcome.response.value)
            self._add("client", "to_client", response, outcome.payload(), pair=self._cause)

    def _failed(self, request_id: bytes, error: GatewayError) -> None:
        line = error_response(request_id, INTERNAL_ERROR, str(error), {"reason": error.reason})
        self._heard("client", "to_client", line, pair=self._cause)

    def pushed(self, payload: bytes) -> None:
        """The client gets a notification or a question. One of 2026-07-28 gets questions as the outcome of its call."""
        if self._is_pooled() and isinstance(_parsed(payload), Request):
            return
        self._heard("client", "to_client", payload, pair=self._cause)

    # --- the process's side

    def to_backend(self, line: bytes, member: str = "", outer: Outer | None = None) -> None:
        """A line is written to a process."""
        message, pair = _parsed(line), self._cause
        if isinstance(message, Request):
            known = message.id if outer is None else outer(message.id)
            pair = 0 if known is None else self._calls.get(known, 0)
        self._cause = 0
        self._record("backend", "to_server", message, line, pair, member)

    def from_backend(self, line: bytes, member: str = "") -> None:
        """A process has written a message; `passed_on` ends what it causes."""
        self._cause = self._heard("backend", "to_client", line, member=member)

    def passed_on(self) -> None:
        self._cause = 0

    # --- keeping

    def _heard(self, side: Side, direction: Direction, line: bytes, pair: int = 0, member: str = "") -> int:
        return self._record(side, direction, _parsed(line), line, pair, member)

    def _record(
        self, side: Side, direction: Direction, message: Message | None, line: bytes, pair: int, member: str
    ) -> int:
        if message is None:
            number = self._inspection.numbers.next()
            return self._keep(number, side, direction, "invalid", line, pair=pair, member=member)
        return self._add(side, direction, message, line, pair=pair, member=member)

    def _add(
        self, side: Side, direction: Direction, message: Message, line: bytes, *, pair: int = 0, member: str = ""
    ) -> int:
        number = self._inspection.numbers.next()
        if isinstance(message, Response):
            other: Direction = "to_client" if direction == "to_server" else "to_server"
            asked = self._open.pop((side, member, other, message.id), None)
            kind: Kind = "error" if message.member == "error" else "result"
            return self._keep(number, side, direction, kind, line, asked=asked, id=message.id, pair=pair, member=member)
        name = string_of((message.params or {}).get(TARGETS.get(message.method, ""))) or ""
        method, name = (self._inspection.name(each, member) for each in (message.method, name))
        about = _Asked(number, self._clock(), method, name)
        if isinstance(message, Request):
            _bounded(self._open)[side, member, direction, message.id] = about
            return self._keep(
                number, side, direction, "request", line, about=about, id=message.id, pair=pair, member=member
            )
        return self._keep(number, side, direction, "notification", line, about=about, pair=pair, member=member)

    def _keep(  # noqa: PLR0913 - the members of a message
        self,
        number: int,
        side: Side,
        direction: Direction,
        kind: Kind,
        line: bytes,
        *,
        about: _Asked | None = None,
        asked: _Asked | None = None,
        id: bytes = b"",
        pair: int = 0,
        member: str = "",
    ) -> int:
        now, known = self._clock(), about or asked
        message = InspectedMessage(
            number,
            now,
            side,
            direction,
            kind,
            "" if known is None else known.method,
            self._inspection.word(id.decode("utf-8", "replace")),
            "" if known is None else known.tool,
            member,
            len(line),
            pair,
            0 if asked is None else asked.number,
            None if asked is None else round((now - asked.at) * 1000, 3),
            session=self._session,
        )
        self._inspection.add(message, line)
        return message.number


def _parsed(line: bytes) -> Message | None:
    try:
        return parse_backend(line)
    except InvalidMessage:
        return None


def _bounded(table: dict) -> dict:  # type: ignore[type-arg]
    while len(table) >= MAX_OPEN:
        del table[next(iter(table))]
    return table
