"""Every process that the pool answers for, counted by backend, by tenant and over the node. Starts and ends nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app.backends import plan
from app.backends.backend_stock import BackendStock
from app.backends.lease import Held
from app.processes.process import BackendProcess


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


class Inventory:
    """What is counted here is changed by the pool's parts; who has changed a stock calls `settle`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.stocks: dict[plan.Key, BackendStock] = {}
        self.held: dict[BackendProcess, Held] = {}
        self.starting = 0
        self.used: Counter[str] = Counter()  # processes by tenant, without the warm ones
        self.unsettled: set[plan.Key] = set()  # their stock differs from the target
        self.used_elsewhere: Mapping[str, int] = {}  # processes by tenant, on other nodes

    @property
    def alive(self) -> int:
        """Processes of the node, those included that are being started and those that stop."""
        return len(self.held) + self.starting

    def used_of(self, tenant: str) -> int:
        """Processes of the tenant over all nodes, without the warm ones."""
        return self.used[tenant] + self.used_elsewhere.get(tenant, 0)

    def settle(self, stock: BackendStock) -> None:
        """Notes whether the stock needs attention, so that a plan looks at few backends."""
        if len(stock.warm) >= stock.warm_target:
            stock.is_filled = True
        if len(stock.warm) + stock.starting == stock.warm_target:
            self.unsettled.discard(stock.key)
        else:
            self.unsettled.add(stock.key)
        if stock.is_forgotten and not stock.alive:
            self.unsettled.discard(stock.key)
            self.stocks.pop(stock.key, None)

    def gone(self, process: BackendProcess) -> Held:
        """Takes out a process that has ended; what was known of it."""
        held = self.held.pop(process)
        held.stock.alive -= 1
        if held.lease is not None:
            held.lease.settle()
            tenant = held.stock.spec.tenant
            self.used[tenant] -= 1
            if not self.used[tenant]:
                del self.used[tenant]
        if process in held.stock.warm:
            held.stock.warm.remove(process)
        return held

    def snapshot(self, waiting: Mapping[plan.Key, int]) -> PoolSnapshot:
        """The present numbers; of who waits, those that are given."""
        return _snapshot(self.stocks.values(), self.held, waiting, self.clock())


def _snapshot(
    stocks: Iterable[BackendStock], held: Mapping[BackendProcess, Held], waiting: Mapping[plan.Key, int], now: float
) -> PoolSnapshot:
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
