"""What was refused in the last minutes, and to whom: for whoever looks for the cause of a trouble.

In memory and bounded: above MAX_KEPT the one that was refused longest ago is forgotten.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.errors import LimitReached

KEPT_S = 300.0
MAX_KEPT = 500  # of each kind

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Happened:
    """How often, and when: Unix time. `reached` is the limit as of the last time."""

    first_at: float
    at: float
    times: int = 1
    reached: LimitReached | None = None


class Lately(Generic[K]):
    """Events by key."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[K, Happened] = {}  # the one that happened last is last

    def note(self, key: K, reached: LimitReached | None = None) -> None:
        """It happened now."""
        now, known = self._clock(), self._kept.pop(key, None)
        if known is None or now - known.at > KEPT_S:
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            known = Happened(now, now, 0)
        self._kept[key] = Happened(known.first_at, now, known.times + 1, reached)

    def __iter__(self) -> Iterator[tuple[K, Happened]]:
        since = self._clock() - KEPT_S
        return iter([(key, each) for key, each in self._kept.items() if each.at >= since])


@dataclass(frozen=True, slots=True)
class RefusedTo:
    """Who ran into which limit. `principal`: for people, as in the log."""

    tenant: str
    limit: str
    of: str
    principal: str


class Refusals:
    """`limits`: requests refused by a limit; `credentials`: bad ones, by the address that they came from."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.limits = Lately[RefusedTo](clock)
        self.credentials = Lately[str](clock)

    def limited(self, tenant: str, principal: str, reached: LimitReached) -> None:
        """A limit has refused a request of this principal; the tenant is the one that it is from."""
        self.limits.note(RefusedTo(tenant, reached.name, reached.of, principal), reached)
