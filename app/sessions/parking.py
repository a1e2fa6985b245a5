"""Parking: idle sessions rest, and stay valid, until the next message.

Those of servers that keep no state give their processes back; the next message takes another one
(`connections.respawning`). A session of another node that was parked there is parked here as well, until its client
sends something. The processes of the others stand still meanwhile (`connections._stopping`).
"""

import logging
from collections.abc import Hashable

from app.domain import Rest
from app.errors import GatewayError
from app.sessions.loop_pause import StandstillDetector
from app.sessions.session import Session, SessionState
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


def is_at_rest(session: Session, now: float) -> bool:
    """Whether nothing is under way in a session that may rest. Whoever parks it must not wait in between."""
    exchange = session.exchange
    if session.state is not SessionState.OPEN or session.connection.rest is not None:
        return False
    if exchange.in_flight or exchange.has_questions or exchange.has_running_task(now):
        return False
    # What a shared process tells everybody must reach this session too.
    return not session.spec.broadcast


class _Place:
    """Fulfils Keeper for one session."""

    __slots__ = ("_how", "_parking", "_session")

    def __init__(self, parking: "Parking", session: Session, how: Rest) -> None:
        self._parking, self._session, self._how = parking, session, how

    def stopped(self, error: OSError | None) -> None:
        self._parking.stopped(self._session, error)

    def woken(self, *, was_warm: bool, waited_s: float) -> None:
        if self._how == "parked":
            self._parking.woken(self._session, was_warm=was_warm, waited_s=waited_s)
        else:
            self._parking.thawed(self._session, waited_s)

    def not_woken(self, error: GatewayError) -> None:
        if self._how == "parked":
            self._parking.not_woken(self._session, error)
        else:
            self._parking.not_thawed(self._session, error)

    def gone(self) -> None:
        self._parking.left(self._session, self._how)


class Parking:
    """The parked and frozen sessions of a node, as numbers. Owns nothing: each is its own."""

    def __init__(self, standstill: StandstillDetector, metrics: Metrics) -> None:
        self._standstill, self._thinned, self._metrics = standstill, Thinned(log), metrics
        self._resting = {"parked": metrics.sessions_parked, "frozen": metrics.sessions_frozen}

    def look_at(self, session: Session, now: float) -> None:
        """Parks or freezes the session if neither its client nor its process has said anything for `park_s`."""
        park_s = session.spec.timeouts.park_s
        if park_s is not None and now - max(session.last_seen, session.heard_at) >= park_s:
            self.park(session, now)

    def park(self, session: Session, now: float) -> bool:
        """Whether the session rests now: not while something is under way, nor over the tenant's limit."""
        how = session.spec.rests_as
        if how is None or not is_at_rest(session, now):
            return False
        if not session.gate.may_rest(how) or self._standstill.is_detected():
            return False
        if not session.connection.park(_Place(self, session, how)):
            return False
        self._note(session, how)
        self._say(how, f"session {how}", session, idle_s=round(now - session.last_seen, 1))
        return True

    def give_back(self, session: Session, now: float) -> bool:
        """Whether the session has given its process back. One that is, or could be, frozen would keep it."""
        return session.spec.rests_as == "parked" and self.park(session, now)

    def adopt(self, session: Session) -> None:
        """The session was parked on another node, and is now here. It counts, however many there may be."""
        if session.connection.park(_Place(self, session, "parked")):
            self._note(session, "parked")

    def _note(self, session: Session, how: Rest) -> None:
        self._now_rests(session, how)
        session.gate.session_rests(how)
        self._resting[how].inc()

    def _now_rests(self, session: Session, how: Rest | None) -> None:
        session.connection.now_rests(how)
        if session.journal is not None:
            session.journal.changed()

    def left(self, session: Session, how: Rest) -> None:
        """The session rests no more: it has a process that runs, or has ended; or is handed over, as it was."""
        if session.state is not SessionState.CLOSED:
            self._now_rests(session, None)
        session.gate.session_wakes(how)
        self._resting[how].dec()

    # --- parked

    def woken(self, session: Session, *, was_warm: bool, waited_s: float) -> None:
        """The session has a process again."""
        self.left(session, "parked")
        self._metrics.session_wakes.labels("warm" if was_warm else "cold").inc()
        self._metrics.session_wake_seconds.observe(waited_s)
        start, process = "warm" if was_warm else "cold", session.connection.process
        self._say("woken", "session woken", session, backend_process=process, start=start, waited_ms=_ms(waited_s))

    def not_woken(self, session: Session, error: GatewayError) -> None:
        """There was no process for it; it stays parked."""
        self._metrics.session_wakes.labels("failed").inc()
        what = "session not woken: it got no process"
        self._say(("not woken", error.reason), what, session, reason=error.reason, error=str(error))

    # --- frozen

    def stopped(self, session: Session, error: OSError | None) -> None:
        """The session's process stands still; or it cannot be stopped."""
        self._metrics.session_freezes.labels("frozen" if error is None else "refused").inc()
        if error is not None:
            self._say("not frozen", "session not frozen", session, error=str(error))

    def thawed(self, session: Session, waited_s: float) -> None:
        """Its process goes on."""
        self.left(session, "frozen")
        self._metrics.session_thaws.labels("thawed").inc()
        self._metrics.session_thaw_seconds.observe(waited_s)
        process = session.connection.process
        self._say("thawed", "session thawed", session, backend_process=process, waited_ms=_ms(waited_s))

    def not_thawed(self, session: Session, error: GatewayError) -> None:
        """Its process could not go on: it is being ended, and the session with it."""
        self._metrics.session_thaws.labels("failed").inc()
        what, process = "session not thawed: its process is ended", session.connection.process
        self._say("not thawed", what, session, backend_process=process, error=str(error))

    def _say(self, kind: Hashable, what: str, session: Session, **fields: object) -> None:
        self._thinned.info(kind, what, session.log_fields | fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
