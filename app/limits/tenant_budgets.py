"""TenantBudgets: what a tenant's processes may be: how many at once, and how many more, by their rate and their memory.

The rate is one for all nodes (`cluster.cluster_rates`), and so is the memory: that of this node and the last known of
the others (`cluster.cluster_use`).
"""

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from app.concurrency.event import Event
from app.domain import Limits
from app.errors import GatewayError, LimitReached, NotFound
from app.limits.bucket import TokenBucket
from app.telemetry.metrics import Metrics

MINUTE_S = 60.0
MEMORY_RETRY_S = 5.0  # memory comes free when a session ends
LOOK_UP_AGAIN_S = 1.0  # the database may be away
MAX_STARTS = 10_000  # of a tenant that are remembered, to be shown
MIB = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Resident memory of a tenant's processes in bytes, and that of the largest one."""

    total: int = 0
    largest: int = 0

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(self.total + other.total, max(self.largest, other.largest))


class Allowance(NamedTuple):
    """How many processes may be started now (None: any number), and if none, in how many seconds the next one may.
    Where that is infinite, `TenantBudgets.changed` tells when to ask again."""

    starts: int | None = None
    next_in_s: float = 0.0


NOTHING_YET = Allowance(0, math.inf)
NO_MEMORY = MemoryUse()


@dataclass(slots=True, eq=False)
class _Tenant:
    limits: Limits
    asked_at: float
    bucket: TokenBucket | None = None
    started_at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STARTS))
    is_held_back: bool = False

    def asked(self, now: float) -> None:
        self.asked_at = now

    def configure(self, limits: Limits, now: float) -> None:
        self.limits, most = limits, limits.spawns_per_minute
        if not most:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(most / MINUTE_S, most, now)
        else:
            self.bucket.configure(most / MINUTE_S, most)

    def by_rate(self, now: float) -> Allowance:
        if self.bucket is None:
            return NOTHING_YET if self.limits.spawns_per_minute == 0 else Allowance()
        return Allowance(max(0, int(self.bucket.level(now))), self.bucket.wait_for(1, now))

    def started(self, now: float) -> None:
        self.started_at.append(now)
        self.is_held_back = False
        if self.bucket is not None:
            self.bucket.take(now)

    def held_back(self) -> bool:
        """The rate lets none start; returns whether that is new since the last start."""
        was, self.is_held_back = self.is_held_back, True
        return not was

    def starts_since(self, when: float) -> int:
        while self.started_at and self.started_at[0] < when:
            self.started_at.popleft()
        return len(self.started_at)


class TenantBudgets:
    """What the pool asks before it starts a process. `run` is a task of the node.

    Limits are known from whoever asks for a process, and from changes; for the warm processes of a tenant that nobody
    has used yet they are looked up by `limits_of`. Without that, an unknown tenant has no limits.
    """

    def __init__(
        self,
        metrics: Metrics,
        limits_of: Callable[[str], Awaitable[Limits]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changed = Event[[]]()  # a tenant may start again that might not
        self.memory_changed = Event[[]]()  # what a tenant may use
        self._held_back = metrics.limits_hit.labels("spawns_per_minute")
        self._limits_of, self._clock = limits_of, clock
        self._tenants: dict[str, _Tenant] = {}
        self._own: Mapping[str, MemoryUse] = {}
        self._remote: Mapping[str, MemoryUse] = {}
        self._unknown: set[str] = set()
        self._in_hand: str | None = None  # whose limits are being looked up
        self._is_overtaken = False  # by a change: the answer may be older
        self._asked = anyio.Event()

    # --- limits

    def know(self, tenant: str, limits: Limits) -> None:
        """The tenant has these limits from now on; what it has started stays counted."""
        known, now = self._tenants.get(tenant), self._clock()
        self._is_overtaken = self._is_overtaken or tenant == self._in_hand
        if known is None:
            known = self._tenants[tenant] = _Tenant(limits, now)
        else:
            known.asked(now)
            if known.limits == limits:
                return
        known.configure(limits, now)
        self.changed.tell()
        self.memory_changed.tell()

    def processes_of(self, tenant: str) -> int | None:
        """How many it may use, on all nodes together."""
        known = self._tenants.get(tenant)
        return None if known is None else known.limits.processes

    def limits_may_have_changed(self, tenant: str | None = None) -> None:
        """Looks them up again, of one tenant or of all; until then they are as they were."""
        if self._limits_of is not None:
            self._unknown.update(self._tenants if tenant is None else {tenant} & self._tenants.keys())
            self._is_overtaken = self._is_overtaken or tenant in (None, self._in_hand)
            self._asked.set()

    async def run(self) -> None:
        """Looks up limits that are asked for."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            for tenant in list(self._unknown):
                await self._look_up(tenant)
            if self._unknown:
                await anyio.sleep(LOOK_UP_AGAIN_S)
                self._asked.set()

    async def _look_up(self, tenant: str) -> None:
        assert self._limits_of is not None
        self._in_hand, self._is_overtaken = tenant, False
        limits: Limits | None = None
        try:
            limits = await self._limits_of(tenant)
        except NotFound:  # it was removed
            pass
        except GatewayError:
            log.debug("Could not look up the limits of a tenant; will retry")
            return
        finally:
            self._in_hand = None
        if self._is_overtaken:
            return  # they are looked up again
        if limits is None:
            self._tenants.pop(tenant, None)
        else:
            self.know(tenant, limits)
        self._unknown.discard(tenant)

    # --- starts

    def allowance(self, tenant: str) -> Allowance:
        """What the tenant may start now."""
        known = self._tenants.get(tenant)
        if known is None:
            if self._limits_of is None:
                return Allowance()
            self._unknown.add(tenant)
            self._asked.set()
            return NOTHING_YET
        now = self._clock()
        known.asked(now)
        if self.is_over_memory(tenant):
            return NOTHING_YET
        allowed = known.by_rate(now)
        if allowed.starts == 0 and known.held_back():
            self._held_back.inc()
        return allowed

    def started(self, tenant: str) -> None:
        """Counts a start, successful or not."""
        known, now = self._tenants.get(tenant), self._clock()
        if known is not None:
            known.started(now)

    def starts_in_last_minute(self, tenant: str) -> int:
        """On this node."""
        known = self._tenants.get(tenant)
        return 0 if known is None else known.starts_since(self._clock() - MINUTE_S)

    def reached(self, tenant: str) -> tuple[LimitReached, float] | None:
        """The limit that holds the tenant's starts back, and when to try again."""
        known = self._tenants.get(tenant)
        if known is None:
            return None
        limits = known.limits
        if limits.memory_mb is not None and self.is_over_memory(tenant):
            used = round(self.memory_of(tenant).total / MIB)
            return LimitReached.of_tenant("memory_mb", tenant, limits.memory_mb, used), MEMORY_RETRY_S
        allowed, most = known.by_rate(self._clock()), limits.spawns_per_minute
        if most is not None and allowed.starts == 0:
            return LimitReached.of_tenant("spawns_per_minute", tenant, most, None), min(allowed.next_in_s, MINUTE_S)
        return None

    # --- memory

    def note_memory(self, own: Mapping[str, MemoryUse]) -> None:
        """Sets what each tenant uses on this node."""
        self._own = own
        self.prune(self._clock())
        self.changed.tell()

    def note_remote_memory(self, remote: Mapping[str, MemoryUse]) -> None:
        """Sets what each tenant uses on all other nodes."""
        if remote != self._remote:
            self._remote = remote
            self.changed.tell()

    def memory(self) -> Mapping[str, MemoryUse]:
        """What each tenant uses on this node."""
        return self._own

    def memory_of(self, tenant: str) -> MemoryUse:
        """On all nodes."""
        return self._own.get(tenant, NO_MEMORY) + self._remote.get(tenant, NO_MEMORY)

    def memory_mb_of(self, tenant: str) -> int | None:
        """What all its processes may use together."""
        known = self._tenants.get(tenant)
        return None if known is None else known.limits.memory_mb

    def memory_limit(self, tenant: str) -> int | None:
        """In bytes."""
        memory_mb = self.memory_mb_of(tenant)
        return None if memory_mb is None else memory_mb * MIB

    def is_over_memory(self, tenant: str) -> bool:
        """Whether the tenant has used up its memory, on all nodes together."""
        limit = self.memory_limit(tenant)
        return limit is not None and self.memory_of(tenant).total >= limit

    def has_too_much_memory(self, tenant: str) -> bool:
        """Whether something must end."""
        limit = self.memory_limit(tenant)
        return limit is not None and self.memory_of(tenant).total > limit

    def remote_memory_of(self, tenant: str) -> MemoryUse:
        """On all other nodes."""
        return self._remote.get(tenant, NO_MEMORY)

    def has_largest(self, tenant: str) -> bool:
        """Whether the tenant's largest process is on this node, not on another one."""
        return self._own.get(tenant, NO_MEMORY).largest >= self._remote.get(tenant, NO_MEMORY).largest

    # --- for cluster.cluster_rates

    def buckets(self) -> Iterator[tuple[str, TokenBucket]]:
        """By the name that they have on every node."""
        for tenant, known in self._tenants.items():
            if known.bucket is not None:
                yield f"{tenant}/spawns", known.bucket

    def prune(self, now: float) -> None:
        """Forgets tenants of which there is nothing to count, and for which nobody waits."""
        idle = [name for name in self._tenants.keys() - self._own.keys() if self._counts_nothing(name, now)]
        for name in idle:
            del self._tenants[name]

    def _counts_nothing(self, tenant: str, now: float) -> bool:
        known = self._tenants[tenant]
        if known.asked_at > now - MINUTE_S or known.starts_since(now - MINUTE_S):
            return False
        return known.bucket is None or known.bucket.is_full(now)
