"""Parking: idle sessions whose servers keep no state give their processes back, and stay valid.

The next message takes another process (`links.respawning`). A session of another node that was parked there is parked
here as well, until its client sends something.
"""

from app.errors import GatewayError
from app.links.source import Rest
from app.metrics import Metrics
from app.protocol.lifecycle import SessionState
from app.sessions.session import Session
from app.sessions.session_log import SessionLog
from app.sessions.standstill import StandstillDetector


def is_at_rest(session: Session, now: float) -> bool:
    """Whether nothing is under way in a session that may be parked. Whoever parks it must not wait in between."""
    exchange = session.exchange
    if session.state is not SessionState.OPEN or session.link.rest is not None:
        return False
    if exchange.in_flight or exchange.has_questions or exchange.running_tasks.is_any(now):
        return False
    # What a shared process tells everybody must reach this session too.
    return session.spec.timeouts.park_s is not None and not session.spec.broadcast


class _Place:
    """Fulfils Keeper for one session."""

    __slots__ = ("_parking", "_session")

    def __init__(self, parking: "Parking", session: Session) -> None:
        self._parking, self._session = parking, session

    def woken(self, *, was_warm: bool, waited_s: float) -> None:
        self._parking.woken(self._session, was_warm=was_warm, waited_s=waited_s)

    def not_woken(self, error: GatewayError) -> None:
        self._parking.not_woken(self._session, error)

    def gone(self) -> None:
        self._parking.left(self._session)


class Parking:
    """The parked sessions of a node, as numbers. Owns nothing: each is its own."""

    def __init__(self, standstill: StandstillDetector, metrics: Metrics) -> None:
        self._standstill, self._log = standstill, SessionLog()
        self._parked = metrics.sessions_parked
        self._wakes, self._wake_seconds = metrics.session_wakes, metrics.session_wake_seconds

    def look_at(self, session: Session, now: float) -> None:
        """Parks the session if neither its client nor its process has said anything for `park_s`."""
        park_s = session.spec.timeouts.park_s
        if park_s is not None and now - max(session.last_seen, session.heard_at) >= park_s:
            self.park(session, now)

    def park(self, session: Session, now: float) -> bool:
        """Whether the session was parked: not while something is under way, nor over the tenant's limit."""
        if not is_at_rest(session, now) or not session.gate.may_park() or self._standstill.is_detected():
            return False
        if not session.link.park(_Place(self, session)):
            return False
        self._note(session)
        self._log.parked(session, now - session.last_seen)
        return True

    def adopt(self, session: Session) -> None:
        """The session was parked on another node, and is now here. It counts, however many there may be."""
        if session.link.park(_Place(self, session)):
            self._note(session)

    def _note(self, session: Session) -> None:
        self._now_rests(session, "parked")
        session.gate.park_session()
        self._parked.inc()

    def _now_rests(self, session: Session, how: Rest | None) -> None:
        session.link.now_rests(how)
        if session.journal is not None:
            session.journal.changed()

    def woken(self, session: Session, *, was_warm: bool, waited_s: float) -> None:
        """The session has a process again."""
        self.left(session)
        self._wakes.labels("warm" if was_warm else "cold").inc()
        self._wake_seconds.observe(waited_s)
        self._log.woken(session, waited_s, was_warm=was_warm)

    def not_woken(self, session: Session, error: GatewayError) -> None:
        """There was no process for it; it stays parked."""
        self._wakes.labels("failed").inc()
        self._log.not_woken(session, error)

    def left(self, session: Session) -> None:
        """The session is parked no more: it has a process, or has ended; or is handed over, as it was."""
        if session.state is not SessionState.CLOSED:
            self._now_rests(session, None)
        session.gate.unpark_session()
        self._parked.dec()
