"""WarmPool: processes that have served nobody, from the order to start one until it is handed out or stopped.

Every process is warm for a moment, also one that a caller waits for. How many there should be is decided in
`_plan`, when PlanTimer says.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import anyio
import anyio.abc

from app.backends._early_deaths import EarlyDeaths
from app.backends._warm_estimate import WHYS, Why
from app.backends.inventory import BackendStock, Held, Inventory
from app.domain import BackendSpec
from app.errors import BackendExited, GatewayError
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.telemetry.logs import current
from app.telemetry.metrics import Metrics

Prepare = Callable[[BackendProcess], Awaitable[Any]]

_UNEXPECTED = "an unexpected error of the gateway; this node's log has the details"

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class WarmPool:
    """Used as `async with WarmPool(...)`, inside the supervisor's own block.

    Args:
        _on_change: called whenever a new plan should be made.
        _prepare: makes the process of a shared backend ready for its sessions.
    """

    _supervisor: Supervisor
    _inventory: Inventory
    _deaths: EarlyDeaths
    _on_change: Callable[[], None]
    _prepare: Prepare | None
    _tasks: anyio.abc.TaskGroup = field(default_factory=anyio.create_task_group)
    _is_closed: bool = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def close(self) -> None:
        """Begins to stop every process, leased ones too; one that is being started stops as soon as it is there."""
        self._is_closed = True
        for process in list(self._inventory.held):
            self._supervisor.stop_soon(process)

    # --- stopping

    def stop_one(self, stock: BackendStock) -> None:
        """Stops the process that has been warm for the longest time."""
        self._supervisor.stop_soon(stock.warm.popleft())

    def stop_all(self, stock: BackendStock) -> None:
        """Stops the backend's warm processes, those that are being started as soon as they are there, its template."""
        stock.outdated()
        self._supervisor.forking.forget(stock.spec.key)
        while stock.warm:
            self.stop_one(stock)

    # --- starting

    def start_soon(self, stock: BackendStock, keeper: tuple[str, ...] | None, *, is_refill: bool) -> None:
        """Starts one process, with this principal's home; does not wait for it."""
        self._inventory.start_begun(stock)
        stock.start_begun_for(keeper)
        self._tasks.start_soon(self._start, stock, keeper, is_refill, name="start a backend")

    async def _start(self, stock: BackendStock, keeper: tuple[str, ...] | None, is_refill: bool) -> None:
        current.set(None)  # log lines about the process must not carry the request that made it start
        spec, generation = stock.spec, stock.generation
        process = await self._spawn(stock, spec if keeper is None else replace(spec, keeper=keeper))
        if process is not None:
            is_ready = spec.isolation != "shared" or await self._is_prepared(process, self._inventory.held[process])
            stock.start_ended()
            if not is_ready or self._is_closed or generation != stock.generation or stock.is_forgotten:
                self._supervisor.stop_soon(process)
            elif not process.is_stopping():
                stock.warm.append(process)
        stock.start_over_for(keeper)
        if is_refill:
            stock.refilled(self._inventory.clock())
        self._inventory.settle(stock)
        self._on_change()

    async def _spawn(self, stock: BackendStock, spec: BackendSpec) -> BackendProcess | None:
        process: BackendProcess | None = None
        try:
            process = await self._supervisor.spawn(spec, self._on_gone, self._on_exit)
        except BackendExited as error:
            self._deaths.not_started(stock, error)
        except GatewayError:
            logger.debug("Backend process not started: the node is shutting down")
        except Exception:
            logger.exception("Could not start a backend process", extra=stock.log_fields)
            self._deaths.not_started(stock, BackendExited(_UNEXPECTED, started=False))
        finally:
            self._inventory.start_ended(stock, process)
        return process

    async def _is_prepared(self, process: BackendProcess, held: Held) -> bool:
        """Initialises the process of a shared backend; returns whether it can serve."""
        if self._prepare is None:
            return True
        try:
            held.became_ready(await self._prepare(process))
        except GatewayError as error:
            self._deaths.not_prepared(process, held.stock, error)
            return False
        except Exception:
            logger.exception("Could not initialise the process of a shared backend", extra=held.stock.log_fields)
            self._deaths.not_prepared(process, held.stock, BackendExited(_UNEXPECTED))
            return False
        return True

    # --- ends, of leased processes too

    def _on_exit(self, process: BackendProcess) -> None:
        self._deaths.ended(process, self._inventory.held[process])

    def _on_gone(self, process: BackendProcess) -> None:
        held = self._inventory.gone(process)
        self._deaths.gone(process, held)
        self._inventory.settle(held.stock)
        self._on_change()


class PlanTimer:
    """Calls `make_plan` from the event loop, never from inside the call that asks for it."""

    def __init__(self, make_plan: Callable[[], None], clock: Callable[[], float]) -> None:
        self._make_plan, self._clock = make_plan, clock
        self._handle: asyncio.Handle | None = None
        self._due_at = math.inf  # when it is due; uvloop's handle cannot say that if this is at once
        self._is_due = False
        self._is_closed = False

    def soon(self) -> None:
        """Plans once in the next turn of the loop, however often this is called."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def at(self, when: float) -> None:
        """Plans at this time of the clock. There is one timer, for the earliest; each plan sets it anew."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, when - self._clock()) + 0.001
        if self._due_at <= due:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._due_at = loop.call_at(due, self._on_timer), due

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _on_timer(self) -> None:
        self._handle, self._due_at = None, math.inf
        self.soon()

    def _run(self) -> None:
        self._is_due = False
        if not self._is_closed:
            self._make_plan()


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
