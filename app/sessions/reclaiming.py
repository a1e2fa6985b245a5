"""Reclaiming: which sessions make room for others where there is none left: those that have been idle for longest."""

import time
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import Protocol

from app.domain import BackendSpec, Principal
from app.sessions.lifetime import idle_since
from app.sessions.ownership import Ownership
from app.sessions.session import Session
from app.sessions.standstill import Fence

RECLAIMED = "reclaimed"  # why such a session has ended
RELEASED_WITHIN_S = 1.0  # how long a new session waits until the store knows of a place that has come free for it
AGAIN_S = 0.25  # after which it is worth asking a node again that ends nothing now
ROOM_OF_SESSIONS = ("sessions", "sessions_per_principal", "node_sessions")


class Reclaimable(Protocol):
    """The sessions of a node: the registry."""

    draining: bool

    def __iter__(self) -> Iterator[Session]:
        """All of them."""


class Reclaiming:
    """Ends idle sessions of a node for whoever waits for their place, or for their process."""

    def __init__(self, sessions: Reclaimable, fence: Fence, ownership: Ownership) -> None:
        self._sessions, self._fence, self._ownership = sessions, fence, ownership

    def reclaim(self, spec: BackendSpec, count: int) -> float:
        """Ends up to so many sessions of the backend for whoever waits for a process of it: those that have been idle
        for longest, and for its `reclaim_idle_s`. They are looked at and ended in one breath: none has begun a call.

        Returns:
            In how many seconds there may be another one to end.
        """
        return self._end_idle(spec, count, None)[1]

    async def make_room(self, limit: str, principal: Principal, spec: BackendSpec) -> bool:
        """Whether a session has ended whose place a new one of the same backend may take."""
        if limit not in ROOM_OF_SESSIONS:
            return False
        ended, _ = self._end_idle(spec, 1, principal if limit == "sessions_per_principal" else None)
        if ended:
            await self._ownership.flush(RELEASED_WITHIN_S)  # until then the store counts its place as taken
        return ended > 0

    def _end_idle(self, spec: BackendSpec, count: int, whose: Principal | None) -> tuple[int, float]:
        """How many have ended, and the same. `whose` narrows it to one principal's."""
        if self._sessions.draining or self._fence.is_closed():  # some may be other nodes' by now
            return 0, AGAIN_S
        candidates = (
            session
            for session in self._sessions
            if session.spec.key == spec.key and (whose is None or session.principal.identity == whose.identity)
        )
        doomed, next_s = longest_idle(candidates, count, spec.timeouts.reclaim_idle_s, time.monotonic())
        for session in doomed:
            session.close(RECLAIMED)
        return len(doomed), next_s


def longest_idle(sessions: Iterable[Session], count: int, idle_s: float, now: float) -> tuple[list[Session], float]:
    """Up to `count` sessions that have been idle for `idle_s` or more, longest first.

    Returns:
        Those, and in how many seconds there can be another one, at the earliest: whatever is not idle now, or is opened
        later, has not been for `idle_s` before then.
    """
    since = (
        (at, number, session) for number, session in enumerate(sessions) if (at := idle_since(session, now)) is not None
    )
    longest = nsmallest(count + 1, since)
    ripe = [session for at, _, session in longest if now - at >= idle_s][:count]
    after = longest[len(ripe) :]
    next_s = idle_s if not after else max(0.0, after[0][0] + idle_s - now)
    return ripe, min(next_s, idle_s)
