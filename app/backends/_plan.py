"""What the pool should start, hand out and stop next. Pure: numbers in, a list of actions out."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REFILL_QUIET_S = 0.2  # from the last lease to the next refill: a burst of callers gets the processor to itself
REFILL_SPACING_S = 0.2  # between two refills
REFILL_WITHIN_S = 5.0  # how long callers, and the calls of a busy node, may put off the next one
BUSY_LOOK_S = 0.5  # between two looks whether the node is busy, or short of descriptors

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BackendNumbers:
    """One backend's processes. `alive` counts all of them, starting and stopping ones included."""

    max_processes: int
    alive: int = 0
    stopping: int = 0
    warm: int = 0
    starting: int = 0
    warm_target: int = 0
    start_allowance: int | None = None  # starts that the breaker permits; None is any number
    refill_at: float = 0.0  # no refill before, and none while the node is busy,
    refill_by: float = math.inf  # but not later than this
    is_filled: bool = False  # until it was for the first time no refill waits for the node


@dataclass(frozen=True, slots=True)
class TenantNumbers:
    """A tenant's limit and the processes that count against it: warm ones do not.

    `starts_left`: how many more processes it may start now, warm ones included; None is any number. If there are none,
    the next one may start at `next_start_at`.
    """

    limit: int | None
    used: int = 0
    stopping: int = 0  # of those in use
    starts_left: int | None = None
    next_start_at: float = math.inf


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """The node's processes; `alive` as in BackendNumbers."""

    limit: int
    alive: int = 0
    starting: int = 0
    stopping: int = 0
    max_starting: int = 8
    is_busy: bool = False  # with what sessions ask
    is_short: bool = False  # of something that comes back without a word: it is looked at again


@dataclass(frozen=True, slots=True)
class View:
    """The input of a plan. `waiting` has the backend of each waiting caller, in order of service; `unused` the tenant
    of each shared process without sessions, the longest unused one first."""

    now: float
    node: NodeNumbers
    tenants: Mapping[str, TenantNumbers]
    backends: Mapping[Key, BackendNumbers]
    waiting: Iterable[Key] = ()
    unused: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give the caller at this place in the queue a warm process of its backend."""

    place: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of this backend. A refill is not for a waiting caller."""

    key: Key
    is_refill: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop one warm process of this backend."""

    key: Key


@dataclass(frozen=True, slots=True)
class EndUnused:
    """End the shared process of this tenant that no session has used for longest."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """End up to `count` idle sessions of this backend: callers wait."""

    key: Key
    count: int


Action = HandOut | Start | Stop | EndUnused | Reclaim


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to plan again even if nothing happens (None: never)."""

    actions: list[Action]
    look_again_at: float | None


def make_plan(view: View) -> Plan:
    """Decides about every waiting caller, then about the warm processes."""
    planner = _Planner(view)
    for place, key in enumerate(view.waiting):
        planner.serve(place, key)
    planner.shed_surplus()
    planner.make_room()
    planner.refill()
    planner.reclaim()
    return Plan(planner.actions, planner.look_again_at)


class _Planner:
    """Keeps count while decisions are made, so that no process is promised twice."""

    def __init__(self, view: View) -> None:
        self.actions: list[Action] = []
        self.look_again_at: float | None = None
        self._view = view
        self._warm = {key: backend.warm for key, backend in view.backends.items()}
        self._under_way = {key: backend.starting for key, backend in view.backends.items()}
        self._unused = list(view.unused)
        self._new: Counter[Key] = Counter()
        self._new_of_tenants: Counter[str] = Counter()
        self._handed_out: Counter[Key] = Counter()
        self._taken: Counter[str] = Counter()
        self._short_of_room: list[Key] = []  # callers held up by the node's limit
        self._held_up: list[tuple[str | Key, Key]] = []  # callers held up by the limit of a tenant or a backend
        self._somebody_waits_for_a_start = False

    def serve(self, place: int, key: Key) -> None:
        """Six cases: 1. the tenant is at its limit: wait. 2. A warm process: hand it out. 3. One is being started: it
        will be for this caller. 4. The tenant may start none now: wait. 5. There is room for one more: start it.
        6. There is none: wait."""
        tenant = self._view.tenants[key[0]]
        if tenant.limit is not None and tenant.used + self._taken[key[0]] >= tenant.limit:
            self._held_up.append((key[0], key))
            return
        if self._warm[key]:
            self._warm[key] -= 1
            self._handed_out[key] += 1
            self.actions.append(HandOut(place))
        elif self._under_way[key]:
            self._under_way[key] -= 1
            self._somebody_waits_for_a_start = True
        elif self._may_start(key):
            if not self._tenant_may_start(key[0]):
                return
            if self._node_is_full():
                self._short_of_room.append(key)
                return
            self._somebody_waits_for_a_start = True
            if self._all_starters_are_busy():
                return
            self._start(key)
        else:
            if self._view.backends[key].alive + self._new[key] >= self._view.backends[key].max_processes:
                self._held_up.append((key, key))
            return
        self._taken[key[0]] += 1

    def shed_surplus(self) -> None:
        """Stops warm processes above the target, e.g. one whose caller has gone."""
        for key, backend in self._view.backends.items():
            surplus = max(0, self._warm[key] - backend.warm_target)
            self._warm[key] -= surplus
            self.actions += [Stop(key)] * surplus

    def make_room(self) -> None:
        """Ends a process that serves nobody for each caller whom only the node's limit holds up: a warm one of another
        backend, or a shared one."""
        for _ in self._still_short_of_room():
            largest = max(self._warm, key=lambda key: self._warm[key], default=None)
            if largest is not None and self._warm[largest]:
                self._warm[largest] -= 1
                self.actions.append(Stop(largest))
            elif self._unused:
                self.actions.append(EndUnused(self._unused.pop(0)))
            else:
                return

    def reclaim(self) -> None:
        """For each caller for whom no process is stopping yet, ends a shared process without sessions of a tenant that
        has as many as it may, or an idle session."""
        wanted = Counter(self._still_short_of_room())
        comes_free: dict[str | Key, int] = {name: tenant.stopping for name, tenant in self._view.tenants.items()}
        comes_free.update({key: backend.stopping for key, backend in self._view.backends.items()})
        for limited, key in self._held_up:
            if comes_free[limited] > 0:
                comes_free[limited] -= 1
            elif limited in self._unused:
                self._unused.remove(key[0])
                self.actions.append(EndUnused(key[0]))
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
            refill_at = self._refill_at(backend)
            if refill_at > self._view.now:
                self._look_again(refill_at)
            elif self._tenant_may_start(key[0]):
                self._start(key, is_refill=True)
                return

    def _refill_at(self, backend: BackendNumbers) -> float:
        wanted_at = backend.refill_at
        if self._view.node.is_busy and backend.is_filled:
            wanted_at = max(wanted_at, self._view.now + BUSY_LOOK_S)
        return min(wanted_at, backend.refill_by)

    def _still_short_of_room(self) -> list[Key]:
        """Callers held up by the node's limit, less one for each process that is stopping."""
        stops = sum(isinstance(action, Stop | EndUnused) for action in self.actions)
        return self._short_of_room[self._view.node.stopping + stops :]

    def _may_start(self, key: Key) -> bool:
        backend, new = self._view.backends[key], self._new[key]
        # Like a start, handing out a process opens one more handshake.
        if backend.start_allowance is not None and new + self._handed_out[key] >= backend.start_allowance:
            return False
        return backend.alive + new < backend.max_processes

    def _tenant_may_start(self, name: str) -> bool:
        tenant = self._view.tenants[name]
        if tenant.starts_left is None or self._new_of_tenants[name] < tenant.starts_left:
            return True
        self._look_again(tenant.next_start_at)
        return False

    def _look_again(self, at: float) -> None:
        if math.isfinite(at):
            self.look_again_at = min(self.look_again_at or at, at)

    def _node_is_full(self) -> bool:
        is_full = self._view.node.alive + self._new.total() >= self._view.node.limit
        if is_full and self._view.node.is_short:
            self._look_again(self._view.now + BUSY_LOOK_S)
        return is_full

    def _all_starters_are_busy(self) -> bool:
        return self._view.node.starting + self._new.total() >= self._view.node.max_starting

    def _start(self, key: Key, *, is_refill: bool = False) -> None:
        self._new[key] += 1
        self._new_of_tenants[key[0]] += 1
        self.actions.append(Start(key, is_refill))
