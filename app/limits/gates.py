"""TenantGate: the limits of one tenant on this node, and what of them is used. One object per tenant with sessions.

Sessions over all nodes are counted by the route store, which decides after the gate has let one through: what is over
the limit on one node is so on all. Calls over all nodes are those here and those last known of elsewhere.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from app.domain import DEFAULT_TENANT, Limits
from app.errors import QuotaExceeded, RateLimited, SessionLimit, session_quota
from app.limits.bucket import TokenBucket
from app.limits.overload import Overload
from app.metrics import Metrics
from app.reached import Reached

Identity = tuple[str, str, str]
MAX_LINGERING = 64  # gates without sessions; above it those that count nothing are looked for


class TenantGate:
    """Counts sessions and calls of one tenant, and refuses what is over its limits."""

    __slots__ = (
        "_limits", "_metrics", "_overload", "_per_principal", "_tenant", "bucket", "in_flight", "in_flight_elsewhere",
        "sessions", "sessions_elsewhere",
    )  # fmt: skip

    def __init__(
        self, limits: Limits, metrics: Metrics, overload: Overload | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> None:
        self._metrics, self._overload, self._tenant = metrics, overload or Overload(metrics), tenant
        self._per_principal: Counter[Identity] = Counter()
        self.sessions = self.sessions_elsewhere = 0  # the latter to be shown: the store decides who is let in
        self.in_flight = self.in_flight_elsewhere = 0
        self.bucket: TokenBucket | None = None
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """New limits for what comes from now on; nothing that runs is ended."""
        self._limits = limits
        rate, burst = limits.requests_per_second, limits.burst
        if rate is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(rate, burst if burst is not None else rate, time.monotonic())
        else:
            self.bucket.configure(rate, burst if burst is not None else rate)

    @property
    def limits(self) -> Limits:
        """Those of the tenant, now."""
        return self._limits

    def open_session(self, identity: Identity) -> None:
        """Counts a session; `close_session` gives it back.

        Raises:
            QuotaExceeded: the tenant, or this principal, has as many as it may have.
        """
        limits = self._limits
        if limits.sessions is not None and self.sessions >= limits.sessions:
            raise self._refusal("sessions", limits.sessions, self.sessions)
        mine = self._per_principal[identity]
        if limits.sessions_per_principal is not None and mine >= limits.sessions_per_principal:
            raise self._refusal("sessions_per_principal", limits.sessions_per_principal, mine)
        self.sessions += 1
        self._per_principal[identity] += 1

    def close_session(self, identity: Identity) -> None:
        """Undoes `open_session`."""
        self.sessions -= 1
        self._per_principal[identity] -= 1
        if not self._per_principal[identity]:
            del self._per_principal[identity]

    def begin_call(self, now: float) -> None:
        """Counts a call; `end_call` gives its place back.

        Raises:
            Overloaded: the node takes no calls now.
            QuotaExceeded: as many are in flight as may be.
            RateLimited: they come too fast.
        """
        if self._overload.calls is not None:
            raise self._overload.refusal("call", self._overload.calls)
        limit = self._limits.in_flight
        if limit is not None and self.in_flight + self.in_flight_elsewhere >= limit:
            raise self._too_many_calls(limit)
        self.check_rate(now)
        self.in_flight += 1

    def require_room(self, messages: int, calls: int, now: float) -> None:
        """Looks whether `begin_call` and `check_rate` would let so many through at once; counts nothing.

        Raises:
            Overloaded, QuotaExceeded, RateLimited: as those.
        """
        if calls and self._overload.calls is not None:
            raise self._overload.refusal("call", self._overload.calls)
        limit = self._limits.in_flight
        if limit is not None and calls and self.in_flight + self.in_flight_elsewhere + calls > limit:
            raise self._too_many_calls(limit)
        wait_s = 0.0 if self.bucket is None else self.bucket.wait_for(messages, now)
        if wait_s:
            raise self._too_fast(wait_s)

    def end_call(self) -> None:
        """Undoes `begin_call`."""
        self.in_flight -= 1

    def check_rate(self, now: float) -> None:
        """Counts a message against the rate alone.

        Raises:
            RateLimited: they come too fast.
        """
        if self.bucket is None:
            return
        wait_s = self.bucket.take(now)
        if wait_s:
            raise self._too_fast(wait_s)

    def most_of_one(self, most: int) -> dict[Identity, int]:
        """The principals with the most sessions."""
        return dict(self._per_principal.most_common(most))

    def _refusal(self, limit: SessionLimit, allowed: int, used: int) -> QuotaExceeded:
        return session_quota(limit, self._tenant, allowed, used)  # counted where no room can be made

    def _too_many_calls(self, limit: int) -> QuotaExceeded:
        self._metrics.rate_limited.labels("in_flight").inc()
        used = self.in_flight + self.in_flight_elsewhere
        message = f"the tenant {self._tenant} has {used} calls in flight; its limit is {limit}"
        return QuotaExceeded("in_flight", message, reached=Reached.of_tenant("in_flight", self._tenant, limit, used))

    def _too_fast(self, wait_s: float) -> RateLimited:
        self._metrics.rate_limited.labels("requests_per_second").inc()
        rate, burst = self._limits.requests_per_second or 0.0, self._limits.burst
        at_once = "" if burst is None else f", {burst} at once"
        return RateLimited(
            "requests_per_second",
            f"the tenant {self._tenant} sends more than {rate:g} requests a second{at_once}",
            retry_after_s=wait_s,
            reached=Reached.of_tenant("requests_per_second", self._tenant, rate, None),
        )

    def __repr__(self) -> str:
        return f"<TenantGate [{self.sessions} sessions, {self.in_flight} calls]>"


class TenantGates:
    """The gates of the tenants that have sessions on this node."""

    def __init__(self, metrics: Metrics, overload: Overload | None = None, *, are_shared: bool = False) -> None:
        """With `are_shared` what is spent here is told to other nodes."""
        self._metrics, self._overload, self._are_shared = metrics, overload or Overload(metrics), are_shared
        self._gates: dict[str, TenantGate] = {}
        self._lingering: set[str] = set()
        self._in_flight_elsewhere: Mapping[str, int] = {}
        self._sessions_elsewhere: Mapping[str, int] = {}

    def of(self, tenant: str, limits: Limits) -> TenantGate:
        """The tenant's gate, with these limits from now on."""
        gate = self._gates.get(tenant)
        if gate is None:
            gate = self._gates[tenant] = TenantGate(limits, self._metrics, self._overload, tenant=tenant)
            gate.in_flight_elsewhere = self._in_flight_elsewhere.get(tenant, 0)
            gate.sessions_elsewhere = self._sessions_elsewhere.get(tenant, 0)
        else:
            gate.configure(limits)
        self._lingering.discard(tenant)
        return gate

    def find(self, tenant: str) -> TenantGate | None:
        """The gate of a tenant that uses this node."""
        return self._gates.get(tenant)

    def configure(self, tenant: str, limits: Limits) -> None:
        """New limits, if the tenant uses this node at all."""
        gate = self._gates.get(tenant)
        if gate is not None:
            gate.configure(limits)

    def drop_unused(self, tenant: str) -> None:
        """Forgets a gate that counts nothing any more. One whose bucket is not full yet stays a while: nobody gets a
        new burst by closing his sessions."""
        gate = self._gates.get(tenant)
        if gate is None or gate.sessions:
            return
        self._lingering.add(tenant)
        if len(self._lingering) > MAX_LINGERING or self._counts_nothing(gate, time.monotonic()):
            self.prune(time.monotonic())

    def prune(self, now: float) -> None:
        """Forgets every gate that counts nothing any more."""
        for tenant in [each for each in self._lingering if self._counts_nothing(self._gates[each], now)]:
            self._lingering.discard(tenant)
            del self._gates[tenant]

    def set_elsewhere(self, in_flight: Mapping[str, int], sessions: Mapping[str, int]) -> None:
        """So many calls are in flight on other nodes, and so many sessions open, by tenant."""
        self._in_flight_elsewhere, self._sessions_elsewhere = in_flight, sessions
        for tenant, gate in self._gates.items():
            gate.in_flight_elsewhere = in_flight.get(tenant, 0)
            gate.sessions_elsewhere = sessions.get(tenant, 0)

    def _counts_nothing(self, gate: TenantGate, now: float) -> bool:
        bucket = gate.bucket
        return bucket is None or (bucket.is_full(now) and not (self._are_shared and bucket.spent))

    def __iter__(self) -> Iterator[tuple[str, TenantGate]]:
        return iter(self._gates.items())
