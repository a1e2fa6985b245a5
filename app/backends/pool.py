"""ProcessPool: hands each session a process of its own, keeps warm ones, and holds the limits.

What to do is decided in plan.py; this file counts, asks for a plan and carries it out.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import anyio
import anyio.abc

from app.backends import plan
from app.backends.backend_stock import BackendSnapshot, BackendStock, Held, Lease, PoolSnapshot, take_snapshot
from app.backends.breaker import Breaker
from app.backends.failures import FailureLog
from app.domain import BackendSpec, Limits
from app.errors import BackendBusy, BackendExited, BackendNotFound, BackendUnavailable, GatewayError, ShuttingDown
from app.logs import current
from app.metrics import Metrics
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.reached import FIXED, Reached

__all__ = ["BackendSnapshot", "Lease", "PoolOptions", "PoolSnapshot", "ProcessPool"]

_NEVER_S = 3600.0  # nobody waits for so long

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The node's own limits."""

    max_processes: int = 200
    max_starting: int = 8  # more at once only fight for the processor
    max_waiting: int = 1000  # callers; the next is refused
    deadline_s: float = 30.0  # how long a caller waits for a process


@dataclass(slots=True, eq=False)
class _Waiter(plan.Queued):
    tenant: str
    stock: BackendStock
    limits: Limits
    since: float
    lease: asyncio.Future[Lease]


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
        self._metrics = metrics
        self._hits = metrics.warm_leases.labels("hit")
        self._misses = metrics.warm_leases.labels("miss")
        self._options = options or PoolOptions()
        self.failures = failures or FailureLog("")
        self._clock = clock
        self._chance = chance
        self._stocks: dict[plan.Key, BackendStock] = {}
        self._held: dict[BackendProcess, Held] = {}
        self._starting = 0
        self._used: Counter[str] = Counter()  # processes by tenant, without the warm ones
        self._queue: plan.FairQueue[_Waiter] = plan.FairQueue()
        self._unsettled: set[plan.Key] = set()  # their stock differs from the target
        self._timer: asyncio.TimerHandle | None = None
        self._is_planning = False
        self._is_closed = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self.prepare: Callable[[BackendProcess], Awaitable[Any]] | None = None
        # Ends so many idle sessions, if it can; in how many seconds there may be more to end. Waits for nothing.
        self.reclaim: Callable[[BackendSpec, int], float] = lambda spec, count: _NEVER_S
        self.used_elsewhere: Callable[[str], int] = lambda tenant: 0  # processes of a tenant on other nodes

    def __repr__(self) -> str:
        now = self.snapshot()
        return f"<ProcessPool [{now.leased} leased, {now.warm} warm, {now.starting} starting, {now.waiting} waiting]>"

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()  # here and not in aclose(), whose caller may be inside the block
            await self._tasks.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Refuses who waits and begins to stop every process; the supervisor waits for their ends."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiter in list(self._queue):
            self._refuse(waiter, ShuttingDown())
        for process in list(self._held):
            self._supervisor.stop_soon(process)

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
        if stock.warm and self._tenant_has_room(spec.tenant, limits):
            self._hits.inc()
            self._metrics.pool_wait_seconds.observe(0.0)
            return self._hand_out(stock, was_warm=True)
        self._refuse_at_once(stock)
        self._misses.inc()
        waiter = _Waiter(spec.tenant, stock, limits, self._clock(), asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._plan_soon()
        try:
            with anyio.fail_after(self._options.deadline_s + _preparing_s(spec)):
                return await waiter.lease
        except BaseException as error:
            self._give_up(waiter)
            if isinstance(error, TimeoutError):
                raise self._busy(waiter) from None
            raise
        finally:
            self._metrics.pool_wait_seconds.observe(self._clock() - waiter.since)

    def _tenant_has_room(self, tenant: str, limits: Limits) -> bool:
        return limits.processes is None or self.used_of(tenant) < limits.processes

    def _refuse_at_once(self, stock: BackendStock) -> None:
        if stock.breaker.is_open and stock.allowance(self._clock()) == 0:
            raise self._unavailable(stock)
        if len(self._queue) >= self._options.max_waiting:
            used = len(self._queue)
            self._metrics.rate_limited.labels("node_waiting").inc()
            reached = Reached("node_waiting", "node", self._options.max_waiting, used, FIXED)
            raise BackendBusy(f"{used} sessions wait for a process of this node, as many as may").at(reached)

    def _busy(self, waiter: _Waiter) -> BackendBusy:
        """For who has waited too long: what has kept a process from him, as the plan looks at it."""
        waited = f"no process came free within {self._options.deadline_s:g} s"
        reached = self._reached(waiter)
        if reached is None:
            return BackendBusy(f"{waited}: they take long to start, or many are being started")
        self._metrics.rate_limited.labels(reached.name).inc()
        whose = {"tenant": f"the tenant {waiter.tenant}", "backend": f"the backend {waiter.stock.spec.name}"}
        has = f"{whose.get(reached.of, 'this node')} has {reached.used:g} processes"
        return BackendBusy(f"{waited}: {has}; its limit is {reached.allowed:g}").at(reached)

    def _reached(self, waiter: _Waiter) -> Reached | None:
        tenant, spec, most = waiter.tenant, waiter.stock.spec, waiter.limits.processes
        if most is not None and self.used_of(tenant) >= most:
            return Reached.of_tenant("processes", tenant, most, self.used_of(tenant))
        if waiter.stock.alive >= spec.max_processes:
            return Reached.of_backend("max_processes", spec.key, spec.max_processes, waiter.stock.alive)
        used = len(self._held) + self._starting
        if used >= self._options.max_processes:
            return Reached.of_node("node_processes", "MAX_PROCESSES", self._options.max_processes, used)
        return None

    def _unavailable(self, stock: BackendStock) -> BackendUnavailable:
        # While a trial is under way the delay has passed already: its outcome is known soon.
        retry_after_s = stock.breaker.retry_after_s(self._clock()) or 1.0
        return BackendUnavailable(retry_after_s=retry_after_s, stderr=stock.stderr)

    def _give_up(self, waiter: _Waiter) -> None:
        """The caller is gone. It may have been served in this very moment."""
        self._queue.remove(waiter)
        if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
            waiter.lease.result().release("caller_gone")
        self._plan_soon()

    def _refuse(self, waiter: _Waiter, error: GatewayError) -> None:
        self._queue.remove(waiter)
        if not waiter.lease.done():
            waiter.lease.set_exception(error)

    def _refuse_all(self, stock: BackendStock, error: Callable[[], GatewayError]) -> None:
        for waiter in list(self._queue):
            if waiter.stock is stock:
                self._refuse(waiter, error())

    def _hand_out(self, stock: BackendStock, *, was_warm: bool = False) -> Lease:
        process = stock.warm.popleft()
        process.lease()
        held = self._held[process]
        lease = held.lease = Lease(self, stock, process, held.prepared, was_warm=was_warm)
        self._used[stock.spec.tenant] += 1
        stock.refill_at = self._clock() + plan.REFILL_QUIET_S
        self._settle(stock)
        self._look_again_at(stock.refill_at)
        return lease

    def on_handshake(self, lease: Lease) -> None:
        """A lease's handshake succeeded."""
        stock = lease.stock
        if lease.link.spec.version != stock.spec.version or stock.allowance(self._clock()) is None:
            return
        if stock.breaker.succeeded():
            self._metrics.breaker_open.dec()
            logger.info("a backend works again", extra=_names(stock))
        self._plan_soon()  # starts were held back until now

    def on_release(self, lease: Lease, reason: str) -> None:
        """A lease was given back."""
        logger.debug("lease released: %s", reason, extra={"backend_process": lease.link.id})
        lease.link.detach()
        self._supervisor.stop_soon(lease.link)
        if len(self._queue):
            self._plan_soon()

    # --- backends

    def configure(self, spec: BackendSpec) -> None:
        """Tells of a new or changed backend: warm processes are started, those of another version stopped."""
        stock = self._stocks.get(spec.key)
        if stock is None:
            stock = self._stocks[spec.key] = BackendStock(spec, Breaker(self._chance))
        elif spec.version != stock.spec.version or stock.is_forgotten:
            self._stop_warm(stock)
            self._forget_breaker(stock)
            stock.spec, stock.is_forgotten, stock.is_filled, stock.reclaim_at = spec, False, False, 0.0
        self._settle(stock)
        self._plan_soon()

    def restart(self, key: plan.Key) -> None:
        """Stops the backend's warm processes, starts others, and forgets that it died. Leases go on."""
        stock = self._stocks.get(key)
        if stock is None or stock.is_forgotten:
            return
        self._stop_warm(stock)
        self._forget_breaker(stock)
        stock.is_filled = False
        self._settle(stock)
        self._plan_soon()

    def forget(self, key: plan.Key) -> None:
        """Tells of a deleted backend: its warm processes stop, who waits for one is refused. Leases go on."""
        stock = self._stocks.get(key)
        if stock is None:
            return
        stock.is_forgotten = True
        self._stop_warm(stock)
        self._forget_breaker(stock)
        self._refuse_all(stock, BackendNotFound)
        self._settle(stock)

    def _known(self, spec: BackendSpec) -> BackendStock:
        stock = self._stocks.get(spec.key)
        # An older version than the one we know comes from a caller who read it just before the change.
        if stock is None or stock.is_forgotten or spec.version > stock.spec.version:
            self.configure(spec)
            stock = self._stocks[spec.key]
        return stock

    def _stop_warm(self, stock: BackendStock) -> None:
        stock.generation += 1
        while stock.warm:
            self._supervisor.stop_soon(stock.warm.popleft())

    def _forget_breaker(self, stock: BackendStock) -> None:
        if stock.breaker.is_open:
            self._metrics.breaker_open.dec()
        stock.breaker = Breaker(self._chance)
        stock.stderr = ()

    def _settle(self, stock: BackendStock) -> None:
        """Notes whether the stock needs attention, so that a plan looks at few backends."""
        if len(stock.warm) >= stock.warm_target:
            stock.is_filled = True
        if len(stock.warm) + stock.starting == stock.warm_target:
            self._unsettled.discard(stock.key)
        else:
            self._unsettled.add(stock.key)
        if stock.is_forgotten and not stock.alive:
            self._unsettled.discard(stock.key)
            self._stocks.pop(stock.key, None)

    # --- planning

    def _plan_soon(self) -> None:
        """Once per turn of the loop, however much has happened in it."""
        if not self._is_planning and not self._is_closed:
            self._is_planning = True
            asyncio.get_running_loop().call_soon(self._carry_out_plan)

    def _carry_out_plan(self) -> None:
        self._is_planning = False
        if self._is_closed:
            return
        waiters = list(self._queue)
        now = self._clock()
        made = plan.make_plan(self._view(waiters, now))
        for action in made.actions:
            match action:
                case plan.HandOut(place):
                    self._serve(waiters[place])
                case plan.Start(key, is_refill):
                    self._start_soon(self._stocks[key], is_refill=is_refill)
                case plan.Stop(key):
                    stock = self._stocks[key]
                    self._supervisor.stop_soon(stock.warm.popleft())
                    self._settle(stock)
                case plan.Reclaim(key, count):
                    self._reclaim(self._stocks[key], count, now)
        if made.look_again_at is not None:
            self._look_again_at(made.look_again_at)

    def _reclaim(self, stock: BackendStock, count: int, now: float) -> None:
        """A shared process is not free because one of its sessions has ended."""
        if stock.spec.isolation == "shared":
            return
        if now >= stock.reclaim_at:
            stock.reclaim_at = now + self.reclaim(stock.spec, count)
        self._look_again_at(stock.reclaim_at)

    def _view(self, waiters: list[_Waiter], now: float) -> plan.View:
        keys = {waiter.stock.key for waiter in waiters} | self._unsettled
        if waiters and len(self._held) + self._starting >= self._options.max_processes:
            keys.update(key for key, stock in self._stocks.items() if stock.warm)
        stopping = [held for process, held in self._held.items() if process.is_stopping()] if waiters else []
        of_tenants = Counter(held.stock.spec.tenant for held in stopping if held.lease is not None)
        of_backends = Counter(held.stock.key for held in stopping)
        tenants = {
            w.tenant: plan.TenantNumbers(w.limits.processes, self.used_of(w.tenant), of_tenants[w.tenant])
            for w in waiters
        }
        for key in keys:
            retry_after_s = self._stocks[key].breaker.retry_after_s(now)
            if retry_after_s > 0:
                self._look_again_at(now + retry_after_s)
        return plan.View(
            now=now,
            node=plan.NodeNumbers(
                limit=self._options.max_processes,
                alive=len(self._held) + self._starting,
                starting=self._starting,
                stopping=len(stopping),
                max_starting=self._options.max_starting,
            ),
            tenants=tenants,
            backends={key: self._stocks[key].numbers(now, of_backends[key]) for key in keys},
            waiting=[waiter.stock.key for waiter in waiters],
        )

    def _look_again_at(self, at: float) -> None:
        """One timer for everything; one that rings too early only sets itself again."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, at - self._clock()) + 0.001
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._plan_soon()

    def _serve(self, waiter: _Waiter) -> None:
        if waiter.lease.done() or not waiter.stock.warm:
            return  # it has gone, or the process has died, since the queue was read
        self._queue.serve(waiter)
        waiter.lease.set_result(self._hand_out(waiter.stock))

    # --- starting

    def _start_soon(self, stock: BackendStock, *, is_refill: bool) -> None:
        assert self._tasks is not None
        stock.starting += 1
        stock.alive += 1
        self._starting += 1
        self._settle(stock)
        self._tasks.start_soon(self._start, stock, is_refill, name="start a backend")

    async def _start(self, stock: BackendStock, is_refill: bool) -> None:
        current.set(None)  # the process, and what it says, outlives the request that made it start
        process: BackendProcess | None = None
        spec, generation = stock.spec, stock.generation
        try:
            process = await self._supervisor.spawn(spec, self._on_gone, self._on_exit)
        except BackendExited as error:
            self._on_start_failed(stock, error)
        except GatewayError:
            logger.debug("start given up: the node is shutting down")
        except Exception:
            logger.exception("starting a backend failed", extra=_names(stock))
        finally:
            self._starting -= 1  # the node's place for a start is free before a backend's own handshake, if any
            if process is None:
                stock.starting -= 1
                stock.alive -= 1
        if process is not None:
            held = self._held[process] = Held(stock)
            is_ready = spec.isolation != "shared" or await self._prepare(process, held)
            stock.starting -= 1
            if not is_ready or self._is_closed or generation != stock.generation or stock.is_forgotten:
                self._supervisor.stop_soon(process)
            elif not process.is_stopping():
                stock.warm.append(process)
        if is_refill and stock.is_filled:
            stock.refill_at = self._clock() + plan.REFILL_SPACING_S
        self._settle(stock)
        self._plan_soon()

    async def _prepare(self, process: BackendProcess, held: Held) -> bool:
        """Lets a shared backend's process be initialised; whether it can serve."""
        if self.prepare is None:
            return True
        try:
            held.prepared = await self.prepare(process)
        except GatewayError as error:
            self._refuse_next(held.stock, error)
            if process.exit is None:  # else its end has been counted
                held.stock.stderr = (str(error),)
                self.failures.not_initialized(process, str(error))
                self._on_early_death(held.stock)
            return False
        except Exception:
            logger.exception("preparing a backend's process failed", extra=_names(held.stock))
            return False
        return True

    def _on_start_failed(self, stock: BackendStock, error: BackendExited) -> None:
        stock.stderr = (str(error),)
        self.failures.not_started(stock.spec, str(error))
        self._refuse_next(stock, error)
        self._on_early_death(stock)

    def _refuse_next(self, stock: BackendStock, error: GatewayError) -> None:
        """Tells the caller who is next: the process would have been for him."""
        for waiter in self._queue:
            if waiter.stock is stock:
                self._refuse(waiter, error)
                break

    # --- ends

    def _on_exit(self, process: BackendProcess) -> None:
        """Its sessions have not heard of it yet, so that it can be said which they are."""
        lease = self._held[process].lease
        self.failures.ended(process, before_handshake=lease is None or not lease.has_shaken_hands)

    def _on_gone(self, process: BackendProcess) -> None:
        held = self._held.pop(process)
        stock = held.stock
        stock.alive -= 1
        if held.lease is not None:
            held.lease.settle()
            tenant = stock.spec.tenant
            self._used[tenant] -= 1
            if not self._used[tenant]:
                del self._used[tenant]
        if process in stock.warm:
            stock.warm.remove(process)
        # Its session has heard of its end before, and may have given it back. One that was stopped is no early death.
        is_early = held.lease is None or not held.lease.has_shaken_hands
        is_current = process.spec.version == stock.spec.version and not stock.is_forgotten
        assert process.exit is not None
        if is_early and is_current and process.exit.reason in ("exited", "signaled", "killed"):
            stock.stderr = tuple(process.exit.stderr) or (process.exit.description,)
            self._on_early_death(stock)
        self._settle(stock)
        self._plan_soon()

    def _on_early_death(self, stock: BackendStock) -> None:
        if stock.breaker.died_early(self._clock()):
            self._metrics.breaker_open.inc()
            logger.error("a backend dies again and again; it is not started for a while", extra=_names(stock))
        if stock.breaker.is_open:
            self._refuse_all(stock, lambda: self._unavailable(stock))

    # --- looking

    def spec_of(self, key: plan.Key) -> BackendSpec | None:
        """The version that new processes are started from; None where the backend is not known, or removed."""
        stock = self._stocks.get(key)
        return None if stock is None or stock.is_forgotten else stock.spec

    def backends(self) -> set[plan.Key]:
        """Those that are known here."""
        return set(self._stocks)

    def used(self) -> Mapping[str, int]:
        """Processes by tenant, without the warm ones."""
        return self._used

    def processes_of_node(self) -> tuple[int, int]:
        """How many there are, and may be."""
        return len(self._held) + self._starting, self._options.max_processes

    def waiting_of_node(self) -> tuple[int, int]:
        """How many callers wait, and may."""
        return len(self._queue), self._options.max_waiting

    def look_again(self) -> None:
        """There may be more room than before, on other nodes."""
        if len(self._queue):
            self._plan_soon()

    def used_of(self, tenant: str) -> int:
        """Processes of the tenant over all nodes, without the warm ones."""
        return self._used[tenant] + self.used_elsewhere(tenant)

    def snapshot(self) -> PoolSnapshot:
        """The present numbers."""
        waiting = Counter(waiter.stock.key for waiter in self._queue)
        return take_snapshot(self._stocks.values(), self._held, waiting, self._clock())


def _preparing_s(spec: BackendSpec) -> float:
    """How much longer a process may take until it is warm."""
    return spec.timeouts.initialize_s if spec.isolation == "shared" else 0.0


def _names(stock: BackendStock) -> dict[str, object]:
    return {"backend": stock.spec.name, "backend_tenant": stock.spec.tenant}
