"""WarmPool: processes that have served nobody, from the order to start one until it is handed out or stopped.

Every process is warm for a moment, also one that a caller waits for. How many there should be is decided in plan.py.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self

import anyio
import anyio.abc

from app.backends import plan
from app.backends.backend_stock import BackendStock
from app.backends.early_deaths import EarlyDeaths
from app.backends.inventory import Inventory
from app.backends.lease import Held
from app.errors import BackendExited, GatewayError
from app.logs import current
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor

logger = logging.getLogger(__name__)


class WarmPool:
    """Used as `async with WarmPool(...)`, inside the supervisor's own block.

    Args:
        on_change: told whenever there is something to make a new plan from.
    """

    def __init__(
        self, supervisor: Supervisor, inventory: Inventory, deaths: EarlyDeaths, on_change: Callable[[], None]
    ) -> None:
        self._supervisor = supervisor
        self._inventory = inventory
        self._deaths = deaths
        self._on_change = on_change
        self._is_closed = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self.prepare: Callable[[BackendProcess], Awaitable[Any]] | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._tasks is not None:
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
        """Stops those of the backend, and those that are being started once they are there."""
        stock.generation += 1
        while stock.warm:
            self.stop_one(stock)

    # --- starting

    def start_soon(self, stock: BackendStock, *, is_refill: bool) -> None:
        """Starts one more. Does not wait for it."""
        assert self._tasks is not None
        stock.starting += 1
        stock.alive += 1
        self._inventory.starting += 1
        self._inventory.settle(stock)
        self._tasks.start_soon(self._start, stock, is_refill, name="start a backend")

    async def _start(self, stock: BackendStock, is_refill: bool) -> None:
        current.set(None)  # the process, and what it says, outlives the request that made it start
        spec, generation = stock.spec, stock.generation
        process = await self._spawn(stock)
        if process is not None:
            held = self._inventory.held[process] = Held(stock)
            is_ready = spec.isolation != "shared" or await self._prepare(process, held)
            stock.starting -= 1
            if not is_ready or self._is_closed or generation != stock.generation or stock.is_forgotten:
                self._supervisor.stop_soon(process)
            elif not process.is_stopping():
                stock.warm.append(process)
        if is_refill and stock.is_filled:
            stock.refill_at = self._inventory.clock() + plan.REFILL_SPACING_S
        self._inventory.settle(stock)
        self._on_change()

    async def _spawn(self, stock: BackendStock) -> BackendProcess | None:
        process: BackendProcess | None = None
        try:
            process = await self._supervisor.spawn(stock.spec, self._on_gone, self._on_exit)
        except BackendExited as error:
            self._deaths.not_started(stock, error)
        except GatewayError:
            logger.debug("start given up: the node is shutting down")
        except Exception:
            logger.exception("starting a backend failed", extra=stock.log_fields)
        finally:
            self._inventory.starting -= 1  # the node's place for a start: a backend's own handshake needs none
            if process is None:
                stock.starting -= 1
                stock.alive -= 1
        return process

    async def _prepare(self, process: BackendProcess, held: Held) -> bool:
        """Lets a shared backend's process be initialised; whether it can serve."""
        if self.prepare is None:
            return True
        try:
            held.prepared = await self.prepare(process)
        except GatewayError as error:
            self._deaths.not_prepared(process, held.stock, error)
            return False
        except Exception:
            logger.exception("preparing a backend's process failed", extra=held.stock.log_fields)
            return False
        return True

    # --- ends, of leased ones too

    def _on_exit(self, process: BackendProcess) -> None:
        self._deaths.ended(process, self._inventory.held[process].lease)

    def _on_gone(self, process: BackendProcess) -> None:
        held = self._inventory.gone(process)
        self._deaths.gone(process, held)
        self._inventory.settle(held.stock)
        self._on_change()
