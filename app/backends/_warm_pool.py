"""WarmPool: processes that have served nobody, from the order to start one until it is handed out or stopped.

Every process is warm for a moment, also one that a caller waits for. How many there should be is decided in plan.py.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import anyio
import anyio.abc

from app.backends._backend_stock import BackendStock
from app.backends._early_deaths import EarlyDeaths
from app.backends._lease import Held
from app.backends.inventory import Inventory
from app.domain import BackendSpec
from app.errors import BackendExited, GatewayError
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.telemetry.logs import current

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
