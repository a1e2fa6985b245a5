"""What the pool counts: one backend's stock of processes, and leases on single ones."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.backends import plan
from app.backends.breaker import Breaker
from app.domain import BackendSpec
from app.processes.process import BackendProcess


@dataclass(slots=True, eq=False)
class BackendStock:
    """One backend's processes, in numbers; only those nobody has leased are held by name."""

    spec: BackendSpec
    breaker: Breaker
    warm: deque[BackendProcess] = field(default_factory=deque)
    alive: int = 0
    starting: int = 0
    unproven: int = 0  # leased, and the handshake has not succeeded yet
    refill_at: float = 0.0
    reclaim_at: float = 0.0  # until then no session of it has been idle for long enough to make room
    is_filled: bool = False  # once: the first filling is not spaced out
    is_forgotten: bool = False
    generation: int = 0  # grows when processes of now are no longer those to hand out
    stderr: tuple[str, ...] = ()  # the last words of the process that died early last

    @property
    def key(self) -> plan.Key:
        """The backend it belongs to."""
        return self.spec.key

    @property
    def warm_target(self) -> int:
        """How many processes should wait for a session."""
        return self.spec.warm if self.spec.enabled and not self.is_forgotten else 0

    def allowance(self, now: float) -> int | None:
        """How many more processes the breaker lets start; None is any number."""
        allowed = self.breaker.allowance(now, unproven=self.unproven, warm=len(self.warm))
        return allowed if allowed is None else max(0, allowed - self.starting)

    def numbers(self, now: float, stopping: int = 0) -> plan.BackendNumbers:
        """What a plan is made from."""
        return plan.BackendNumbers(
            max_processes=self.spec.max_processes,
            alive=self.alive,
            stopping=stopping,
            warm=len(self.warm),
            starting=self.starting,
            warm_target=self.warm_target,
            start_allowance=self.allowance(now),
            refill_at=self.refill_at,
        )


class LeaseHolder(Protocol):
    """What a lease tells, and whom: the pool."""

    def on_handshake(self, lease: "Lease") -> None:
        """The process has answered `initialize`."""

    def on_release(self, lease: "Lease", reason: str) -> None:
        """The session is done with the process."""


class Lease:
    """One claim on one process. Ends with `release`; the process serves nobody after that.

    `prepared` is what the pool's `prepare` made of the process of a shared backend. `was_warm`: nobody had to wait.
    """

    __slots__ = (
        "_generation",
        "_holder",
        "_is_released",
        "_is_settled",
        "has_shaken_hands",
        "link",
        "prepared",
        "stock",
        "was_warm",
    )

    def __init__(
        self,
        holder: LeaseHolder,
        stock: BackendStock,
        link: BackendProcess,
        prepared: Any = None,
        *,
        was_warm: bool = False,
    ) -> None:
        self.link, self.was_warm = link, was_warm
        self.prepared = prepared
        self._generation = stock.generation
        self._holder = holder
        self.stock = stock
        self.has_shaken_hands = False  # a process that ends by itself before has died early
        self._is_settled = False
        self._is_released = False
        stock.unproven += 1

    def __repr__(self) -> str:
        return f"<Lease {self.link!r}{' released' if self._is_released else ''}>"

    @property
    def is_current(self) -> bool:
        """Whether the backend has been neither changed nor restarted nor removed since."""
        return self._generation == self.stock.generation and not self.stock.is_forgotten

    def handshake_succeeded(self) -> None:
        """The backend has answered `initialize`: it works, so the breaker starts anew. Idempotent."""
        self.has_shaken_hands = True
        if self.settle():
            self._holder.on_handshake(self)

    def release(self, reason: str) -> None:
        """Stops the process in the background; its listener hears nothing more. Idempotent, never waits."""
        if not self._is_released:
            self._is_released = True
            self.settle()
            self._holder.on_release(self, reason)

    def settle(self) -> bool:
        """Ends the time in which it counts as unproven; returns whether that was still running."""
        if self._is_settled:
            return False
        self._is_settled = True
        self.stock.unproven -= 1
        return True


@dataclass(slots=True)
class Held:
    """A process the pool answers for."""

    stock: BackendStock
    lease: Lease | None = None
    prepared: Any = None


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend's numbers, for administrators."""

    warm: int
    starting: int
    leased: int
    stopping: int
    waiting: int
    breaker_open: bool
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The node's numbers, for administrators."""

    warm: int
    starting: int
    leased: int
    stopping: int
    waiting: int
    backends: dict[plan.Key, BackendSnapshot]


def take_snapshot(
    stocks: Iterable[BackendStock], held: Mapping[BackendProcess, Held], waiting: Mapping[plan.Key, int], now: float
) -> PoolSnapshot:
    """The numbers of a pool that holds these."""
    leased, stopping = Counter[plan.Key](), Counter[plan.Key]()
    for process, holding in held.items():
        if process.is_stopping():
            stopping[holding.stock.key] += 1
        elif holding.lease is not None:
            leased[holding.stock.key] += 1
    backends = {
        stock.key: BackendSnapshot(
            warm=len(stock.warm),
            starting=stock.starting,
            leased=leased[stock.key],
            stopping=stopping[stock.key],
            waiting=waiting.get(stock.key, 0),
            breaker_open=stock.breaker.is_open,
            retry_after_s=stock.breaker.retry_after_s(now) if stock.breaker.is_open else 0.0,
        )
        for stock in stocks
    }
    return PoolSnapshot(
        warm=sum(backend.warm for backend in backends.values()),
        starting=sum(backend.starting for backend in backends.values()),
        leased=leased.total(),
        stopping=stopping.total(),
        waiting=sum(waiting.values()),
        backends=backends,
    )
