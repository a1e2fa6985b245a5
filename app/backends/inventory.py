"""Every process that the pool answers for, counted by backend, by tenant and over the node. Starts and ends nothing."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from app.backends import _plan as plan
from app.backends._breaker import Breaker
from app.backends._warm_estimate import WarmEstimate
from app.domain import BackendSpec
from app.processes.process import BackendProcess


@dataclass(slots=True, eq=False)
class BackendStock:
    """One backend's processes as counts; only warm ones are held themselves."""

    spec: BackendSpec
    breaker: Breaker
    warm: deque[BackendProcess] = field(default_factory=deque)
    alive: int = 0
    starting: int = 0
    starting_for: list[tuple[str, ...] | None] = field(default_factory=list)  # whose homes those being started get
    unproven: int = 0  # leased, handshake not finished
    refill_at: float = 0.0
    refill_by: float = math.inf
    reclaim_at: float = 0.0  # before that no session has been idle for long enough to be ended
    is_filled: bool = False  # the target was reached once: from then on refills are spaced out
    is_forgotten: bool = False
    generation: int = 0  # grows whenever the present processes must not be handed out any more
    demand: WarmEstimate | None = None  # with `warm: auto`
    why: str = ""  # the process that died early last did so,
    stderr: tuple[str, ...] = ()  # and its last lines

    def configured(self, spec: BackendSpec) -> None:
        """The backend was changed, or created again after it was removed."""
        self.spec, self.is_forgotten, self.reclaim_at = spec, False, 0.0

    def forgotten(self) -> None:
        """The backend was removed."""
        self.is_forgotten = True

    def outdated(self) -> None:
        """Its processes, starting ones included, must not be handed out any more; they are replaced at once."""
        self.generation += 1
        self.is_filled = False

    def filled(self) -> None:
        """As many are warm as should be."""
        self.is_filled, self.refill_by = True, math.inf

    def is_short(self, now: float) -> None:
        """Fewer are warm than should be; perhaps since longer ago."""
        self.refill_by = min(self.refill_by, now + plan.REFILL_WITHIN_S)

    def handed_out(self, now: float) -> None:
        self.refill_at = now + plan.REFILL_QUIET_S

    def refilled(self, now: float) -> None:
        if self.is_filled:
            self.refill_at, self.refill_by = now + plan.REFILL_SPACING_S, now + plan.REFILL_WITHIN_S

    def reclaimed(self, again_at: float) -> None:
        """Idle sessions were ended; there are no more of them before this time."""
        self.reclaim_at = again_at

    def keeper(self, identity: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Whose home a process for this principal must have; None if it makes no difference."""
        return identity if self.spec.homes_per_principal else None

    def has_warm(self, keeper: tuple[str, ...] | None) -> bool:
        return any(process.spec.keeper == keeper for process in self.warm)

    def take(self, keeper: tuple[str, ...] | None) -> BackendProcess:
        """Takes the process that has been warm for the longest time, of those with this keeper's home."""
        process = next(each for each in self.warm if each.spec.keeper == keeper)
        self.warm.remove(process)
        return process

    def next_keeper(self, waiting: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
        """For whom the next process is to be started, of the keepers that wait for one."""
        there = Counter([process.spec.keeper for process in self.warm] + self.starting_for)
        for keeper in waiting:
            if not there[keeper]:
                return keeper
            there[keeper] -= 1
        return None

    def start_begun_for(self, keeper: tuple[str, ...] | None) -> None:
        self.starting_for.append(keeper)

    def start_over_for(self, keeper: tuple[str, ...] | None) -> None:
        """It is warm, or did not start."""
        self.starting_for.remove(keeper)

    def start_begun(self) -> None:
        self.starting += 1
        self.alive += 1

    def start_ended(self) -> None:
        """There is a process, ready to serve or not."""
        self.starting -= 1

    def start_failed(self) -> None:
        self.starting -= 1
        self.alive -= 1

    def handshake_begun(self) -> None:
        self.unproven += 1

    def handshake_over(self) -> None:
        self.unproven -= 1

    def process_gone(self) -> None:
        self.alive -= 1

    def died_early(self, why: str, stderr: tuple[str, ...], now: float) -> bool:
        """A process ended before its handshake; returns whether that opened the breaker."""
        self.why, self.stderr = why, stderr
        return self.breaker.died_early(now)

    def deaths_forgotten(self, breaker: Breaker) -> None:
        self.breaker, self.why, self.stderr = breaker, "", ()

    @property
    def log_fields(self) -> dict[str, object]:
        return {"backend": self.spec.name, "backend_tenant": self.spec.tenant}

    @property
    def warm_target(self) -> int:
        """How many processes should be warm."""
        # A process that is started for nobody has nobody's home.
        is_wanted = self.spec.enabled and not self.is_forgotten and not self.spec.homes_per_principal
        if not is_wanted:
            return 0
        if self.spec.warm != "auto":
            return self.spec.warm
        return 0 if self.demand is None else self.demand.target

    def estimates(self, now: float) -> WarmEstimate | None:
        """What its arrivals are told to; None if the number of warm processes is given."""
        if self.spec.warm != "auto":
            self.demand = None
        elif self.demand is None:
            self.demand = WarmEstimate(now)
        return self.demand

    def allowance(self, now: float) -> int | None:
        """How many more processes the breaker lets start; None is any number."""
        if not self.breaker.limits_starts:
            return None
        return max(0, self.breaker.allowance(now, unproven=self.unproven, warm=len(self.warm)) - self.starting)

    def numbers(self, now: float, stopping: int) -> plan.BackendNumbers:
        """The backend's part of a plan's input."""
        return plan.BackendNumbers(
            max_processes=self.spec.max_processes,
            alive=self.alive,
            stopping=stopping,
            warm=len(self.warm),
            starting=self.starting,
            warm_target=self.warm_target,
            start_allowance=self.allowance(now),
            refill_at=self.refill_at,
            refill_by=self.refill_by,
            is_filled=self.is_filled,
        )


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One session's claim on one process, which serves nobody else after `release`.

    `prepared` is what the pool's `prepare` returned for the process of a shared backend. `asked_at`: when the caller
    came, by the pool's clock. `was_warm`: it did not wait. `on_handshake` is called once, when the process has answered
    `initialize`; `on_unused` when no session uses a shared one any more.
    """

    stock: BackendStock
    connection: BackendProcess
    prepared: Any
    asked_at: float
    was_warm: bool
    on_handshake: Callable[["Lease"], None]
    on_release: Callable[["Lease", str], None]
    on_unused: Callable[[], None]
    unused_since: float | None = None
    has_shaken_hands: bool = False
    was_probed: bool = False
    _generation: int = field(init=False)
    _is_settled: bool = False
    _is_released: bool = False

    def __post_init__(self) -> None:
        self._generation = self.stock.generation
        self.stock.handshake_begun()

    @property
    def is_current(self) -> bool:
        """Whether the process may serve new sessions: the lease was not released, and the backend has not been changed,
        restarted or removed since."""
        is_outdated = self._generation != self.stock.generation or self.stock.is_forgotten
        return not (self._is_released or is_outdated)

    def used(self) -> None:
        """A session has joined the others of a shared process, or is the first."""
        self.unused_since = None

    def unused(self, since: float) -> None:
        """No session uses the shared process: its place may be taken."""
        self.unused_since = since
        self.on_unused()

    def probed(self) -> None:
        """As connections.source.Probed."""
        self.was_probed = True

    def handshake_succeeded(self) -> None:
        """The process has answered `initialize`: the backend works, so its breaker is reset. Idempotent."""
        self.has_shaken_hands = True
        if self.settle():
            self.on_handshake(self)

    def release(self, reason: str) -> None:
        """Stops the process in the background; its listener is called no more. Idempotent, never waits."""
        if not self._is_released:
            self._is_released = True
            self.settle()
            self.on_release(self, reason)

    def settle(self) -> bool:
        """Stops counting the process as unproven; returns whether it still was."""
        if self._is_settled:
            return False
        self._is_settled = True
        self.stock.handshake_over()
        return True


@dataclass(slots=True)
class Held:
    """A process that the pool answers for."""

    stock: BackendStock
    lease: Lease | None = None
    prepared: Any = None

    @property
    def is_before_handshake(self) -> bool:
        """Whether its end, now, would be an early death."""
        return self.lease is None or not self.lease.has_shaken_hands

    @property
    def is_excused(self) -> bool:
        """Whether it may end because of what the gateway has asked."""
        return self.lease is not None and self.lease.was_probed and self.is_before_handshake

    def became_ready(self, prepared: Any) -> None:
        """The process of a shared backend can serve sessions."""
        self.prepared = prepared

    def leased(self, lease: Lease) -> Lease:
        self.lease = lease
        return lease


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend's numbers, for administrators."""

    warm: int = 0
    starting: int = 0
    leased: int = 0
    stopping: int = 0
    waiting: int = 0
    breaker_open: bool = False
    warm_target: int = 0
    warm_why: str = ""  # with `warm: auto`
    retry_after_s: float = 0.0


class Inventory:
    """Changed by the parts of the pool, which call `settle` after each change of a stock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.stocks: dict[plan.Key, BackendStock] = {}
        self.held: dict[BackendProcess, Held] = {}
        self.starting = 0
        self.used: Counter[str] = Counter()  # processes by tenant, without the warm ones
        self.unsettled: set[plan.Key] = set()  # backends whose number of warm processes differs from the target
        self.remote_use: Mapping[str, int] = {}  # processes by tenant, on other nodes

    @property
    def alive(self) -> int:
        """Processes of the node, starting and stopping ones included."""
        return len(self.held) + self.starting

    def used_of(self, tenant: str) -> int:
        """Processes of the tenant on all nodes, without the warm ones."""
        return self.used[tenant] + self.remote_use.get(tenant, 0)

    def has_room_for(self, tenant: str, most: int | None) -> bool:
        """Whether the tenant may use one more process, if it may use so many."""
        return most is None or self.used_of(tenant) < most

    def settle(self, stock: BackendStock) -> None:
        """Notes whether the stock needs attention, so that a plan looks at few backends."""
        if len(stock.warm) >= stock.warm_target:
            stock.filled()
        else:
            stock.is_short(self.clock())
        if len(stock.warm) + stock.starting == stock.warm_target:
            self.unsettled.discard(stock.spec.key)
        else:
            self.unsettled.add(stock.spec.key)
        if stock.is_forgotten and not stock.alive:
            self.unsettled.discard(stock.spec.key)
            self.stocks.pop(stock.spec.key, None)

    def remote_use_changed(self, used: Mapping[str, int]) -> None:
        self.remote_use = used

    def start_begun(self, stock: BackendStock) -> None:
        self.starting += 1
        stock.start_begun()
        self.settle(stock)

    def start_ended(self, stock: BackendStock, process: BackendProcess | None) -> None:
        """Frees one of the node's places for starts; None if the start failed. The stock's `starting` goes on until a
        shared backend's handshake is done."""
        self.starting -= 1
        if process is None:
            stock.start_failed()
        else:
            self.held[process] = Held(stock)

    def gone(self, process: BackendProcess) -> Held:
        """Removes a process that has ended, and returns what was known of it."""
        held = self.held.pop(process)
        held.stock.process_gone()
        if held.lease is not None:
            held.lease.settle()
            tenant = held.stock.spec.tenant
            self.used[tenant] -= 1
            if not self.used[tenant]:
                del self.used[tenant]
        if process in held.stock.warm:
            held.stock.warm.remove(process)
        return held

    def unused(self) -> list[Lease]:
        """Of shared processes that no session uses: the longest unused ones first."""
        leases = [held.lease for process, held in self.held.items() if held.lease and not process.is_stopping()]
        return sorted((each for each in leases if each.unused_since is not None), key=attrgetter("unused_since"))

    def resident_bytes_of(self, stock: BackendStock) -> float:
        """Of one process of the backend, on average; 0 if none was measured yet."""
        sizes = [each.resident_bytes for each, held in self.held.items() if held.stock is stock and each.resident_bytes]
        return sum(sizes) / len(sizes) if sizes else 0.0

    def snapshot(self, waiting: Mapping[plan.Key, int]) -> dict[plan.Key, BackendSnapshot]:
        """Every backend's numbers; `waiting` has the callers by backend."""
        leased, stopping = Counter[plan.Key](), Counter[plan.Key]()
        for process, held in self.held.items():
            if process.is_stopping():
                stopping[held.stock.spec.key] += 1
            elif held.lease is not None:
                leased[held.stock.spec.key] += 1
        return {
            key: BackendSnapshot(
                warm=len(stock.warm),
                starting=stock.starting,
                leased=leased[key],
                stopping=stopping[key],
                waiting=waiting.get(key, 0),
                breaker_open=stock.breaker.is_open,
                warm_target=stock.warm_target,
                warm_why="" if stock.demand is None else stock.demand.words(),
                retry_after_s=stock.breaker.retry_after_s(self.clock()) if stock.breaker.is_open else 0.0,
            )
            for key, stock in self.stocks.items()
        }
