"""Callers who wait for a process: their queue, the limits that hold them up, and the errors for those who got none."""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from app.backends import _plan as plan
from app.backends.inventory import BackendStock, Inventory, Lease
from app.errors import FIXED, BackendBusy, GatewayError, LimitReached
from app.limits.tenant_budgets import TenantBudgets
from app.telemetry.metrics import Metrics


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller who waits for a process of one backend, until then; setting `lease` ends the wait, with a
    TimeoutError when it has been long enough. `identity`: of the principal."""

    tenant: str
    stock: BackendStock
    since: float
    lease: asyncio.Future[Lease]
    identity: tuple[str, ...] | None = None
    until: float = -math.inf
    _timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float, now: float) -> None:
        """It waits for so long from now, or for longer. To be followed by `waited`."""
        if now + seconds > self.until:
            self.waited()
            self.until = now + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def waited(self) -> None:
        """The wait is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        if not self.lease.done():
            self.lease.set_exception(TimeoutError())

    @property
    def keeper(self) -> tuple[str, ...] | None:
        """Whose home its process must have; None if it makes no difference."""
        return self.stock.keeper(self.identity)


class WaitingCallers:
    """First come, first served inside a tenant; the tenants take turns.

    Iterates in the order of service. Do not remove while iterating.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Waiter]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Waiter]:
        rounds = zip_longest(*self._queues.values())
        return (waiter for each in rounds for waiter in each if waiter is not None)

    def of(self, key: plan.Key) -> list[Waiter]:
        """Who waits for a process of this backend."""
        return [waiter for waiter in self if waiter.stock.spec.key == key]

    def append(self, waiter: Waiter) -> None:
        self._queues.setdefault(waiter.tenant, deque()).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Removes a caller who was not served; does nothing if it is not there."""
        queue = self._queues.get(waiter.tenant, deque())
        if waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[waiter.tenant]

    def serve(self, waiter: Waiter) -> None:
        """Removes a caller who was served, and moves its tenant to the end of the round."""
        self.remove(waiter)
        if waiter.tenant in self._queues:
            self._queues.move_to_end(waiter.tenant)

    def refuse(self, waiter: Waiter, error: GatewayError) -> None:
        self.remove(waiter)
        if not waiter.lease.done():
            waiter.lease.set_exception(error)

    def refuse_next(self, stock: BackendStock, error: GatewayError) -> None:
        """Refuses the caller who would have got the backend's next process."""
        waiter = next((each for each in self if each.stock is stock), None)
        if waiter is not None:
            self.refuse(waiter, error)

    def refuse_all(
        self, stock: BackendStock, error: Callable[[], GatewayError], *, who_leave_before: float = math.inf
    ) -> None:
        """Refuses all callers of this backend whose patience ends before that, each with an exception of its own."""
        for waiter in list(self):
            if waiter.stock is stock and waiter.until < who_leave_before:
                self.refuse(waiter, error())

    def leave(self, waiter: Waiter) -> None:
        """Removes a caller who has gone. If it was served in this very moment, its process is given back."""
        self.remove(waiter)
        if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
            waiter.lease.result().release("caller_gone")


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The node's own limits."""

    max_processes: int = 200
    max_starting: int = 8  # more at once only compete for the processor
    max_waiting: int = 1000  # callers; the next one is refused
    deadline_s: float = 30.0  # how long a caller waits for a process
    warm_bytes: int = 1 << 30  # for the warm processes of backends with `warm: auto`


class PoolLimits:
    """Compares the inventory with the limits of tenants, backends and the node; makes the input of a plan."""

    def __init__(
        self,
        options: PoolOptions,
        inventory: Inventory,
        metrics: Metrics,
        budgets: TenantBudgets,
        is_busy: Callable[[], bool],
        room: Callable[[int, int, int], int],
    ) -> None:
        """`is_busy`, `room`: see ProcessPool."""
        self.options, self._is_busy, self._room = options, is_busy, room
        self._inventory, self._budgets = inventory, budgets
        self._rate_limited = metrics.rate_limited

    def refuse_one_more(self, waiting: int) -> None:
        """For a new caller, when this many wait already.

        Raises:
            BackendBusy: no more callers may wait.
        """
        if waiting >= self.options.max_waiting:
            self._rate_limited.labels("node_waiting").inc()
            reached = LimitReached("node_waiting", "node", self.options.max_waiting, waiting, FIXED)
            raise BackendBusy(f"{waiting} sessions wait for a process of this node, and no more may wait").at(reached)

    def refuse_for_rate(self, tenant: str, patience_s: float) -> None:
        """For a new caller, for whom no process is being started.

        Raises:
            BackendBusy: the tenant's rate lets none start for longer than the caller would wait.
        """
        starts_left, next_in_s = self._budgets.allowance(tenant)
        if starts_left == 0 and next_in_s > patience_s:
            held_back = self._budgets.reached(tenant)
            if held_back is not None and held_back[0].used is None:  # memory may come free at any time
                raise self._held_back(tenant, f"no process can be started within {patience_s:g} s", *held_back)

    def waited_too_long(self, stock: BackendStock) -> BackendBusy:
        """The error for a caller of the backend whose wait timed out; names the limit that was the cause."""
        waited = f"no process came free within {self.options.deadline_s:g} s"
        spec = stock.spec
        reached, held_back = self._reached_by(stock), self._budgets.reached(spec.tenant)
        if reached is None and held_back is not None:
            return self._held_back(spec.tenant, waited, *held_back)
        reached = reached or self._reached_on_node()
        if reached is None and self._inventory.alive >= self._most():
            return BackendBusy(f"{waited}: this node has few file descriptors left")
        if reached is None:
            return BackendBusy(f"{waited}: processes take long to start, or many are being started")
        self._rate_limited.labels(reached.name).inc()
        whose = {"tenant": f"the tenant {spec.tenant}", "backend": f"the backend {spec.name}"}
        has = f"{whose.get(reached.of, 'this node')} has {reached.used:g} processes"
        return BackendBusy(f"{waited}: {has}; its limit is {reached.allowed:g}").at(reached)

    def _held_back(self, tenant: str, waited: str, reached: LimitReached, again_after_s: float) -> BackendBusy:
        self._rate_limited.labels(reached.name).inc()
        if reached.used is None:
            cause = f"the tenant {tenant} starts processes too often; its limit is {reached.allowed:g} a minute"
        else:
            cause = f"the processes of the tenant {tenant} use {reached.used:g} MiB of memory"
            cause += f"; its limit is {reached.allowed:g}"
        return BackendBusy(f"{waited}: {cause}").at(reached).again_after(again_after_s)

    def _reached_by(self, stock: BackendStock) -> LimitReached | None:
        spec = stock.spec
        most, used = self._budgets.processes_of(spec.tenant), self._inventory.used_of(spec.tenant)
        if most is not None and used >= most:
            return LimitReached.of_tenant("processes", spec.tenant, most, used)
        if stock.alive >= spec.max_processes:
            return LimitReached.of_backend("max_processes", spec.key, spec.max_processes, stock.alive)
        return None

    def _reached_on_node(self) -> LimitReached | None:
        if self._inventory.alive >= self.options.max_processes:
            return LimitReached.of_node(
                "node_processes", "MAX_PROCESSES", self.options.max_processes, self._inventory.alive
            )
        return None

    def view(self, waiting: list[Waiter]) -> plan.View:
        inventory, now = self._inventory, self._inventory.clock()
        held = inventory.held.items() if waiting else ()
        stopping = [holding for process, holding in held if process.is_stopping()]
        of_tenants = Counter(each.stock.spec.tenant for each in stopping if each.lease is not None)
        of_backends = Counter(each.stock.spec.key for each in stopping)
        most = self._most()
        keys = self._concerned(waiting, most)
        backends = {key: inventory.stocks[key].numbers(now, of_backends[key]) for key in keys}
        is_refilled = any(each.warm_target for each in backends.values())
        return plan.View(
            now=now,
            node=plan.NodeNumbers(
                limit=most,
                alive=inventory.alive,
                starting=inventory.starting,
                stopping=len(stopping),
                max_starting=self.options.max_starting,
                is_busy=is_refilled and self._is_busy(),
                is_short=most < self.options.max_processes,
            ),
            tenants={tenant: self._numbers(tenant, of_tenants[tenant], now) for tenant in {key[0] for key in keys}},
            backends=backends,
            waiting=[each.stock.spec.key for each in waiting],
            unused=[each.stock.spec.tenant for each in inventory.unused()] if waiting else (),
        )

    def _numbers(self, tenant: str, stopping: int, now: float) -> plan.TenantNumbers:
        starts_left, next_in_s = self._budgets.allowance(tenant)
        most, used = self._budgets.processes_of(tenant), self._inventory.used_of(tenant)
        return plan.TenantNumbers(most, used, stopping, starts_left, now + next_in_s)

    def _most(self) -> int:
        """How many processes the node may have now."""
        alive, starting, used = self._inventory.alive, self._inventory.starting, self._inventory.used.total()
        return min(self.options.max_processes, alive + self._room(alive, starting, used))

    def _concerned(self, waiting: list[Waiter], most: int) -> set[plan.Key]:
        """The backends that a plan looks at: on a full node also those whose warm processes could make room."""
        keys = {each.stock.spec.key for each in waiting} | self._inventory.unsettled
        if waiting and self._inventory.alive >= most:
            keys.update(key for key, stock in self._inventory.stocks.items() if stock.warm)
        return keys
