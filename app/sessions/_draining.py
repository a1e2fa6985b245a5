"""Draining: ends the sessions of a node that stops. No call is lost, and clients do not all come back at once."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from app.domain import public_id
from app.errors import GatewayError
from app.sessions.endings import SHUTDOWN
from app.sessions.open_sessions import OpenSessions
from app.sessions.session import Session

TICK_S = 0.05  # how late the end of the last call may be noticed; an event for it would slow every call down
STREAMS_PER_S = 100  # clients whose stream has ended come back, and each may need a process elsewhere
SILENT_PER_TICK = 100  # sessions without an open stream: their clients notice nothing before the next request
LAST_HAND_OVERS_S = 2.0  # after the drain's time is up

log = logging.getLogger(__name__)


class Draining:
    """One drain; `run` it once.

    Without `hand_over` there is no other node: every session lives until no call is in flight in any of them, or half
    of the time is over. With it, each session is handed over, and closed, as soon as it has no call.
    """

    def __init__(
        self, sessions: OpenSessions, seconds: float, hand_over: Callable[[Session], Awaitable[None]] | None = None
    ) -> None:
        now = time.monotonic()
        self._sessions, self._hand_over = sessions, hand_over
        self._half_at, self._ends_at = now + seconds / 2, now + seconds
        self._has_begun = hand_over is not None
        self._streams_per_tick = 0
        self._leaving = set[Session]()

    async def run(self) -> int:
        """Ends every session, at the latest LAST_HAND_OVERS_S after the time; returns how many calls were cut off."""
        async with anyio.create_task_group() as tasks:
            while any(self._sessions) and time.monotonic() < self._ends_at:
                for session in self._next(time.monotonic()):
                    self._leaving.add(session)
                    tasks.start_soon(self._end, session)
                await anyio.sleep(TICK_S)
            cut_off = self._sessions.calls_in_flight()
            timer = asyncio.get_running_loop().call_later(LAST_HAND_OVERS_S, tasks.cancel_scope.cancel)
            for session in set(self._sessions) - self._leaving:
                tasks.start_soon(self._end, session)
        timer.cancel()
        for session in self._sessions:
            session.close(SHUTDOWN)
        return cut_off

    def _next(self, now: float) -> Sequence[Session]:
        """The sessions to end now."""
        is_late = now >= self._half_at
        self._has_begun = self._has_begun or is_late or not self._sessions.calls_in_flight()
        if not self._has_begun:
            return ()
        left = [session for session in self._sessions if session not in self._leaving]
        if not self._streams_per_tick:
            streams = sum(session.streams.listen.attached for session in left)
            self._streams_per_tick = streams_per_tick(streams, self._ends_at - now)
        if is_late:
            # A client that always has a call in flight would keep its session here until one is cut off. New calls
            # wait until another node has the session or it has ended; then they were not carried out.
            for session in left:
                if session.exchange.has_questions:  # the answer has to find it, also where it is asked only now
                    self._sessions.show(session)
                else:
                    self._sessions.hide(session)
        return lot([each for each in left if not each.exchange.calls], self._streams_per_tick)

    async def _end(self, session: Session) -> None:
        if self._must_wait_for(session):  # a call has begun since it was chosen
            return
        if self._hand_over is not None:
            try:
                await self._hand_over(session)
            except GatewayError as error:
                log.warning("Could not hand session %s over to another node: %s", public_id(session.id), error)
            if self._must_wait_for(session):
                return
        session.close(SHUTDOWN)

    def _must_wait_for(self, session: Session) -> bool:
        """Whether it has a call, and there is time for it; then it is chosen again later."""
        if not session.exchange.calls or time.monotonic() >= self._ends_at:
            return False
        self._leaving.discard(session)
        return True


def lot(sessions: Sequence[Session], streams: int) -> list[Session]:
    """The sessions that end in one tick: up to `streams` with an open stream, and some without."""
    streaming = [session for session in sessions if session.streams.listen.attached]
    silent = [session for session in sessions if not session.streams.listen.attached]
    return streaming[:streams] + silent[:SILENT_PER_TICK]


def streams_per_tick(streams: int, left_s: float) -> int:
    """So many that all streams end within half of the time that is left, and at least STREAMS_PER_S."""
    return math.ceil(TICK_S * max(STREAMS_PER_S, streams / max(left_s / 2, TICK_S)))
