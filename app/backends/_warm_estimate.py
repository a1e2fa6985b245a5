"""WarmEstimate: the number of warm processes that would have met the arrivals of the last hours. Pure; one backend.

For each arrival it computes how many warm processes it would have needed to find one: those that arrivals before it had
taken and that would not have been replaced yet, and one more. The number wanted is the 99th percentile of that, where
an arrival counts half as much every two hours.
"""

import math
from typing import Literal

from app.backends._plan import REFILL_QUIET_S, REFILL_SPACING_S

QUANTILE = 0.99
HALF_LIFE_S = 7200.0
QUIET_S = 3600.0  # without an arrival: then nobody is expected
LOWER_EVERY_S = 300.0  # by one at a time; it is raised at once
FLOOR = 1  # of a backend of which nothing is known: for the first QUIET_S
MOST = 64
FIRST_START_S = 1.0  # assumed until one was measured
LATEST_SHARE = 0.2  # of the last measured start in the mean
MAX_START_S = 60.0

Why = Literal["floor", "arrivals", "quiet", "memory", "max_processes"]
WHYS: tuple[Why, ...] = ("floor", "arrivals", "quiet", "memory", "max_processes")


class WarmEstimate:
    """Times are those of one monotonic clock."""

    __slots__ = ("_arrived_at", "_backlog", "_lowered_at", "_since", "_weights", "start_s", "target", "why")

    def __init__(self, now: float) -> None:
        self._since, self._arrived_at, self._lowered_at = now, -math.inf, now
        self._backlog = 0.0  # warm processes that were taken and would not have been replaced yet
        self._weights: dict[int, float] = {}  # of arrivals, by the number that they needed
        self.start_s = FIRST_START_S
        self.target = 0
        self.why: Why = "floor"

    @property
    def refill_s(self) -> float:
        """The time for one process: they are replaced one after the other."""
        return REFILL_SPACING_S + self.start_s

    @property
    def arrivals(self) -> float:
        """How many there were, as far as they still count."""
        return sum(self._weights.values())

    def started(self, seconds: float) -> None:
        """A process took so long from its start until it had answered `initialize`."""
        self.start_s += LATEST_SHARE * (min(max(seconds, 0.0), MAX_START_S) - self.start_s)

    def arrived(self, at: float) -> None:
        """Somebody has wanted a process at this time. One who waited longer is told of later, as if he had come with
        the latest one."""
        gap = max(0.0, at - self._arrived_at)
        replaced = max(0.0, gap - REFILL_QUIET_S) / self.refill_s  # while they keep coming, nothing is
        self._backlog = min(max(0.0, self._backlog - replaced) + 1.0, float(MOST))
        needed = math.ceil(self._backlog - 1e-6)
        remains = 0.5 ** (gap / HALF_LIFE_S)
        self._weights = {number: weight * remains for number, weight in self._weights.items()}
        self._weights[needed] = self._weights.get(needed, 0.0) + 1.0
        self._arrived_at = max(self._arrived_at, at)

    def wanted(self, now: float) -> tuple[int, Why]:
        """What the arrivals ask for, without limits and regardless of what there is now."""
        if now - max(self._arrived_at, self._since) > QUIET_S:
            return 0, "quiet"
        if not self._weights:
            return FLOOR, "floor"
        missing = QUANTILE * self.arrivals
        for number in sorted(self._weights):
            missing -= self._weights[number]
            if missing <= 1e-9:
                return number, "arrivals"
        return max(self._weights), "arrivals"

    def reconsider(self, now: float, *, fit_memory: float, max_processes: int) -> None:
        """Sets `target` and `why`. `fit_memory`: as many processes have room in the memory for warm ones; one is
        allowed even if none has."""
        wanted, self.why = self.wanted(now)
        if fit_memory < wanted:
            wanted, self.why = max(1, math.floor(fit_memory)), "memory"
        if max_processes < wanted:
            wanted, self.why = max_processes, "max_processes"
        if wanted >= self.target or self.why != "arrivals":
            self.target, self._lowered_at = wanted, now
        elif now - self._lowered_at >= LOWER_EVERY_S:
            self.target, self._lowered_at = self.target - 1, now

    def look_again_at(self) -> float:
        """When `reconsider` can have another result without a new arrival."""
        return min(self._lowered_at + LOWER_EVERY_S, max(self._arrived_at, self._since) + QUIET_S + 1.0)

    def words(self) -> str:
        """Why the target is what it is, for people."""
        seen = f"{self.arrivals:.0f} arrivals in the last hours, a start takes {self.start_s:.1f} s"
        match self.why:
            case "floor":
                return "nothing has been asked of it since this node started"
            case "quiet":
                return f"nobody has asked for it for {QUIET_S / 60:.0f} minutes"
            case "arrivals":
                return seen
            case "memory":
                return f"{seen}; WARM_MEMORY_MB allows no more"
            case _:
                return f"{seen}; max_processes allows no more"
