"""ProcessPool: hands each session a process of its own, and knows every backend that has one.

What to do is decided in `plan` and carried out here. Its parts: `inventory` counts, `waiting_callers` is the queue and
knows the limits, `warm_pool` starts and stops, and `early_deaths` keeps a broken backend from being started again and
again.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Self

from app.backends import _plan as plan
from app.backends._breaker import Breaker
from app.backends._early_deaths import EarlyDeaths
from app.backends._waiting_callers import PoolLimits, PoolOptions, Waiter, WaitingCallers
from app.backends._warm_pool import PlanTimer, Prepare, WarmPool, WarmSizing
from app.backends.failures import FailureLog
from app.backends.inventory import BackendSnapshot, BackendStock, Inventory, Lease
from app.domain import BackendSpec, Limits
from app.errors import BackendBusy, BackendNotFound, GatewayError, ShuttingDown
from app.limits.tenant_budgets import TenantBudgets
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.telemetry.metrics import Metrics

__all__ = ["Lease", "PoolOptions", "ProcessPool"]

Waits = Callable[[BackendSpec], AbstractContextManager[Callable[[BackendProcess], None]]]

NO_LIMIT = 1 << 30
KEPT_S = 1.0  # for how long the place of a shared process is kept when nobody waits for it any more
_NEVER_S = 3600.0  # longer than any caller waits

logger = logging.getLogger(__name__)


class ProcessPool:
    """Leases processes. Used as `async with ProcessPool(...)`, inside the supervisor's own block.

    All methods belong to the event loop's thread.

    Args:
        budgets: what tenants may start.
        prepare: makes a shared backend's process ready before it counts as warm; `Lease.prepared` is its result.
        reclaim: ends up to so many idle sessions of a backend, without waiting; returns in how many seconds there may
            be more to end.
        waits: around the wait of each caller that finds no warm process, who tells which one it has got.
        is_busy: whether the node has so much to answer that warm processes should be started later.
        room: for how many more processes it has descriptors, beside those alive, of which so many are starting, and so
            many are used.
    """

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        supervisor: Supervisor,
        metrics: Metrics,
        options: PoolOptions | None = None,
        *,
        budgets: TenantBudgets,
        failures: FailureLog | None = None,
        prepare: Prepare | None = None,
        reclaim: Callable[[BackendSpec, int], float] = lambda spec, count: _NEVER_S,
        waits: Waits | None = None,
        is_busy: Callable[[], bool] = lambda: False,
        room: Callable[[int, int, int], int] = lambda alive, starting, used: NO_LIMIT,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._supervisor = supervisor
        self._hits = metrics.warm_leases.labels("hit")
        self._misses = metrics.warm_leases.labels("miss")
        self._wait_seconds = metrics.pool_wait_seconds
        self.failures = failures or FailureLog("")
        self._clock, self._waits = clock, waits
        self._waiting = WaitingCallers()
        self._inventory = Inventory(clock)
        self._limits = PoolLimits(options or PoolOptions(), self._inventory, metrics, budgets, is_busy, room)
        self._deaths = EarlyDeaths(self._waiting, self.failures, metrics, clock, partial(Breaker, chance))
        self._planning = PlanTimer(self._carry_out_plan, clock)
        self._sizing = WarmSizing(self._inventory, self._planning, self._limits.options.warm_bytes, metrics)
        self._warm = WarmPool(supervisor, self._inventory, self._deaths, self._planning.soon, prepare)
        self._reclaim_idle = reclaim
        self._is_closed = False
        self._budgets = budgets
        budgets.changed.listen(self._on_budgets)

    async def __aenter__(self) -> Self:
        await self._warm.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
        await self._warm.__aexit__()  # here and not in aclose(), whose caller may be inside the block

    async def aclose(self) -> None:
        """Refuses waiting callers and begins to stop every process; the supervisor waits for their ends."""
        self._is_closed = True
        self._planning.close()
        for waiter in list(self._waiting):
            self._waiting.refuse(waiter, ShuttingDown())
        self._warm.close()

    # --- leases

    async def lease(self, spec: BackendSpec, limits: Limits, identity: tuple[str, ...] | None = None) -> Lease:
        """Leases a process that has served nobody; does not wait if there is a warm one. `identity`: of the principal,
        whose home it has if the backend keeps one for each.

        Raises:
            BackendUnavailable: the backend keeps dying at its start.
            BackendExited: the process could not be started.
            BackendBusy: too many callers wait, or this one waited too long.
            ShuttingDown: the pool is closed.
        """
        if self._is_closed:
            raise ShuttingDown
        self._budgets.know(spec.tenant, limits)
        stock = self._known(spec)
        if stock.has_warm(stock.keeper(identity)) and self._inventory.has_room_for(spec.tenant, limits.processes):
            self._hits.inc()
            self._wait_seconds.observe(0.0)
            return self._hand_out(stock, stock.keeper(identity), self._clock(), was_warm=True)
        patience_s = self._limits.options.deadline_s
        if stock.breaker.limits_starts:
            self._deaths.refuse_one_more(stock, patience_s)
        self._limits.refuse_one_more(len(self._waiting))
        if not stock.starting:
            self._limits.refuse_for_rate(spec.tenant, patience_s)
        self._misses.inc()
        free: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        waiter = Waiter(spec.tenant, stock, self._clock(), free, identity)
        if self._waits is None:
            return await self._wait(waiter)
        with self._waits(spec) as got:
            lease = await self._wait(waiter)
            got(lease.connection)
            return lease

    async def _wait(self, waiter: Waiter) -> Lease:
        """Until it is the caller's turn. Raises as `lease`."""
        is_shared = waiter.stock.spec.isolation == "shared"
        self._waiting.append(waiter)
        self._planning.soon()
        try:
            waiter.wait(self._limits.options.deadline_s + (KEPT_S if is_shared else 0.0), waiter.since)
            return await waiter.lease
        except BaseException as error:
            self._waiting.leave(waiter)
            self._planning.soon()
            if not isinstance(error, TimeoutError):
                raise
            if is_shared:  # those who waited for it have each heard why
                raise BackendBusy("no process came free in time") from None
            raise self._in_vain(waiter.stock) from None
        finally:
            waiter.waited()
            self._wait_seconds.observe(self._clock() - waiter.since)

    def joined(self, key: plan.Key) -> float:
        """One more caller waits for the process of a shared backend that is leased for all of them: its place in the
        queue is kept. Returns the seconds after which `require_start` is to be called."""
        wait_s = self._limits.options.deadline_s
        for waiter in self._waiting.of(key):
            waiter.wait(wait_s + KEPT_S, self._clock())
        return wait_s

    def require_start(self, key: plan.Key) -> None:
        """Refuses such a caller whose wait is over, unless the process is being started by now.

        Raises:
            BackendUnavailable: the backend keeps dying at its start.
            BackendBusy: no process came free.
        """
        for waiter in self._waiting.of(key):
            most = self._budgets.processes_of(waiter.tenant)
            if not waiter.stock.starting or not self._inventory.has_room_for(waiter.tenant, most):
                raise self._in_vain(waiter.stock)
        self._stay_until_initialized(key)

    def _stay_until_initialized(self, key: plan.Key) -> None:
        """Before it is theirs, a shared process that is being started has to answer `initialize`."""
        stock = self._inventory.stocks.get(key)  # it may have been removed meanwhile
        if stock is not None and stock.spec.isolation == "shared":
            for waiter in self._waiting.of(key):
                waiter.wait(self._limits.options.deadline_s + stock.spec.timeouts.initialize_s, self._clock())

    def _in_vain(self, stock: BackendStock) -> GatewayError:
        return self._deaths.held_back(stock) or self._limits.waited_too_long(stock)

    def _hand_out(
        self, stock: BackendStock, keeper: tuple[str, ...] | None, asked_at: float, *, was_warm: bool = False
    ) -> Lease:
        process = stock.take(keeper)
        process.lease()
        held = self._inventory.held[process]
        lease = held.leased(
            Lease(
                stock, process, held.prepared, asked_at, was_warm, self._on_handshake, self._on_release, self._on_room
            )
        )
        self._inventory.used[stock.spec.tenant] += 1
        stock.handed_out(self._clock())
        self._inventory.settle(stock)
        if stock.spec.key in self._inventory.unsettled:
            self._planning.at(stock.refill_at)
        return lease

    def _on_handshake(self, lease: Lease) -> None:
        self._sizing.arrived(lease.stock, lease.asked_at)
        if not lease.was_warm:
            self._sizing.started(lease.stock, time.time() - lease.connection.started_at)
        if lease.stock.breaker.limits_starts and self._deaths.works(lease):
            self._planning.soon()  # starts were held back until now

    def _on_release(self, lease: Lease, reason: str) -> None:
        logger.debug("Backend process released: %s", reason, extra={"backend_process": lease.connection.id})
        lease.connection.detach()
        self._supervisor.stop_soon(lease.connection)
        self._on_room()

    def _on_room(self) -> None:
        if len(self._waiting):
            self._planning.soon()

    # --- backends

    def configure(self, spec: BackendSpec) -> None:
        """For a new or changed backend: starts warm processes, stops those of another version."""
        stock = self._inventory.stocks.get(spec.key)
        if stock is None:
            stock = self._inventory.stocks[spec.key] = BackendStock(spec, self._deaths.new_breaker())
        elif spec.edition != stock.spec.edition or stock.is_forgotten:
            self._start_anew(stock)
            stock.configured(spec)
        self._sizing.configured(stock)
        self._inventory.settle(stock)
        self._planning.soon()

    def restart(self, key: plan.Key) -> None:
        """Replaces the backend's warm processes and resets its breaker. Leases go on."""
        stock = self._inventory.stocks.get(key)
        if stock is None or stock.is_forgotten:
            return
        self._start_anew(stock)
        self._inventory.settle(stock)
        self._planning.soon()

    def end(self, process: BackendProcess, why: str) -> None:
        """Stops one process, leased or not; those whom it serves hear at once that it is gone, and `why`. A warm one is
        replaced, as after any other end."""
        held = self._inventory.held.get(process)
        if held is not None and process in held.stock.warm:
            held.stock.warm.remove(process)
            self._inventory.settle(held.stock)
        self._supervisor.stop_soon(process, why)
        self._planning.soon()

    def forget(self, key: plan.Key) -> None:
        """For a deleted backend: stops its warm processes and refuses its waiting callers. Leases go on."""
        stock = self._inventory.stocks.get(key)
        if stock is None:
            return
        stock.forgotten()
        self._sizing.configured(stock)
        self._start_anew(stock)
        self._waiting.refuse_all(stock, BackendNotFound)
        self._inventory.settle(stock)

    def _start_anew(self, stock: BackendStock) -> None:
        self._warm.stop_all(stock)
        self._deaths.forget(stock)

    def _known(self, spec: BackendSpec) -> BackendStock:
        stock = self._inventory.stocks.get(spec.key)
        # A caller with an older version read it just before the change.
        if stock is None or stock.is_forgotten or spec.edition > stock.spec.edition:
            self.configure(spec)
            stock = self._inventory.stocks[spec.key]
        return stock

    # --- the plan

    def _carry_out_plan(self) -> None:
        self._sizing.look()
        waiters, stocks = list(self._waiting), self._inventory.stocks
        view = self._limits.view(waiters)
        for key in view.backends:
            breaker = stocks[key].breaker
            if breaker.limits_starts and (retry_after_s := breaker.retry_after_s(view.now)) > 0:
                self._planning.at(view.now + retry_after_s)
        made = plan.make_plan(view)
        for action in made.actions:
            match action:
                case plan.HandOut(place):
                    self._serve(waiters[place])
                case plan.Start(key, is_refill):
                    self._budgets.started(key[0])
                    keepers = [each.keeper for each in waiters if each.stock is stocks[key]]
                    self._warm.start_soon(stocks[key], stocks[key].next_keeper(keepers), is_refill=is_refill)
                    self._stay_until_initialized(key)
                case plan.Stop(key):
                    stock = stocks[key]
                    self._warm.stop_one(stock)
                    self._inventory.settle(stock)
                case plan.EndUnused(tenant):
                    unused = self._inventory.unused()
                    next(each for each in unused if each.stock.spec.tenant == tenant).release("made_room")
                case plan.Reclaim(key, count):
                    self._reclaim(stocks[key], count, view.now)
        if made.look_again_at is not None:
            self._planning.at(made.look_again_at)

    def _on_budgets(self) -> None:
        if not self._is_closed and (len(self._waiting) or self._inventory.unsettled):
            self._planning.soon()

    def _serve(self, waiter: Waiter) -> None:
        if waiter.lease.done() or not waiter.stock.warm:
            return  # since the queue was read the caller has gone, or the process has died
        if not waiter.stock.has_warm(waiter.keeper):  # what is warm was started for somebody who has gone
            self._warm.stop_one(waiter.stock)
            self._planning.soon()
            return
        self._waiting.serve(waiter)
        waiter.lease.set_result(self._hand_out(waiter.stock, waiter.keeper, waiter.since))

    def _reclaim(self, stock: BackendStock, count: int, now: float) -> None:
        if stock.spec.isolation == "shared":
            return  # ending one session would not free a process
        if now >= stock.reclaim_at:
            stock.reclaimed(again_at=now + self._reclaim_idle(stock.spec, count))
        self._planning.at(stock.reclaim_at)

    # --- looking

    def spec_of(self, key: plan.Key) -> BackendSpec | None:
        """The version that new processes are started from; None if the backend is unknown or removed."""
        stock = self._inventory.stocks.get(key)
        return None if stock is None or stock.is_forgotten else stock.spec

    def backends(self) -> set[plan.Key]:
        return set(self._inventory.stocks)

    def used(self) -> Mapping[str, int]:
        """Processes by tenant, without the warm ones."""
        return self._inventory.used

    def processes_of_node(self) -> tuple[int, int]:
        """(How many there are, how many there may be)."""
        return self._inventory.alive, self._limits.options.max_processes

    def waiting_of_node(self) -> tuple[int, int]:
        """(How many callers wait, how many may wait)."""
        return len(self._waiting), self._limits.options.max_waiting

    def note_remote_use(self, used: Mapping[str, int]) -> None:
        """Sets how many processes each tenant has on other nodes."""
        self._inventory.remote_use_changed(used)
        self._on_room()

    def used_of(self, tenant: str) -> int:
        """Processes of the tenant on all nodes, without the warm ones."""
        return self._inventory.used_of(tenant)

    def waiting(self) -> Mapping[str, int]:
        """Callers who wait for a process, by tenant."""
        return Counter(waiter.tenant for waiter in self._waiting)

    def snapshot(self) -> dict[plan.Key, BackendSnapshot]:
        return self._inventory.snapshot(Counter(waiter.stock.spec.key for waiter in self._waiting))
