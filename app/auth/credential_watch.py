"""CredentialWatch: what was revoked lately, for those who have waited meanwhile; what ends when a credential expires.

One per node. A request asks after each wait whether something was revoked since it was let in: usually that is one
comparison of numbers. What is open for long is held here, and ended by a sweep when its credential expires.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import anyio

from app.domain import Principal

SWEEP_S = 0.25  # how late an expiry may be noticed
MAX_KEPT = 1000  # revocations; who has waited for longer than these reach back asks the store

log = logging.getLogger(__name__)

IsMeant = Callable[[Principal], bool]


class _Hold:
    """Something open, and how it is ended."""

    __slots__ = ("end", "expires_at")

    def __init__(self, expires_at: float, end: Callable[[], None]) -> None:
        self.expires_at, self.end = expires_at, end


class CredentialWatch:
    """Used from the event loop's thread only. `run` ends what has expired; `wall_clock` is that of `expires_at`."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self.count = 0  # of all revocations so far
        self._recent: deque[tuple[float, IsMeant]] = deque(maxlen=MAX_KEPT)  # the newest stands last
        self._holds = set[_Hold]()
        self._next_at = float("inf")  # nothing expires before

    def __repr__(self) -> str:
        return f"<CredentialWatch [{self.count} revocations, {len(self._holds)} open]>"

    # --- revocations

    def revoked(self, is_meant: IsMeant) -> None:
        """The credentials of the principals that are meant are worth nothing, or are to be looked at again."""
        self.count += 1
        self._recent.append((self._clock(), is_meant))

    def may_concern(self, principal: Principal, since: int) -> bool:
        """Whether a revocation after the first `since` may mean this principal."""
        new = self.count - since
        if new > len(self._recent):
            return True
        return any(is_meant(principal) for _, is_meant in islice(reversed(self._recent), new))

    def count_before(self, seconds: float) -> int:
        """What `count` was so long ago, as far as that is remembered."""
        earliest, count = self._clock() - seconds, self.count
        for at, _ in reversed(self._recent):
            if at < earliest:
                break
            count -= 1
        return count

    # --- expiry

    def has_expired(self, principal: Principal) -> bool:
        """Whether its credential is over."""
        return principal.expires_at is not None and principal.expires_at <= self._wall_clock()

    @contextmanager
    def hold(self, principal: Principal, end: Callable[[], None]) -> Iterator[None]:
        """Within this block, `end` is called once if the principal's credential expires."""
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

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            await anyio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Ends what has expired. Looks at what is open only when something of it is due."""
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
