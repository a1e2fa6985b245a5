"""The queue of callers who wait for a process."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from app.backends.inventory import BackendStock, Lease
from app.domain import Limits
from app.errors import GatewayError


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller who waits for a process of one backend, until then; setting `lease` ends the wait. `identity`: of the
    principal."""

    tenant: str
    stock: BackendStock
    limits: Limits
    since: float
    until: float
    lease: asyncio.Future[Lease]
    identity: tuple[str, ...] | None = None

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
