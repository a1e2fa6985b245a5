"""Reclaiming: which idle sessions end before their time, to make room for others."""

import time
from collections.abc import Iterable
from heapq import nsmallest

from app.domain import BackendSpec, Principal
from app.sessions.loop_pause import StandstillDetector
from app.sessions.open_sessions import OpenSessions
from app.sessions.parking import Parking
from app.sessions.session import Session, SessionState

RECLAIMED = "reclaimed"  # the reason with which such a session is closed
RELEASED_WITHIN_S = 1.0  # how long a new session waits until the route store has released the one that ended for it
AGAIN_S = 0.25  # when to ask again on a node that reclaims nothing now
ROOM_OF_SESSIONS = ("sessions", "sessions_per_principal", "node_sessions")


def idle_since(session: Session, now: float) -> float | None:
    """When its client was last seen; None while it has a call, a question, a task or a reader of its stream.

    Whoever ends the session for it must not wait in between.
    """
    exchange = session.exchange
    if exchange.in_flight or exchange.has_questions or session.streams.listen.attached:
        return None
    if session.state in (SessionState.CONNECTING, SessionState.CLOSED) or exchange.has_running_task(now):
        return None
    return session.last_seen


class Reclaiming:
    """Ends idle sessions of a node for new ones that need their place or their process."""

    def __init__(self, sessions: OpenSessions, standstill: StandstillDetector, parking: Parking) -> None:
        self._sessions, self._standstill, self._parking = sessions, standstill, parking

    def reclaim(self, spec: BackendSpec, count: int) -> float:
        """Ends up to `count` sessions of the backend, to free their processes: those that have been idle for longest,
        and at least for `reclaim_idle_s`. Those that may be parked are parked instead, and live on.

        Returns:
            In how many seconds there may be another one to end.
        """
        return self._end_idle(spec, count, None, for_process=True)[1]

    def make_room(self, limit: str, principal: Principal, spec: BackendSpec) -> bool:
        """Whether a session was ended whose place a new one of the same backend may take."""
        if limit not in ROOM_OF_SESSIONS:
            return False
        return self._end_idle(spec, 1, principal if limit == "sessions_per_principal" else None)[0] > 0

    def _end_idle(
        self, spec: BackendSpec, count: int, whose: Principal | None, *, for_process: bool = False
    ) -> tuple[int, float]:
        """How many sessions were ended, of this principal if there is one, or parked; and as `reclaim`."""
        if self._sessions.draining or self._standstill.is_detected():  # some may be other nodes' by now
            return 0, AGAIN_S
        candidates = (
            session
            for session in self._sessions
            if session.spec.key == spec.key and (whose is None or session.principal.identity == whose.identity)
            if session.connection.has_process or not for_process
        )
        now = time.monotonic()
        doomed, next_s = longest_idle(candidates, count, spec.timeouts.reclaim_idle_s, now)
        for session in doomed:
            if not (for_process and self._parking.give_back(session, now)):
                session.close(RECLAIMED)
        return len(doomed), next_s


def longest_idle(sessions: Iterable[Session], count: int, idle_s: float, now: float) -> tuple[list[Session], float]:
    """Up to `count` sessions that have been idle for `idle_s` or more, longest first.

    Returns:
        Those, and in how many seconds there can be another one at the earliest. Sessions that are not idle now count
        as idle from now on.
    """
    since = (
        (at, number, session) for number, session in enumerate(sessions) if (at := idle_since(session, now)) is not None
    )
    longest = nsmallest(count + 1, since)
    ripe = [session for at, _, session in longest if now - at >= idle_s][:count]
    after = longest[len(ripe) :]
    next_s = idle_s if not after else max(0.0, after[0][0] + idle_s - now)
    return ripe, min(next_s, idle_s)
