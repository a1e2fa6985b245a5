"""WarmSizing: asks the estimates of backends with `warm: auto` again when somebody came, and when time has passed."""

from functools import partial

from app.backends._backend_stock import BackendStock
from app.backends._plan_timer import PlanTimer
from app.backends._warm_estimate import WHYS, Why
from app.backends.inventory import Inventory
from app.telemetry.metrics import Metrics

MEASURE_EVERY_S = 30.0  # which takes a look at all processes of the node


class WarmSizing:
    """`warm_bytes`: the memory that the warm processes of all these backends together may use. Each may have one even
    when others have used it up."""

    def __init__(self, inventory: Inventory, planning: PlanTimer, warm_bytes: int, metrics: Metrics) -> None:
        self._inventory, self._planning, self._warm_bytes = inventory, planning, warm_bytes
        self._due: dict[BackendStock, float] = {}
        self._sizes: dict[BackendStock, tuple[float, float]] = {}  # bytes of a process, and when to measure again
        for why in WHYS:
            metrics.warm_target.labels(why).set_function(partial(self._targets, why))

    def configured(self, stock: BackendStock) -> None:
        """The backend is new, was changed, or is no more."""
        if stock.is_forgotten or stock.estimates(self._inventory.clock()) is None:
            self._due.pop(stock, None)
            self._sizes.pop(stock, None)
        else:
            self._reconsider(stock)

    def arrived(self, stock: BackendStock, at: float) -> None:
        """Somebody has wanted a process of the backend at this time, and has got one that works."""
        if stock.demand is not None:
            stock.demand.arrived(at)
            self._reconsider(stock)

    def started(self, stock: BackendStock, seconds: float) -> None:
        """A process that nobody had started before took so long until it could be used."""
        if stock.demand is not None:
            stock.demand.started(seconds)

    def look(self) -> None:
        """Before each plan: time may have changed a target."""
        now = self._inventory.clock()
        for stock in [stock for stock, due in self._due.items() if due <= now]:
            self._reconsider(stock)
        if self._due:
            self._planning.at(min(self._due.values()))  # the timer may have been set for something earlier

    def _reconsider(self, stock: BackendStock) -> None:
        demand, now = stock.demand, self._inventory.clock()
        if demand is None:
            return
        size, fits, before = self._size_of(stock, now), float("inf"), demand.target
        if size:
            fits = max(0.0, self._warm_bytes - self._used_by_others(stock)) / size
        demand.reconsider(now, fit_memory=fits, max_processes=stock.spec.max_processes)
        self._due[stock] = due = demand.look_again_at()
        self._planning.at(due)
        if demand.target != before:
            self._inventory.settle(stock)
            self._planning.soon()

    def _size_of(self, stock: BackendStock, now: float) -> float:
        size, measure_at = self._sizes.get(stock, (0.0, now))
        if now >= measure_at:
            size = self._inventory.resident_bytes_of(stock) or size
            self._sizes[stock] = (size, now + MEASURE_EVERY_S)
        return size

    def _used_by_others(self, stock: BackendStock) -> float:
        """Bytes of the warm processes that the other backends are to have, as far as they have been measured."""
        return sum(size * other.warm_target for other, (size, _) in self._sizes.items() if other is not stock)

    def _targets(self, why: Why) -> float:
        return sum(stock.warm_target for stock in self._due if stock.demand is not None and stock.demand.why == why)
