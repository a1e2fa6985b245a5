"""Callers who wait for a process: each is served, refused, or leaves. Tenants take turns, as in any `FairQueue`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.backends import plan
from app.backends.backend_stock import BackendStock
from app.backends.lease import Lease
from app.domain import Limits
from app.errors import GatewayError


@dataclass(slots=True, eq=False)
class Waiter(plan.Queued):
    """A caller of one backend; `lease` ends its waiting."""

    tenant: str
    stock: BackendStock
    limits: Limits
    since: float
    lease: asyncio.Future[Lease]


class WaitingCallers(plan.FairQueue[Waiter]):
    """All who wait on this node."""

    def refuse(self, waiter: Waiter, error: GatewayError) -> None:
        """Ends the waiting of one."""
        self.remove(waiter)
        if not waiter.lease.done():
            waiter.lease.set_exception(error)

    def refuse_next(self, stock: BackendStock, error: GatewayError) -> None:
        """Tells the caller who is next: the process would have been for him."""
        for waiter in self:
            if waiter.stock is stock:
                self.refuse(waiter, error)
                break

    def refuse_all(self, stock: BackendStock, error: Callable[[], GatewayError]) -> None:
        """Ends the waiting of all callers of this backend, each with an error of its own."""
        for waiter in list(self):
            if waiter.stock is stock:
                self.refuse(waiter, error())

    def leave(self, waiter: Waiter) -> None:
        """The caller is gone. It may have been served in this very moment."""
        self.remove(waiter)
        if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
            waiter.lease.result().release("caller_gone")
