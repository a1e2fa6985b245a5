"""LoopShares: a tenant's share of the event loop's time.

Whatever can be heavy for a tenant is cut into pieces of at most PIECE_S, and what each took is charged to the tenant.
Those that have used more than their share lately go one piece at a time, tenant by tenant, and after each the loop runs
for others at least as long. Nothing is refused for it but more waiting requests than MAX_WAITING.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from app.concurrency.loop_share import charged as steps_charged
from app.concurrency.loop_share import used_s
from app.errors import FIXED, LimitReached, RateLimited
from app.protocol.search.work import Work
from app.telemetry.metrics import Metrics

PIECE_S = 0.005
SHARE = 0.2  # of the loop's time, for good
BURST_S = 0.05  # more than that at once
MAX_DEBT_S = 0.25  # of a tenant: a second later it is within its share again
MAX_REST_S = 1.0  # after one piece, however long it was
MAX_TENANTS = 1000  # whose use is known; above, the one that used the loop longest ago is forgotten
MAX_WAITING = 256  # requests of a tenant; readers wait beside them, one for each process and upstream session

T = TypeVar("T")


class LoopUses:
    """How much time each tenant has used lately. Pure: the clock is passed in."""

    __slots__ = ("_debts", "over")

    def __init__(self) -> None:
        self._debts: dict[str, tuple[float, float]] = {}  # seconds used, and when that was; the latest is last
        self.over = set[str]()  # those that were over their share when they were looked at last

    def charge(self, tenant: str, seconds: float, now: float) -> bool:
        """Counts what the tenant has used just now. Returns whether it is more than its share."""
        debt = min(MAX_DEBT_S, self._debt(tenant, now) + seconds)
        self._debts.pop(tenant, None)
        if len(self._debts) >= MAX_TENANTS:
            forgotten = next(iter(self._debts))
            self.over.discard(forgotten)
            del self._debts[forgotten]
        self._debts[tenant] = debt, now
        if debt > BURST_S:
            self.over.add(tenant)
        return debt > BURST_S

    def is_over(self, tenant: str, now: float) -> bool:
        """Whether the tenant has used more than its share."""
        if self._debt(tenant, now) > BURST_S:
            return True
        self.over.discard(tenant)
        return False

    def _debt(self, tenant: str, now: float) -> float:
        debt, at = self._debts.get(tenant, (0.0, now))
        return max(0.0, debt - SHARE * (now - at))

    def __len__(self) -> int:
        return len(self._debts)


class LoopShares:
    """Of one node, for the event loop's thread only."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = used_s,
    ) -> None:
        self._uses, self._metrics, self._clock, self._used = LoopUses(), metrics, clock, used
        self.over = self._uses.over  # those that may be over their share: asked for each call
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant; the first has the next turn
        self._next: asyncio.Handle | None = None
        self._charged_s = 0.0  # to all tenants, ever
        self._others_until = 0.0  # until then the loop is for others than those that are over their share

    def charge(self, tenant: str, seconds: float) -> None:
        """Counts what this tenant made the loop do just now: the seconds are those of `used_s`."""
        now = self._clock()
        self._charged_s += seconds
        if self._uses.charge(tenant, seconds, now):
            self._others_until = min(now + MAX_REST_S, max(self._others_until, now) + seconds)

    def is_over(self, tenant: str) -> bool:
        """Whether the tenant has used more than its share lately."""
        return tenant in self.over and self._uses.is_over(tenant, self._clock())

    @contextmanager
    def measured(self, tenant: str) -> Iterator[None]:
        """Charges what is done inside, which awaits nothing."""
        began = self.uncharged()
        try:
            yield
        finally:
            self.charge(tenant, self.uncharged() - began)

    def uncharged(self) -> float:
        """A clock that leaves out what was charged: what measures work by it charges nothing of it twice."""
        return self._used() - self._charged_s

    async def charged(self, tenant: str, work: Coroutine[Any, Any, T]) -> T:
        """Awaits the work of a request, and charges each of its steps."""
        return await steps_charged(work, partial(self.charge, tenant), self.uncharged)

    async def turn(self, tenant: str) -> None:
        """Returns at once, without suspending, unless the tenant is over its share; else waits for its turn. Whatever
        was allowed before may no longer be afterwards."""
        if not self._uses.is_over(tenant, began := self._clock()):
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        if self._next is None:
            self._come_back(began)
        try:
            await place
        finally:
            self._leave(tenant, place)
            if self._metrics is not None:
                self._metrics.loop_share_waits.labels(self._metrics.tenant_labels.of((tenant, ""))[0]).inc(
                    self._clock() - began
                )

    async def enter(self, tenant: str) -> None:
        """A turn for a request that begins.

        Raises:
            RateLimited: too many of the tenant's wait already.
        """
        if self.waiting(tenant) < MAX_WAITING or not self.is_over(tenant):
            return await self.turn(tenant)
        words = f"{MAX_WAITING} requests of the tenant {tenant} wait for their turn on this node's event loop"
        reached = LimitReached("loop_share", "tenant", MAX_WAITING, self.waiting(tenant), FIXED)
        if self._metrics is not None:
            self._metrics.rate_limited.labels("loop_share").inc()
        raise RateLimited("loop_share", words, retry_after_s=1.0, reached=reached)

    async def in_pieces(self, tenant: str, work: Work[T]) -> T:
        """Does the work in pieces of PIECE_S, each in its turn, with room for others in between. Returns its result."""
        while True:
            await self.turn(tenant)
            with self.measured(tenant):
                ends = self._clock() + PIECE_S
                try:
                    while self._clock() < ends:
                        next(work)
                except StopIteration as done:
                    result: T = done.value
                    return result
            await asyncio.sleep(0)

    def waiting(self, tenant: str) -> int:
        """How many of the tenant wait."""
        return len(self._waiting.get(tenant, ()))

    def _come_back(self, now: float) -> None:
        """Looks again once the others had their time: at the earliest when those that are ready now have run."""
        loop, rest_s = asyncio.get_running_loop(), self._others_until - now
        self._next = loop.call_later(rest_s, self._give_turn) if rest_s > 0 else loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        """To one of the tenant that has waited longest since its last one."""
        self._next = None
        if not self._waiting:
            return
        now = self._clock()
        if now >= self._others_until:
            tenant = next(iter(self._waiting))
            places = self._waiting.pop(tenant)
            place = places.popleft()
            if not place.done():  # else it was cancelled, and its task has not run yet
                place.set_result(None)
            if places:
                self._waiting[tenant] = places  # behind the other tenants
        self._come_back(now)  # by then its task has done its piece, and was charged for it

    def _leave(self, tenant: str, place: asyncio.Future[None]) -> None:
        """Of one that was cancelled: those with a turn are no longer there."""
        places = self._waiting.get(tenant)
        if places is not None and place in places:
            places.remove(place)
            if not places:
                del self._waiting[tenant]
