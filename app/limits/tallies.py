"""Tallies: how many calls of each tenant ended on this node, how long they took, and what was refused, since somebody
looked last. One increment for each call; `this_node.activity` looks every few seconds."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

# Upper bounds of the buckets in seconds, each a fourth of an octave: from 0.1 ms to 8.5 minutes. What is read from a
# bucket's middle is exact to 9 %.
BOUNDS = tuple(2.0 ** (quarter / 4) for quarter in range(-53, 37))
MAX_TENANTS = 200  # with a tally of their own; the others share one
MAX_REASONS = 30  # of one tally; they come from closed sets, so that this is never reached
OTHERS = "-"  # of the tally that they share: no tenant can have this name


class Taken(NamedTuple):
    """What was counted: calls by the number of their bucket, and failed calls and refusals by reason."""

    buckets: dict[int, int]
    errors: dict[str, int]


class Tally:
    """Counts for one tenant."""

    __slots__ = ("_buckets", "_errors")

    def __init__(self) -> None:
        self._buckets, self._errors = defaultdict[int, int](int), dict[str, int]()

    def done(self, seconds: float, error_type: str) -> None:
        """A call has its outcome; the type is "" for a success."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        if error_type:
            self.refused(error_type)

    def refused(self, reason: str) -> None:
        """A request was refused, or a call failed."""
        if reason not in self._errors and len(self._errors) >= MAX_REASONS:
            reason = next(reversed(self._errors))
        self._errors[reason] = self._errors.get(reason, 0) + 1

    def take(self) -> Taken:
        """What was counted since the last time."""
        taken = Taken(self._buckets, self._errors)
        if taken.buckets:
            self._buckets = defaultdict(int)
        if taken.errors:
            self._errors = {}
        return taken


class Tallies:
    """Of the tenants that use this node. Whoever keeps a tally may use it for ever: a forgotten one counts nothing."""

    def __init__(self, most: int = MAX_TENANTS) -> None:
        self._most = most
        self._tallies = {OTHERS: Tally()}

    def of(self, tenant: str) -> Tally:
        """The tenant's tally; that of the others if there are too many."""
        found = self._tallies.get(tenant)
        if found is None:
            if len(self._tallies) > self._most:
                return self._tallies[OTHERS]
            found = self._tallies[tenant] = Tally()
        return found

    def has(self, tenant: str) -> bool:
        """Whether the tenant has one of its own."""
        return tenant in self._tallies

    def forget(self, tenant: str) -> None:
        """Makes room. Its gate must be gone: a new one asks for a new tally."""
        if tenant != OTHERS:
            self._tallies.pop(tenant, None)

    def __iter__(self) -> Iterator[tuple[str, Tally]]:
        return iter(list(self._tallies.items()))
