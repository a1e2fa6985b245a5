"""RateLimiter: so many per second and so many at once, for each of many keys: addresses, principals.

For what comes before a tenant's own limits, or beside them: who tries credentials, asks for sessions that there are
not, uses the REST API. Each node counts for itself, so several nodes together let through as many times as much.
Nothing of this stands on the path of a message of an open session.
"""

import time
from collections.abc import Callable, Hashable
from hashlib import blake2b

from prometheus_client import Counter

from app.errors import RateLimited
from app.reached import FIXED, Reached, Whose

MAX_KEYS = (
    10_000  # of one limiter; above it the one heard of longest ago is forgotten, which forgives what it has spent
)
_KEY_BYTES = 16  # whatever a key says, so much of it is kept

# limit -> (per second, at once, of whom, what the refusal says)
_LIMITS: dict[str, tuple[float, float, Whose, str]] = {
    # A cluster of clients whose key has expired, or the tests of an evaluation, stay below what is let through at once.
    "bad_credentials": (10.0, 300.0, "address", "too many requests with bad credentials come from this address"),
    # After a restart every client of a key asks once for a session that is gone.
    "unknown_sessions": (
        100.0,
        1000.0,
        "principal",
        "too many requests name sessions that this credential does not have",
    ),
    # Which of its issuers a tenant's clients may go to: anybody may ask, and what is not remembered asks the database.
    "resource_metadata": (
        10.0,
        100.0,
        "address",
        "too many requests for the metadata of tenants come from this address",
    ),
    "rest": (50.0, 1000.0, "principal", "this credential sends too many requests to the API"),
}
LIMITS = frozenset(_LIMITS)


class RateLimiter:
    """Refuses what comes too fast, by key. `limit` is one of LIMITS, and the label under which `refused` counts."""

    def __init__(self, limit: str, refused: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._rate, self._burst, self._whose, self._message = _LIMITS[limit]
        self._refused = refused.labels(limit)
        self._levels: dict[
            bytes, tuple[float, float]
        ] = {}  # what was left, and when; heard of longest ago stands first

    def spend(self, key: Hashable, cost: float = 1.0) -> None:
        """Takes so much off what the key may.

        Raises:
            RateLimited: there is not so much now; nothing is taken.
        """
        digest, now = _digest(key), self._clock()
        left = self._left(digest, now)
        if left < cost:
            self._keep(digest, left, now)
            self._refused.inc()
            reached = Reached(self._limit, self._whose, self._rate, None, FIXED)
            raise RateLimited(self._limit, self._message, retry_after_s=(cost - left) / self._rate, reached=reached)
        self._keep(digest, left - cost, now)

    def give_back(self, key: Hashable, cost: float = 1.0) -> None:
        """What was spent turned out to cost nothing."""
        digest, now = _digest(key), self._clock()
        if digest in self._levels:
            self._keep(digest, min(self._burst, self._left(digest, now) + cost), now)

    def _left(self, digest: bytes, now: float) -> float:
        left, at = self._levels.get(digest, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _keep(self, digest: bytes, left: float, now: float) -> None:
        self._levels.pop(digest, None)
        if left >= self._burst:
            return  # as one that was never heard of
        if len(self._levels) >= MAX_KEYS:
            del self._levels[next(iter(self._levels))]
        self._levels[digest] = left, now

    def __repr__(self) -> str:
        return f"<RateLimiter {self._limit} [{len(self._levels)} keys]>"


def _digest(key: Hashable) -> bytes:
    return blake2b(repr(key).encode("ascii", "backslashreplace"), digest_size=_KEY_BYTES).digest()
