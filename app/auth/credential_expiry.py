"""CredentialExpiry: recent revocations, for requests that have waited; and what ends when a credential expires.

One per node. After each wait a request asks whether something was revoked since it was let in: usually that compares
two numbers. Whatever is open for long is registered here, and a sweep ends it when its credential expires.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from app.domain import Principal

SWEEP_S = 0.25  # how late an expiry may be noticed
MAX_KEPT = 1000  # revocations; a request that has waited through more asks the store

log = logging.getLogger(__name__)

IsMeant = Callable[[Principal], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """Something open, and the function that ends it."""

    expires_at: float
    end: Callable[[], None]


class CredentialExpiry:
    """Used from the event loop's thread only. `wall_clock` is the clock of `Principal.expires_at`."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self.count = 0  # of all revocations so far
        self._recent: deque[tuple[float, IsMeant]] = deque(maxlen=MAX_KEPT)  # the newest is last
        self._holds = set[_Hold]()
        self._next_at = float("inf")  # nothing expires earlier

    # --- revocations

    def revoked(self, is_meant: IsMeant) -> None:
        """The credentials of these principals were revoked, or must be looked up again."""
        self.count += 1
        self._recent.append((self._clock(), is_meant))

    def may_concern(self, principal: Principal, since: int) -> bool:
        """Whether one of the revocations after number `since` may be about this principal."""
        new = self.count - since
        if new > len(self._recent):
            return True
        return any(is_meant(principal) for _, is_meant in islice(reversed(self._recent), new))

    def count_before(self, seconds: float) -> int:
        """`count` as it was so many seconds ago, as far as that is remembered."""
        earliest, count = self._clock() - seconds, self.count
        for at, _ in reversed(self._recent):
            if at < earliest:
                break
            count -= 1
        return count

    # --- expiry

    def has_expired(self, principal: Principal) -> bool:
        """Whether its credential has expired."""
        return principal.expires_at is not None and principal.expires_at <= self._wall_clock()

    @contextmanager
    def hold(self, principal: Principal, end: Callable[[], None]) -> Iterator[None]:
        """Within this block `end` is called once if the principal's credential expires."""
        if principal.expires_at is None:
            yield
            return
        hold = _Hold(principal.expires_at, end)
        self._holds.add(hold)
        self._next_at = min(self._next_at, hold.expires_at)
        try:
            yield
        finally:
            self._holds.discard(hold)

    def sweep(self) -> None:
        """Ends what has expired. Usually nothing is due, and that is one comparison."""
        now = self._wall_clock()
        if now < self._next_at:
            return
        due = [hold for hold in self._holds if hold.expires_at <= now]
        self._holds.difference_update(due)
        self._next_at = min((hold.expires_at for hold in self._holds), default=float("inf"))
        for hold in due:
            try:
                hold.end()
            except Exception:
                log.exception("Could not close what was opened with an expired credential")
