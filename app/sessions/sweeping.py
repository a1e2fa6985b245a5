"""Sweeping: ends what is overdue in sessions and those that have lived long enough, and lets idle ones rest.

The sessions of a large node are scattered over its memory, so that a look at each of thousands takes milliseconds, in
which nothing else happens. So those with something under way are looked at each time, and a share of the others.
"""

import logging
import time
from collections.abc import Callable

import anyio

from app.domain import KEY_ISSUER, public_id
from app.sessions._calls import is_past
from app.sessions._ended import EndedSessions
from app.sessions.loop_pause import StandstillGuard
from app.sessions.open_sessions import OpenSessions
from app.sessions.parking import Parking
from app.sessions.session import Session, SessionState

SWEEP_S = 0.25  # how late the deadline of a call may be noticed
SHARES = 4  # sweeps in which each session is looked at once: how late its age may be
READ_S = 0.001  # a turn of the event loop

log = logging.getLogger(__name__)


def why_over(session: Session, now: float) -> str | None:
    """Why the session should end now: "idle", "too_old" or "credential_expired"; None if it should not.

    Only an API key ends its sessions: a token is replaced by another one of the same principal.
    """
    timeouts, exchange = session.spec.timeouts, session.exchange
    if now - session.opened_at > timeouts.absolute_s:
        return "too_old"
    if session.principal.issuer == KEY_ISSUER and not exchange.in_flight and is_past(session.principal.expires_at):
        return "credential_expired"
    if exchange.in_flight or session.streams.listen.attached or session.state is SessionState.CONNECTING:
        return None
    return "idle" if now - session.last_seen > timeouts.idle_s else None


class Sweeping:
    """Of the sessions of a node; owns none of them."""

    def __init__(self, sessions: OpenSessions, ended: EndedSessions, parking: Parking) -> None:
        self._sessions, self._ended, self._parking = sessions, ended, parking
        self._busy, self._others = set[Session](), list[Session]()
        self._share = 0
        self.note = self._busy.add  # a request begins; a method of our own would be a second call for each

    def sweep(self, now: float) -> None:
        """Looks at the sessions with something under way, and at the next share of all."""
        self._ended.sweep(now)
        for session in list(self._busy):
            self._guarded(self._look_at_calls, session, now)
        if not self._others:
            self._others = list(self._sessions)
            self._share = -(-len(self._others) // SHARES)
        share = self._others[-self._share :]
        del self._others[-self._share :]
        for session in share:
            self._guarded(self._look, session, now)

    def sweep_all(self, now: float) -> None:
        """The same, of every session."""
        self._ended.sweep(now)
        for session in self._sessions:
            self._guarded(self._look, session, now)

    def _guarded(self, look: Callable[[Session, float], None], session: Session, now: float) -> None:
        try:
            look(session, now)
        except Exception:
            log.exception("Could not sweep session %s; it is closed", public_id(session.id))
            self._busy.discard(session)
            session.close("internal_error")

    def _look_at_calls(self, session: Session, now: float) -> None:
        if session.state is not SessionState.CLOSED:
            session.sweep(now)
        if session.state is SessionState.CLOSED or not _is_busy(session):
            self._busy.discard(session)

    def _look(self, session: Session, now: float) -> None:
        if session.state is SessionState.CLOSED:  # since this share was cut
            return
        if _is_busy(session):
            self._busy.add(session)
            session.sweep(now)
        session.streams.trim(now)
        if (reason := why_over(session, now)) is not None:
            session.close(reason)
        elif session.spec.timeouts.park_s is not None and not self._sessions.draining:
            self._parking.look_at(session, now)


def _is_busy(session: Session) -> bool:
    exchange = session.exchange
    return bool(exchange.in_flight or exchange.has_questions or exchange.holds_back)


async def sweep_for_ever(
    sweeping: Sweeping, guard: StandstillGuard, before: Callable[[float], None] = lambda now: None
) -> None:
    """Sweeps four times a second, and notices standstills. `before` is called first, with the time."""
    while True:
        due = time.monotonic() + SWEEP_S
        await anyio.sleep(SWEEP_S)
        if time.monotonic() - due > SWEEP_S:  # the node stood still: answers that came meanwhile are read first
            await anyio.sleep(READ_S)
        now = time.monotonic()
        if not guard.standstill.tick():
            await guard.prove()
        before(now)
        sweeping.sweep(now)
