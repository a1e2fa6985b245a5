"""TenantGate: the limits of one tenant on this node, and what of them is used. One object per tenant with sessions."""

import time
from collections import Counter

from app.domain import Limits
from app.errors import QuotaExceeded, RateLimited
from app.limits.bucket import TokenBucket
from app.metrics import Metrics

Identity = tuple[str, str, str]
SESSION_RETRY_S = 5.0  # sessions end in minutes rather than milliseconds


class TenantGate:
    """Counts sessions and calls of one tenant, and refuses what is over its limits."""

    __slots__ = ("_bucket", "_limits", "_metrics", "_per_principal", "in_flight", "sessions")

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._metrics = metrics
        self._per_principal: Counter[Identity] = Counter()
        self.sessions = self.in_flight = 0
        self._bucket: TokenBucket | None = None
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """New limits for what comes from now on; nothing that runs is ended."""
        self._limits = limits
        rate, burst = limits.requests_per_second, limits.burst
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate, burst if burst is not None else rate, time.monotonic())
        else:
            self._bucket.configure(rate, burst if burst is not None else rate)

    def open_session(self, identity: Identity) -> None:
        """Counts a session; `close_session` gives it back.

        Raises:
            QuotaExceeded: the tenant, or this principal, has as many as it may have.
        """
        limits = self._limits
        if limits.sessions is not None and self.sessions >= limits.sessions:
            raise self._refusal("sessions", f"the tenant has {self.sessions} sessions open, its limit")
        mine = self._per_principal[identity]
        if limits.sessions_per_principal is not None and mine >= limits.sessions_per_principal:
            raise self._refusal("sessions_per_principal", f"this principal has {mine} sessions open, its limit")
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
            QuotaExceeded: as many are in flight as may be.
            RateLimited: they come too fast.
        """
        limit = self._limits.in_flight
        if limit is not None and self.in_flight >= limit:
            self._metrics.rate_limited.labels("in_flight").inc()
            raise QuotaExceeded("in_flight", f"the tenant has {limit} calls in flight, its limit")
        self.check_rate(now)
        self.in_flight += 1

    def end_call(self) -> None:
        """Undoes `begin_call`."""
        self.in_flight -= 1

    def check_rate(self, now: float) -> None:
        """Counts a message against the rate alone.

        Raises:
            RateLimited: they come too fast.
        """
        if self._bucket is None:
            return
        wait_s = self._bucket.take(now)
        if wait_s:
            self._metrics.rate_limited.labels("requests_per_second").inc()
            raise RateLimited("requests_per_second", "the tenant sends too many requests", retry_after_s=wait_s)

    def _refusal(self, limit: str, message: str) -> QuotaExceeded:
        self._metrics.rate_limited.labels(limit).inc()
        return QuotaExceeded(limit, message, retry_after_s=SESSION_RETRY_S)

    def __repr__(self) -> str:
        return f"<TenantGate [{self.sessions} sessions, {self.in_flight} calls]>"


class TenantGates:
    """The gates of the tenants that have sessions on this node."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._gates: dict[str, TenantGate] = {}

    def of(self, tenant: str, limits: Limits) -> TenantGate:
        """The tenant's gate, with these limits from now on."""
        gate = self._gates.get(tenant)
        if gate is None:
            gate = self._gates[tenant] = TenantGate(limits, self._metrics)
        else:
            gate.configure(limits)
        return gate

    def configure(self, tenant: str, limits: Limits) -> None:
        """New limits, if the tenant uses this node at all."""
        gate = self._gates.get(tenant)
        if gate is not None:
            gate.configure(limits)

    def drop_unused(self, tenant: str) -> None:
        """Forgets a gate that counts nothing any more; its bucket then starts full again."""
        gate = self._gates.get(tenant)
        if gate is not None and not gate.sessions:
            del self._gates[tenant]
