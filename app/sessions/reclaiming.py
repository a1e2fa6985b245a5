"""Reclaiming: which sessions make room for others where there is none left: those that have been idle for longest."""

from collections.abc import Iterable
from heapq import nsmallest

from app.sessions.lifetime import idle_since
from app.sessions.session import Session

RECLAIMED = "reclaimed"  # why such a session has ended


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
