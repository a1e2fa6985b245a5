"""ProcessPool: hands each session a process of its own, and knows every backend that has one.

What to do is decided in plan.py and carried out here. Its parts: `inventory` counts, `waiting_callers` is the queue,
`pool_limits` compares with what may be, `plan_timer` says when to plan, `warm_pool` starts and stops, and
`early_deaths` keeps a broken backend from being started again and again.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import anyio

from app.backends import plan
from app.backends.backend_stock import BackendStock
from app.backends.early_deaths import EarlyDeaths
from app.backends.failures import FailureLog
from app.backends.inventory import Inventory, PoolSnapshot
from app.backends.lease import Lease
from app.backends.plan_timer import PlanTimer
from app.backends.pool_limits import PoolLimits, PoolOptions
from app.backends.waiting_callers import Waiter, WaitingCallers
from app.backends.warm_pool import WarmPool
from app.domain import BackendSpec, Limits
from app.errors import BackendNotFound, ShuttingDown
from app.metrics import Metrics
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor

__all__ = ["Lease", "PoolOptions", "ProcessPool"]

_NEVER_S = 3600.0  # nobody waits for so long

logger = logging.getLogger(__name__)


class ProcessPool:
    """Leases processes. Used as `async with ProcessPool(...)`, inside the supervisor's own block.

    All methods belong to the event loop's thread. A process of a shared backend is handed to `prepare` before
    it counts as warm; its lease carries what that returned.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        metrics: Metrics,
        options: PoolOptions | None = None,
        *,
        failures: FailureLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._supervisor = supervisor
        self._hits = metrics.warm_leases.labels("hit")
        self._misses = metrics.warm_leases.labels("miss")
        self._wait_seconds = metrics.pool_wait_seconds
        self.failures = failures or FailureLog("")
        self._clock = clock
        self._waiting = WaitingCallers()
        self._inventory = Inventory(clock)
        self._limits = PoolLimits(options or PoolOptions(), self._inventory, metrics)
        self._deaths = EarlyDeaths(self._waiting, self.failures, metrics, clock=clock, chance=chance)
        self._planning = PlanTimer(self._carry_out_plan, clock)
        self._warm = WarmPool(supervisor, self._inventory, self._deaths, self._planning.soon)
        self._is_closed = False
        # Ends so many idle sessions, if it can; in how many seconds there may be more to end. Waits for nothing.
        self.reclaim: Callable[[BackendSpec, int], float] = lambda spec, count: _NEVER_S

    def __repr__(self) -> str:
        now = self.snapshot()
        return f"<ProcessPool [{now.leased} leased, {now.warm} warm, {now.starting} starting, {now.waiting} waiting]>"

    async def __aenter__(self) -> Self:
        await self._warm.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
        await self._warm.__aexit__()  # here and not in aclose(), whose caller may be inside the block

    async def aclose(self) -> None:
        """Refuses who waits and begins to stop every process; the supervisor waits for their ends."""
        self._is_closed = True
        self._planning.close()
        for waiter in list(self._waiting):
            self._waiting.refuse(waiter, ShuttingDown())
        self._warm.close()

    # --- what it is told once

    @property
    def prepare(self) -> Callable[[BackendProcess], Awaitable[Any]] | None:
        """Makes a shared backend's process ready for its sessions."""
        return self._warm.prepare

    @prepare.setter
    def prepare(self, prepare: Callable[[BackendProcess], Awaitable[Any]]) -> None:
        self._warm.prepare = prepare

    # --- leases

    async def lease(self, spec: BackendSpec, limits: Limits) -> Lease:
        """A process that has served nobody. Returns without waiting when a warm one is there.

        Raises:
            BackendUnavailable: the backend dies again and again.
            BackendExited: the process could not be started.
            BackendBusy: too many callers wait, or this one waited too long.
            ShuttingDown: the pool is closed.
        """
        if self._is_closed:
            raise ShuttingDown
        stock = self._known(spec)
        if stock.warm and self._limits.tenant_has_room(spec.tenant, limits):
            self._hits.inc()
            self._wait_seconds.observe(0.0)
            return self._hand_out(stock, was_warm=True)
        self._deaths.refuse_one_more(stock)
        self._limits.refuse_one_more(len(self._waiting))
        self._misses.inc()
        waiter = Waiter(spec.tenant, stock, limits, self._clock(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._planning.soon()
        try:
            with anyio.fail_after(self._limits.options.deadline_s + _preparing_s(spec)):
                return await waiter.lease
        except BaseException as error:
            self._waiting.leave(waiter)
            self._planning.soon()
            if isinstance(error, TimeoutError):
                raise self._limits.waited_too_long(waiter) from None
            raise
        finally:
            self._wait_seconds.observe(self._clock() - waiter.since)

    def _hand_out(self, stock: BackendStock, *, was_warm: bool = False) -> Lease:
        process = stock.warm.popleft()
        process.lease()
        held = self._inventory.held[process]
        lease = held.lease = Lease(self, stock, process, held.prepared, was_warm=was_warm)
        self._inventory.used[stock.spec.tenant] += 1
        stock.refill_at = self._clock() + plan.REFILL_QUIET_S
        self._inventory.settle(stock)
        self._planning.at(stock.refill_at)
        return lease

    def on_handshake(self, lease: Lease) -> None:
        """A lease's handshake succeeded."""
        if self._deaths.works(lease):
            self._planning.soon()  # starts were held back until now

    def on_release(self, lease: Lease, reason: str) -> None:
        """A lease was given back."""
        logger.debug("lease released: %s", reason, extra={"backend_process": lease.link.id})
        lease.link.detach()
        self._supervisor.stop_soon(lease.link)
        if len(self._waiting):
            self._planning.soon()

    # --- backends

    def configure(self, spec: BackendSpec) -> None:
        """Tells of a new or changed backend: warm processes are started, those of another version stopped."""
        stock = self._inventory.stocks.get(spec.key)
        if stock is None:
            stock = self._inventory.stocks[spec.key] = BackendStock(spec, self._deaths.new_breaker())
        elif spec.version != stock.spec.version or stock.is_forgotten:
            self._warm.stop_all(stock)
            self._deaths.forget(stock)
            stock.spec, stock.is_forgotten, stock.is_filled, stock.reclaim_at = spec, False, False, 0.0
        self._inventory.settle(stock)
        self._planning.soon()

    def restart(self, key: plan.Key) -> None:
        """Stops the backend's warm processes, starts others, and forgets that it died. Leases go on."""
        stock = self._inventory.stocks.get(key)
        if stock is None or stock.is_forgotten:
            return
        self._warm.stop_all(stock)
        self._deaths.forget(stock)
        stock.is_filled = False
        self._inventory.settle(stock)
        self._planning.soon()

    def forget(self, key: plan.Key) -> None:
        """Tells of a deleted backend: its warm processes stop, who waits for one is refused. Leases go on."""
        stock = self._inventory.stocks.get(key)
        if stock is None:
            return
        stock.is_forgotten = True
        self._warm.stop_all(stock)
        self._deaths.forget(stock)
        self._waiting.refuse_all(stock, BackendNotFound)
        self._inventory.settle(stock)

    def _known(self, spec: BackendSpec) -> BackendStock:
        stock = self._inventory.stocks.get(spec.key)
        # An older version than the one we know comes from a caller who read it just before the change.
        if stock is None or stock.is_forgotten or spec.version > stock.spec.version:
            self.configure(spec)
            stock = self._inventory.stocks[spec.key]
        return stock

    # --- the plan

    def _carry_out_plan(self) -> None:
        waiters, stocks = list(self._waiting), self._inventory.stocks
        view = self._limits.view(waiters)
        for key in view.backends:
            retry_after_s = stocks[key].breaker.retry_after_s(view.now)
            if retry_after_s > 0:
                self._planning.at(view.now + retry_after_s)
        made = plan.make_plan(view)
        for action in made.actions:
            match action:
                case plan.HandOut(place):
                    self._serve(waiters[place])
                case plan.Start(key, is_refill):
                    self._warm.start_soon(stocks[key], is_refill=is_refill)
                case plan.Stop(key):
                    stock = stocks[key]
                    self._warm.stop_one(stock)
                    self._inventory.settle(stock)
                case plan.Reclaim(key, count):
                    self._reclaim(stocks[key], count, view.now)
        if made.look_again_at is not None:
            self._planning.at(made.look_again_at)

    def _serve(self, waiter: Waiter) -> None:
        if waiter.lease.done() or not waiter.stock.warm:
            return  # it has gone, or the process has died, since the queue was read
        self._waiting.serve(waiter)
        waiter.lease.set_result(self._hand_out(waiter.stock))

    def _reclaim(self, stock: BackendStock, count: int, now: float) -> None:
        """A shared process is not free because one of its sessions has ended."""
        if stock.spec.isolation == "shared":
            return
        if now >= stock.reclaim_at:
            stock.reclaim_at = now + self.reclaim(stock.spec, count)
        self._planning.at(stock.reclaim_at)

    # --- looking

    def spec_of(self, key: plan.Key) -> BackendSpec | None:
        """The version that new processes are started from; None where the backend is not known, or removed."""
        stock = self._inventory.stocks.get(key)
        return None if stock is None or stock.is_forgotten else stock.spec

    def backends(self) -> set[plan.Key]:
        """Those that are known here."""
        return set(self._inventory.stocks)

    def used(self) -> Mapping[str, int]:
        """Processes by tenant, without the warm ones."""
        return self._inventory.used

    def processes_of_node(self) -> tuple[int, int]:
        """How many there are, and may be."""
        return self._inventory.alive, self._limits.options.max_processes

    def waiting_of_node(self) -> tuple[int, int]:
        """How many callers wait, and may."""
        return len(self._waiting), self._limits.options.max_waiting

    def set_elsewhere(self, used: Mapping[str, int]) -> None:
        """So many processes the tenants have on other nodes: there may be more room than before, or less."""
        self._inventory.used_elsewhere = used
        if len(self._waiting):
            self._planning.soon()

    def used_of(self, tenant: str) -> int:
        """Processes of the tenant over all nodes, without the warm ones."""
        return self._inventory.used_of(tenant)

    def snapshot(self) -> PoolSnapshot:
        """The present numbers."""
        waiting = Counter(waiter.stock.key for waiter in self._waiting)
        return self._inventory.snapshot(waiting)


def _preparing_s(spec: BackendSpec) -> float:
    """How much longer a process may take until it is warm."""
    return spec.timeouts.initialize_s if spec.isolation == "shared" else 0.0
