"""Every process that the pool answers for, counted by backend, by tenant and over the node. Starts and ends nothing."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.backends import _plan as plan
from app.backends._backend_stock import BackendStock, Held
from app.processes.process import BackendProcess


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
