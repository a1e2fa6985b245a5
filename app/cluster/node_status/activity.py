"""Activity: what went on during the last quarter of an hour, in steps of five seconds, by tenant.

In memory and bounded: MAX_BYTES in all, and as many tenants as there are tallies; the others are summed. A tenant that
does nothing costs nothing. Steps are counted in Unix time, so that those of all nodes are the same.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeVar

import anyio
import msgspec

from app.limits.tenant_limits import BOUNDS, OTHERS, Taken, Tallies

STEP_S = 5
STEPS = 180
MAX_BYTES = 8 << 20
_KEPT_BYTES = 100  # what Python needs for each moment besides its text
ALL = ""  # the series of all tenants together
LATE_STEPS = 2  # a node whose clock is further behind counts as one that has not got so far

_K = TypeVar("_K")


class Moment(NamedTuple):
    """One step of one tenant, at its end: `buckets` and `errors` were counted during it (`limits.tallies`)."""

    step: int
    sessions: int = 0
    waiting: int = 0
    resident_bytes: int = 0
    processes: dict[str, int] = {}  # noqa: RUF012 - never changed
    buckets: dict[int, int] = {}  # noqa: RUF012
    errors: dict[str, int] = {}  # noqa: RUF012

    def plus(self, other: "Moment") -> "Moment":
        """Of two tenants or nodes together, in the same step."""
        return Moment(
            self.step,
            self.sessions + other.sessions,
            self.waiting + other.waiting,
            self.resident_bytes + other.resident_bytes,
            added(self.processes, other.processes),
            added(self.buckets, other.buckets),
            added(self.errors, other.errors),
        )

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing at all."""
        return not any(self[1:])


@dataclass(frozen=True, slots=True)
class NodeActivity:
    """What one node tells. Steps from `since` to `until` that are missing were idle. `is_summed`: the tenant has no
    series of its own there."""

    node: str
    since: int
    until: int
    moments: Sequence[Moment]
    memory_limit_bytes: int = 0
    is_summed: bool = False


@dataclass(slots=True)
class Looked:
    """What a tenant has at this moment."""

    sessions: int = 0
    waiting: int = 0
    resident_bytes: int = 0
    processes: Counter[str] = field(default_factory=Counter)


class Activity:
    """`run` is a task of the node. `look` returns what each tenant has now; its cost is that of every step."""

    def __init__(
        self,
        tallies: Tallies,
        look: Callable[[], Mapping[str, Looked]],
        clock: Callable[[], float] = time.time,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        self._tallies, self._look, self._clock, self._most_bytes = tallies, look, clock, most_bytes
        self._series = defaultdict[str, deque[tuple[int, bytes]]](deque)
        self._bytes = 0
        self._since = self._until = int(clock() // STEP_S)

    async def run(self) -> None:
        """Samples at the end of each step, until it is cancelled."""
        while True:
            await anyio.sleep(STEP_S - self._clock() % STEP_S)
            self.sample()

    def sample(self) -> None:
        """Ends a step, unless it has ended already: a timer may fire a little early, and then once more in time."""
        step = round(self._clock() / STEP_S)
        if step < self._until - LATE_STEPS:
            self._begin_anew(step - 1)
        if step <= self._until:
            return
        self._until = step
        looked = self._look()
        for tenant in looked:
            self._tallies.of(tenant)  # one with warm processes only has none yet
        counted = {tenant: tally.take() for tenant, tally in self._tallies}
        moments = dict[str, Moment]()
        for tenant in {*looked, *counted}:
            own = tenant if tenant in counted else OTHERS
            moment = _moment(step, looked.get(tenant), counted.get(tenant))
            if not moment.is_idle:
                moments[own] = moments[own].plus(moment) if own in moments else moment
        whole = Moment(step)
        for each in moments.values():
            whole = whole.plus(each)
        for tenant, each in {**moments, ALL: whole}.items():
            self._add(tenant, each)
        self._forget(step - STEPS, looked)

    def of(self, tenant: str | None, node: str, memory_limit_bytes: int = 0, steps: int = STEPS) -> NodeActivity:
        """The last steps of a tenant, or of all together: as many as `together` needs to show `steps`."""
        key = ALL if tenant is None else tenant
        first = self._until - steps - LATE_STEPS
        last = takewhile(lambda each: each[0] > first, reversed(self._series.get(key, ())))
        kept = [msgspec.msgpack.decode(packed, type=Moment) for _, packed in last][::-1]
        is_summed = tenant is not None and tenant not in self._series and OTHERS in self._series
        since = max(self._since, self._until - STEPS)
        return NodeActivity(node, since, self._until, kept, memory_limit_bytes, is_summed)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._bytes

    def _begin_anew(self, step: int) -> None:
        """The machine's clock was set back: the steps so far lie in its future."""
        self._series.clear()
        self._bytes = 0
        self._since = self._until = step

    def _add(self, tenant: str, moment: Moment) -> None:
        packed = msgspec.msgpack.encode(moment)
        self._series[tenant].append((moment.step, packed))
        self._bytes += len(packed) + _KEPT_BYTES

    def _forget(self, until: int, in_use: Collection[str]) -> None:
        """What is too old; and, where there is too much, the longest history of a tenant."""
        for tenant, kept in list(self._series.items()):
            while kept and kept[0][0] <= until:
                self._drop_first(kept)
            if not kept:
                del self._series[tenant]
        for tenant, _ in self._tallies:
            if tenant not in self._series and tenant not in in_use:
                self._tallies.forget(tenant)
        while self._bytes > self._most_bytes:
            longest = max(self._series, key=lambda name: (name != ALL, len(self._series[name])))
            self._drop_first(self._series[longest])
            if not self._series[longest]:
                del self._series[longest]

    def _drop_first(self, kept: deque[tuple[int, bytes]]) -> None:
        self._bytes -= len(kept.popleft()[1]) + _KEPT_BYTES


def _moment(step: int, looked: Looked | None, counted: Taken | None) -> Moment:
    has, taken = looked or Looked(), counted or Taken({}, {})
    return Moment(
        step, has.sessions, has.waiting, has.resident_bytes, dict(has.processes), dict(taken.buckets), taken.errors
    )


def added(one: Mapping[_K, int], other: Mapping[_K, int]) -> dict[_K, int]:
    """Counts by key, summed."""
    return dict(Counter(one) + Counter(other)) if one and other else dict(one or other)


@dataclass(frozen=True, slots=True)
class Shown:
    """The activity of several nodes together, oldest step first; None where no node can tell. `until` is the end of the
    last step."""

    until_s: float
    moments: Sequence[Moment | None]
    memory_limit_bytes: int
    nodes: Sequence[str]
    summed: Sequence[str]
    silent: Sequence[str]


def together(told: Sequence[NodeActivity], silent: Sequence[str] = (), steps: int = STEPS) -> Shown:
    """One series from those of all nodes."""
    latest = max((each.until for each in told), default=0)
    until = min((each.until for each in told if each.until >= latest - LATE_STEPS), default=0)
    sums = dict[int, Moment]()
    for node in told:
        for step in range(max(node.since + 1, until - steps + 1), min(node.until, until) + 1):
            sums.setdefault(step, Moment(step))
        for moment in node.moments:
            if moment.step in sums:
                sums[moment.step] = sums[moment.step].plus(moment)
    moments = [sums.get(step) for step in range(until - steps + 1, until + 1)]
    return Shown(
        until * STEP_S,
        moments,
        sum(each.memory_limit_bytes for each in told),
        sorted(each.node for each in told),
        sorted(each.node for each in told if each.is_summed),
        silent,
    )


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """Seconds below which this share of the calls ended, exact to 9 %; None without a call."""
    calls = sum(buckets.values())
    if not calls:
        return None
    left = share * calls
    for number in sorted(buckets):
        left -= buckets[number]
        if left <= 0:
            return _middle(number)
    return _middle(max(buckets))


def _middle(number: int) -> float:
    low = BOUNDS[max(0, number - 1)]
    return float((low * BOUNDS[min(number, len(BOUNDS) - 1)]) ** 0.5)
