"""TenantGate: the limits of one tenant on this node, and its use of them. One for each tenant with sessions.

Sessions over all nodes are limited by the route store, after the gate has admitted one. Calls over all nodes are those
of this node and the last known number of the others. A Tally counts what came of them, for a look every few seconds.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from app.domain import DEFAULT_TENANT, Limits, Rest
from app.errors import FIXED, LimitReached, QuotaExceeded, RateLimited, ResponseTooLarge, session_quota
from app.limits.bucket import TokenBucket
from app.limits.overload import Overload
from app.limits.unread_answers import MIB, UnreadAnswers
from app.protocol.commands import LargeResult
from app.telemetry.metrics import Metrics

# Upper bounds of the buckets in seconds, each a fourth of an octave: from 0.1 ms to 8.5 minutes. What is read from a
# bucket's middle is exact to 9 %.
BOUNDS = tuple(2.0 ** (quarter / 4) for quarter in range(-53, 37))
MAX_TENANTS = 200  # with a tally of their own; the others share one
MAX_REASONS = 30  # of one tally; they come from closed sets, so that this is never reached
OTHERS = "-"  # of the tally that they share: no tenant can have this name


class Taken(NamedTuple):
    """What was counted: calls by the number of their bucket, and failed calls and refusals by reason."""

    buckets: dict[int, int]
    errors: dict[str, int]


class Tally:
    """How many calls of one tenant ended, how long they took, and what was refused, since somebody looked last. One
    increment for each call."""

    __slots__ = ("_buckets", "_errors")

    def __init__(self) -> None:
        self._buckets, self._errors = defaultdict[int, int](int), dict[str, int]()

    def done(self, seconds: float, error_type: str) -> None:
        """A call has its outcome; the type is "" for a success."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        if error_type:
            self.refused(error_type)

    def refused(self, reason: str) -> None:
        """A request was refused, or a call failed."""
        if reason not in self._errors and len(self._errors) >= MAX_REASONS:
            reason = next(reversed(self._errors))
        self._errors[reason] = self._errors.get(reason, 0) + 1

    def take(self) -> Taken:
        """What was counted since the last time."""
        taken = Taken(self._buckets, self._errors)
        if taken.buckets:
            self._buckets = defaultdict(int)
        if taken.errors:
            self._errors = {}
        return taken


class Tallies:
    """Of the tenants that use this node. Whoever keeps a tally may use it for ever: a forgotten one counts nothing."""

    def __init__(self, most: int = MAX_TENANTS) -> None:
        self._most = most
        self._tallies = {OTHERS: Tally()}

    def of(self, tenant: str) -> Tally:
        """The tenant's tally; that of the others if there are too many."""
        found = self._tallies.get(tenant)
        if found is None:
            if len(self._tallies) > self._most:
                return self._tallies[OTHERS]
            found = self._tallies[tenant] = Tally()
        return found

    def has(self, tenant: str) -> bool:
        """Whether the tenant has one of its own."""
        return tenant in self._tallies

    def forget(self, tenant: str) -> None:
        """Makes room. Its gate must be gone: a new one asks for a new tally."""
        if tenant != OTHERS:
            self._tallies.pop(tenant, None)

    def __iter__(self) -> Iterator[tuple[str, Tally]]:
        return iter(list(self._tallies.items()))


Identity = tuple[str, str, str]
MAX_LINGERING = 64  # gates without sessions; if there are more, those that are no longer needed are removed


class TenantGate:
    """Counts sessions and calls of one tenant, and refuses what is over its limits."""

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        overload: Overload | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        tally: Tally | None = None,
        unread: UnreadAnswers | None = None,
    ) -> None:
        self.limits, self.tally = limits, tally or Tally()
        self._unread = unread or UnreadAnswers()
        self._metrics, self._overload, self._tenant = metrics, overload or Overload(metrics), tenant
        self._per_principal: Counter[Identity] = Counter()
        self.sessions = self.remote_sessions = 0  # the latter for display only: the store enforces the limit
        self.in_flight = self.remote_in_flight = 0
        self.replay_bytes = 0  # what its sessions keep for clients that resume
        self.steps = 0  # of recipes, which are in flight too
        self.begun = 0  # calls of the sessions that are open, since they were opened
        self.resting = Counter[Rest]()  # of the sessions
        self.bucket: TokenBucket | None = None
        self.configure(limits)

    def configure(self, limits: Limits) -> None:
        """Sets new limits. Sessions and calls over them are not ended."""
        self.limits = limits
        rate, burst = limits.requests_per_second, limits.burst
        if rate is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(rate, burst if burst is not None else rate, time.monotonic())
        else:
            self.bucket.configure(rate, burst if burst is not None else rate)

    def note_remote_use(self, in_flight: int, sessions: int) -> None:
        """Sets the numbers of calls and sessions on other nodes."""
        self.remote_in_flight, self.remote_sessions = in_flight, sessions

    def open_session(self, identity: Identity) -> None:
        """Counts a session until `close_session`.

        Raises:
            QuotaExceeded: the tenant, or this principal, has as many as it may have.
        """
        limits = self.limits  # the caller counts the refusal, if it cannot end an idle session instead
        if limits.sessions is not None and self.sessions >= limits.sessions:
            raise session_quota("sessions", self._tenant, limits.sessions, self.sessions)
        mine = self._per_principal[identity]
        if limits.sessions_per_principal is not None and mine >= limits.sessions_per_principal:
            raise session_quota("sessions_per_principal", self._tenant, limits.sessions_per_principal, mine)
        self.sessions += 1
        self._per_principal[identity] += 1

    def close_session(self, identity: Identity, begun: int = 0) -> None:
        """Undoes `open_session`, and forgets the calls that the session has begun."""
        self.sessions -= 1
        self.begun -= begun
        self._per_principal[identity] -= 1
        if not self._per_principal[identity]:
            del self._per_principal[identity]

    def may_rest(self, how: Rest) -> bool:
        """Whether one more session of the tenant may be parked, or frozen, on this node."""
        most = self.limits.parked_sessions if how == "parked" else self.limits.frozen_sessions
        return most is None or self.resting[how] < most

    def session_rests(self, how: Rest) -> None:
        """Counts a session as parked, or frozen, until `session_wakes`."""
        self.resting[how] += 1

    def session_wakes(self, how: Rest) -> None:
        """Undoes `session_rests`."""
        self.resting[how] -= 1

    def begin_call(self, now: float) -> None:
        """Counts a call until `end_call`.

        Raises:
            Overloaded: the node accepts no calls now.
            QuotaExceeded: too many are in flight.
            RateLimited: they come too fast.
        """
        if self._overload.calls is not None:
            raise self._overload.refusal("call", self._overload.calls)
        limit = self.limits.in_flight
        if limit is not None and self.in_flight + self.remote_in_flight >= limit:
            raise self._too_many_calls(limit)
        self.check_rate(now)
        self.in_flight += 1

    def require_room(self, messages: int, calls: int, now: float) -> None:
        """Checks whether `begin_call` and `check_rate` would admit so many at once; counts nothing.

        Raises:
            Overloaded, QuotaExceeded, RateLimited: as those.
        """
        if calls and self._overload.calls is not None:
            raise self._overload.refusal("call", self._overload.calls)
        limit = self.limits.in_flight
        if limit is not None and calls and self.in_flight + self.remote_in_flight + calls > limit:
            raise self._too_many_calls(limit)
        wait_s = 0.0 if self.bucket is None else self.bucket.wait_for(messages, now)
        if wait_s:
            raise self._too_fast(wait_s, messages)

    @property
    def calls(self) -> int:
        """Of clients, in flight."""
        return self.in_flight - self.steps

    def begin_step(self, now: float) -> None:
        """Counts a call that a recipe makes until `end_step`. Raises as `begin_call`."""
        self.begin_call(now)
        self.steps += 1

    def end_step(self) -> None:
        """Undoes `begin_step`."""
        self.end_call()
        self.steps -= 1

    def count_replay(self, size: int) -> None:
        """So many bytes more, or fewer, are kept for clients that resume."""
        self.replay_bytes += size

    def call_sent(self) -> None:
        """Counts a call of an open session in `begun`, until that is closed."""
        self.begun += 1

    def end_call(self) -> None:
        """Undoes `begin_call`."""
        self.in_flight -= 1

    def keep_unread(self, result: bytes, request_bytes: int) -> LargeResult:
        """Keeps the result of a call until its client has read it, or nobody refers to it any more.

        Raises:
            ResponseTooLarge: the tenant's clients have not read too many bytes yet.
        """
        kept = self._unread.keep(self._tenant, result, request_bytes)
        if kept is not None:
            return kept
        self._metrics.rate_limited.labels("unread_answers").inc()
        allowed, used = self._unread.allowed // MIB, self._unread.of(self._tenant) // MIB
        message = f"the answer has {len(result)} bytes, and {used} MiB of answers wait for clients that do not read"
        reached = LimitReached("unread_answers", "tenant", allowed, used, FIXED)
        raise ResponseTooLarge(
            message, hint="Have the clients read, or close the connections of those that do not."
        ).at(reached)

    def check_rate(self, now: float) -> None:
        """Counts a message against the rate only. Raises RateLimited: they come too fast."""
        if self.bucket is None:
            return
        wait_s = self.bucket.take(now)
        if wait_s:
            raise self._too_fast(wait_s)

    def most_of_one(self, most: int) -> dict[Identity, int]:
        """The principals with the most sessions."""
        return dict(self._per_principal.most_common(most))

    def _too_many_calls(self, limit: int) -> QuotaExceeded:
        self._metrics.rate_limited.labels("in_flight").inc()
        used = self.in_flight + self.remote_in_flight
        message = f"the tenant {self._tenant} has {used} calls in flight; its limit is {limit}"
        return QuotaExceeded(
            "in_flight", message, reached=LimitReached.of_tenant("in_flight", self._tenant, limit, used)
        )

    def _too_fast(self, wait_s: float, messages: int = 1) -> RateLimited:
        self._metrics.rate_limited.labels("requests_per_second").inc()
        rate, burst = self.limits.requests_per_second or 0.0, self.limits.burst
        at_once = "" if burst is None else f", {burst} at once"
        # A batch over the burst would not pass at any rate.
        name, allowed = ("requests_per_second", rate) if burst is None or messages <= burst else ("burst", burst)
        return RateLimited(
            "requests_per_second",
            f"the tenant {self._tenant} sends more than {rate:g} requests a second{at_once}",
            retry_after_s=wait_s,
            reached=LimitReached.of_tenant(name, self._tenant, allowed, None),
        )


class TenantGates:
    """The gates of the tenants that have sessions on this node. `are_shared`: other nodes share their rates."""

    def __init__(
        self,
        metrics: Metrics,
        overload: Overload | None = None,
        *,
        are_shared: bool = False,
        tallies: Tallies | None = None,
    ) -> None:
        self._metrics, self._overload, self._are_shared = metrics, overload or Overload(metrics), are_shared
        self._tallies, self.unread = tallies or Tallies(), UnreadAnswers()
        self._gates: dict[str, TenantGate] = {}
        self._lingering: set[str] = set()
        self._remote_in_flight: Mapping[str, int] = {}
        self._remote_sessions: Mapping[str, int] = {}

    def of(self, tenant: str, limits: Limits) -> TenantGate:
        """The tenant's gate, with these limits from now on."""
        gate = self._gates.get(tenant)
        if gate is None:
            tally = self._tallies.of(tenant)
            gate = TenantGate(limits, self._metrics, self._overload, tenant=tenant, tally=tally, unread=self.unread)
            self._gates[tenant] = gate
            self._note_remote_use(tenant, gate)
        else:
            gate.configure(limits)
        self._lingering.discard(tenant)
        return gate

    def find(self, tenant: str) -> TenantGate | None:
        return self._gates.get(tenant)

    def configure(self, tenant: str, limits: Limits) -> None:
        """Sets new limits, if the tenant has a gate on this node."""
        gate = self._gates.get(tenant)
        if gate is not None:
            gate.configure(limits)

    def drop_unused(self, tenant: str) -> None:
        """Removes a gate that is no longer needed. It stays until its bucket is full: closing all sessions must not
        earn a new burst."""
        gate = self._gates.get(tenant)
        if gate is None or gate.sessions:
            return
        self._lingering.add(tenant)
        if len(self._lingering) > MAX_LINGERING or self._counts_nothing(gate, time.monotonic()):
            self.prune(time.monotonic())

    def buckets(self) -> Iterator[tuple[str, TokenBucket]]:
        """For `cluster.cluster_rates`: by tenant."""
        for tenant, gate in self._gates.items():
            if gate.bucket is not None:
                yield tenant, gate.bucket

    def prune(self, now: float) -> None:
        """Removes the gates that are no longer needed."""
        for tenant in [each for each in self._lingering if self._counts_nothing(self._gates[each], now)]:
            self._lingering.discard(tenant)
            del self._gates[tenant]

    def note_remote_use(self, in_flight: Mapping[str, int], sessions: Mapping[str, int]) -> None:
        """Sets the numbers of calls and sessions on other nodes, by tenant."""
        self._remote_in_flight, self._remote_sessions = in_flight, sessions
        for tenant, gate in self._gates.items():
            self._note_remote_use(tenant, gate)

    def _note_remote_use(self, tenant: str, gate: TenantGate) -> None:
        gate.note_remote_use(self._remote_in_flight.get(tenant, 0), self._remote_sessions.get(tenant, 0))

    def _counts_nothing(self, gate: TenantGate, now: float) -> bool:
        bucket = gate.bucket
        return bucket is None or (bucket.is_full(now) and not (self._are_shared and bucket.spent))

    def __iter__(self) -> Iterator[tuple[str, TenantGate]]:
        return iter(self._gates.items())
