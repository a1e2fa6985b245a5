"""What the pool should start, hand out and stop next. Pure: numbers in, a list of actions out."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

REFILL_QUIET_S = 0.2  # a replacement starts only so long after the last lease: a burst has the processor for itself
REFILL_SPACING_S = 0.2  # between two replacements

Key = tuple[str, str]
TENANT, BACKEND = "tenant", "backend"


class Queued:
    """What a FairQueue holds: anything that knows its tenant."""

    tenant: str


Item = TypeVar("Item", bound=Queued)


class FairQueue(Generic[Item]):
    """First come, first served inside a tenant; the tenants take turns.

    Iteration is in the order of service; removing while iterating is not allowed.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        lines = [iter(line) for line in self._lines.values()]
        while lines:
            still_open = []
            for line in lines:
                for item in line:
                    yield item
                    still_open.append(line)
                    break
            lines = still_open

    def append(self, item: Item) -> None:
        """Takes the last place of its tenant's line."""
        self._lines.setdefault(item.tenant, deque()).append(item)
        self._length += 1

    def remove(self, item: Item) -> None:
        """Leaves without having been served; does nothing if it is not there."""
        line = self._lines.get(item.tenant, deque())
        if item in line:
            line.remove(item)
            self._length -= 1
            if not line:
                del self._lines[item.tenant]

    def serve(self, item: Item) -> None:
        """Leaves, served: its tenant goes to the end of the round."""
        self.remove(item)
        if item.tenant in self._lines:
            self._lines.move_to_end(item.tenant)


@dataclass(frozen=True, slots=True)
class BackendNumbers:
    """One backend's processes. `alive` counts all of them, those that start and those that stop included."""

    max_processes: int
    alive: int = 0
    stopping: int = 0
    warm: int = 0
    starting: int = 0
    warm_target: int = 0
    start_allowance: int | None = None  # what the breaker permits; None is any number
    refill_at: float = 0.0  # not earlier


@dataclass(frozen=True, slots=True)
class TenantNumbers:
    """What a tenant uses of its limit; warm processes do not count."""

    limit: int | None
    used: int = 0
    stopping: int = 0  # of those that are used


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """The node's processes; `alive` as above."""

    limit: int
    alive: int = 0
    starting: int = 0
    stopping: int = 0
    max_starting: int = 8


@dataclass(frozen=True, slots=True)
class View:
    """Everything a plan is made from. `waiting` holds the backend of each waiting caller, in order of service."""

    now: float
    node: NodeNumbers
    tenants: Mapping[str, TenantNumbers]
    backends: Mapping[Key, BackendNumbers]
    waiting: Iterable[Key] = ()


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give the caller at this place in the queue a warm process of its backend."""

    place: int
    key: Key


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of this backend; a refill is for stock, not for a caller."""

    key: Key
    is_refill: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop one warm process of this backend."""

    key: Key


@dataclass(frozen=True, slots=True)
class Reclaim:
    """End so many sessions of this backend that are idle, if there are any: callers wait."""

    key: Key
    count: int


Action = HandOut | Start | Stop | Reclaim


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to look again though nothing has happened (None: never)."""

    actions: list[Action] = field(default_factory=list)
    look_again_at: float | None = None


def make_plan(view: View) -> Plan:
    """Decides for everybody who waits, then about the stock of warm processes."""
    planner = _Planner(view)
    for place, key in enumerate(view.waiting):
        planner.serve(place, key)
    planner.shed_surplus()
    planner.make_room()
    planner.refill()
    planner.reclaim()
    return Plan(planner.actions, planner.look_again_at)


class _Planner:
    """Keeps count while decisions are made, so that no number is spent twice."""

    def __init__(self, view: View) -> None:
        self.actions: list[Action] = []
        self.look_again_at: float | None = None
        self._view = view
        self._warm = {key: backend.warm for key, backend in view.backends.items()}
        self._under_way = {key: backend.starting for key, backend in view.backends.items()}
        self._new: Counter[Key] = Counter()
        self._handed_out: Counter[Key] = Counter()
        self._taken: Counter[str] = Counter()
        self._short_of_room: list[Key] = []
        self._held_up: list[tuple[str, Key]] = []  # callers, by whose limit it is
        self._comes_free: Counter[tuple[str, Key | str]] = Counter()
        self._somebody_waits_for_a_start = False

    def serve(self, place: int, key: Key) -> None:
        """Five cases: 1. the tenant has all it may have: wait. 2. A warm process: hand it out. 3. One is being
        started: it will be for this caller. 4. There is room for one more: start it. 5. There is none: wait."""
        tenant = self._view.tenants[key[0]]
        if tenant.limit is not None and tenant.used + self._taken[key[0]] >= tenant.limit:
            self._held_up.append((TENANT, key))
            return
        if self._warm[key]:
            self._warm[key] -= 1
            self._handed_out[key] += 1
            self.actions.append(HandOut(place, key))
        elif self._under_way[key]:
            self._under_way[key] -= 1
            self._somebody_waits_for_a_start = True
        elif self._may_start(key):
            if self._node_is_full():
                self._short_of_room.append(key)
                return
            self._somebody_waits_for_a_start = True
            if self._all_starters_are_busy():
                return
            self._start(key)
        else:
            if self._view.backends[key].alive + self._new[key] >= self._view.backends[key].max_processes:
                self._held_up.append((BACKEND, key))
            return
        self._taken[key[0]] += 1

    def shed_surplus(self) -> None:
        """Stops warm processes above the target, e.g. one whose caller has gone."""
        for key, backend in self._view.backends.items():
            surplus = max(0, self._warm[key] - backend.warm_target)
            self._warm[key] -= surplus
            self.actions += [Stop(key)] * surplus

    def make_room(self) -> None:
        """One warm process of another backend goes for each caller whom only the node's limit holds up.

        Those that are stopping already will make room for as many.
        """
        stops = sum(isinstance(action, Stop) for action in self.actions)
        for _ in self._short_of_room[self._view.node.stopping + stops :]:
            largest = max(self._warm, key=lambda key: self._warm[key], default=None)
            if largest is None or not self._warm[largest]:
                return
            self._warm[largest] -= 1
            self.actions.append(Stop(largest))

    def reclaim(self) -> None:
        """One idle session goes for each caller for whom nothing else makes room: no process that stops already."""
        stops = sum(isinstance(action, Stop) for action in self.actions)
        left = self._short_of_room[self._view.node.stopping + stops :]
        wanted = Counter(left)
        for whose, key in self._held_up:
            scope = (whose, key if whose == BACKEND else key[0])
            if scope not in self._comes_free:
                numbers = self._view.backends[key] if whose == BACKEND else self._view.tenants[key[0]]
                self._comes_free[scope] = numbers.stopping
            if self._comes_free[scope] > 0:
                self._comes_free[scope] -= 1
            else:
                wanted[key] += 1
        self.actions += [Reclaim(key, count) for key, count in wanted.items()]

    def refill(self) -> None:
        """Starts one warm process, if nobody waits for a start and none is under way."""
        if self._somebody_waits_for_a_start or self._short_of_room or self._view.node.starting or self._new:
            return
        for key, backend in self._view.backends.items():
            if self._warm[key] + self._under_way[key] >= backend.warm_target:
                continue
            if not self._may_start(key) or self._node_is_full():
                continue
            if backend.refill_at <= self._view.now:
                self._start(key, is_refill=True)
                return
            self.look_again_at = min(self.look_again_at or backend.refill_at, backend.refill_at)

    def _may_start(self, key: Key) -> bool:
        backend, new = self._view.backends[key], self._new[key]
        # A process that is handed out is one more whose handshake is open: it counts like a start.
        if backend.start_allowance is not None and new + self._handed_out[key] >= backend.start_allowance:
            return False
        return backend.alive + new < backend.max_processes

    def _node_is_full(self) -> bool:
        return self._view.node.alive + self._new.total() >= self._view.node.limit

    def _all_starters_are_busy(self) -> bool:
        return self._view.node.starting + self._new.total() >= self._view.node.max_starting

    def _start(self, key: Key, *, is_refill: bool = False) -> None:
        self._new[key] += 1
        self.actions.append(Start(key, is_refill))
