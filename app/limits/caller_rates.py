"""RateLimiter: a rate limit with bursts for each of many keys: addresses, principals.

For requests that tenants' limits do not cover: attempts with bad credentials or unknown sessions, the REST API. Each
node counts for itself, so N nodes together let N times as many through. Not on the message path of open sessions.
"""

import time
from collections.abc import Callable, Hashable
from hashlib import blake2b

from prometheus_client import Counter

from app.errors import FIXED, LimitReached, RateLimited, Whose

MAX_KEYS = 10_000  # of one limiter; above it the least recently used one is forgotten, with what it has spent
_KEY_BYTES = 16  # of a digest: keys may be long

# limit -> (per second, at once, of whom, message of the refusal)
_LIMITS: dict[str, tuple[float, float, Whose, str]] = {
    # High enough for a cluster of clients whose key has expired, and for the tests of an evaluation.
    "bad_credentials": (10.0, 300.0, "address", "too many requests with bad credentials come from this address"),
    # After a restart every client of a key asks once for a session that is gone.
    "unknown_sessions": (
        100.0,
        1000.0,
        "principal",
        "too many requests name sessions that this credential does not have",
    ),
    # The issuers of a tenant: anybody may ask, and an answer that is not cached needs the database.
    "resource_metadata": (
        10.0,
        100.0,
        "address",
        "too many requests for the metadata of tenants come from this address",
    ),
    # Tokens of a tenant's authorization server that are refused: of a fleet that was cut off each client tries once.
    "token_endpoint": (10.0, 300.0, "address", "too many requests for tokens that were refused come from this address"),
    # Programs that register themselves: one does so when somebody connects it for the first time.
    "registrations": (0.5, 30.0, "address", "too many programs register themselves from this address"),
    # Authorization requests: each may fetch a metadata document.
    "authorizations": (5.0, 200.0, "address", "too many authorizations are asked for from this address"),
    # The identity providers of a tenant: each sign-in that is begun asks one of them.
    "console_sign_in": (2.0, 60.0, "address", "too many sign-ins to the console are begun from this address"),
    # The lists of tenants: an editor asks a few times when it starts, and many may share an address.
    "registry": (20.0, 500.0, "address", "too many requests for registries come from this address"),
    "rest": (50.0, 1000.0, "principal", "this credential sends too many requests to the API"),
}
LIMITS = frozenset(_LIMITS)


class RateLimiter:
    """Refuses what comes too fast, by key. `limit` is one of LIMITS, and the label of `refused`."""

    def __init__(self, limit: str, refused: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._rate, self._burst, self._whose, self._message = _LIMITS[limit]
        self._refused = refused.labels(limit)
        # By digest of the key: what was left, and when. The least recently used one is first.
        self._levels: dict[bytes, tuple[float, float]] = {}

    def spend(self, key: Hashable, cost: float = 1.0) -> None:
        """Subtracts the cost from what the key has left. Raises RateLimited, and subtracts nothing, if it is more."""
        digest, now = _digest(key), self._clock()
        left = self._left(digest, now)
        if left < cost:
            self._keep(digest, left, now)
            self._refused.inc()
            reached = LimitReached(self._limit, self._whose, self._rate, None, FIXED)
            raise RateLimited(self._limit, self._message, retry_after_s=(cost - left) / self._rate, reached=reached)
        self._keep(digest, left - cost, now)

    def give_back(self, key: Hashable, cost: float = 1.0) -> None:
        """Returns what was spent."""
        digest, now = _digest(key), self._clock()
        if digest in self._levels:
            self._keep(digest, min(self._burst, self._left(digest, now) + cost), now)

    def _left(self, digest: bytes, now: float) -> float:
        left, at = self._levels.get(digest, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _keep(self, digest: bytes, left: float, now: float) -> None:
        self._levels.pop(digest, None)
        if left >= self._burst:
            return  # nothing to remember: as good as a new key
        if len(self._levels) >= MAX_KEYS:
            del self._levels[next(iter(self._levels))]
        self._levels[digest] = left, now


def _digest(key: Hashable) -> bytes:
    return blake2b(repr(key).encode("ascii", "backslashreplace"), digest_size=_KEY_BYTES).digest()
