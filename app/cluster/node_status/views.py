"""What runs, as values: sent between nodes, and shown by the REST API."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from app.backends.failures import BackendFailure
from app.backends.inventory import BackendSnapshot
from app.cluster.node_status.listing import NO_USE, Use, newest_first, position
from app.domain import public_id
from app.jail.sandbox.report import SandboxView
from app.limits.caller_limits import Allowance
from app.telemetry.call_history.history import CallRecord
from app.telemetry.call_history.kept import CallFacts, KeptCall

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session. Its use is that of its process, which the sessions of a shared backend have in common."""

    id: Annotated[str, "Derived from the id that the client sends, which is secret."]
    tenant: str
    backend: str
    principal_tenant: Annotated[str, "The tenant of the credential: this one, or `default`."]
    issuer: Annotated[str, "The issuer of the token; `key` for an API key."]
    subject: Annotated[str, "The subject of the token, or the id of the API key."]
    client_name: Annotated[str | None, "As the client says in `initialize`, cut to 80 characters."]
    client_version: str | None
    address: Annotated[
        str | None, "Of the client that opened it, see TRUSTED_PROXIES; null if another node has taken it over."
    ]
    transport: str
    state: Annotated[
        str,
        "`open`; `parked`, `frozen`: idle, without a process until its next message, or with one "
        "that stands still; or being opened.",
    ]
    protocol_version: str
    opened_at: datetime
    age_s: float
    idle_s: Annotated[float, "Since the client sent something last."]
    process: str | None
    node: str
    use: Use = NO_USE

    def position(self, sort: str) -> str:
        return position(sort, self.id, self.opened_at.timestamp(), self.use.amounts(sort))


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A backend's process. Memory and CPU time are measured every ten seconds or more often."""

    id: str
    tenant: str
    backend: str
    pid: Annotated[int, "In tiers 2 and 3 that of bwrap, which wraps the server and ends with it."]
    state: Annotated[
        str, "starting, warm, leased or stopping; frozen: leased, and it stands still while its session is idle."
    ]
    started_at: datetime
    age_s: float
    sessions: Annotated[
        tuple[str, ...], "The sessions it serves: one, unless the backend is shared; at most 100 are listed."
    ]
    session_count: int
    stderr_lines: Annotated[int, "How many are kept."]
    node: str
    use: Use = NO_USE
    tier: Annotated[str, "What confines it: none, base, kernel, namespaces or assisted."] = "none"
    start: Annotated[
        str, "`exec`; `fork`: of a template; `template`: it serves nobody, and others are forked from it."
    ] = "exec"
    start_reason: Annotated[str, "Why it was executed, although its backend's `start` is another."] = ""
    sent_bytes: Annotated[int, "Written for its stdin."] = 0
    received_bytes: Annotated[int, "Read from its stdout."] = 0
    denied: Annotated[int, "How often its sandbox or a limit denied it something, as far as it is known."] = 0

    def position(self, sort: str) -> str:
        return position(sort, self.id, self.started_at.timestamp(), self.use.amounts(sort))


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What a tenant uses on all nodes."""

    tenant: str
    sessions: int = 0
    processes: Annotated[int, "Including warm ones and those of a check."] = 0
    use: Use = NO_USE

    def position(self, sort: str) -> str:
        return position(sort, self.tenant, 0.0, self.use.amounts(sort))

    def __add__(self, other: "TenantUse") -> "TenantUse":
        sessions, processes = self.sessions + other.sessions, self.processes + other.processes
        return TenantUse(self.tenant, sessions, processes, self.use + other.use)


@dataclass(frozen=True, slots=True)
class CallerUse:
    """How often somebody has used what an entry of an `access` lists."""

    id: str
    issuer: Annotated[str, "The issuer of the token; `key` for an API key."]
    subject: Annotated[str, "The subject of the token, or the id of the API key."]
    place: Annotated[str, "Whose `access` it is, as `backends/db`."]
    entry: Annotated[str, "Whom the entry names, and what it lists."]
    minute: Annotated[int, "Calls in this minute."]
    per_minute: Annotated[int | None, "How many it may be. null: no limit."]
    day: Annotated[int, "Calls in this day of UTC."]
    per_day: Annotated[int | None, "How many it may be. null: no limit."]

    @classmethod
    def of(cls, allowance: Allowance, now: float) -> "CallerUse":
        entry, (_, issuer, subject) = allowance.entry, allowance.caller
        listed = ", ".join((*entry.tools, *entry.prompts, *entry.resources))
        words = f"{entry.who}: {listed[:200]}"
        minute, day, limits = allowance.minute.used(now), allowance.day.used(now), entry.limits
        per_minute, per_day = limits.requests_per_minute, limits.calls_per_day
        return cls(allowance.name, issuer, subject, allowance.place, words, minute, per_minute, day, per_day)

    def position(self, _sort: str) -> str:
        return f"{self.subject} {self.issuer} {self.place} {self.id}"

    def __or__(self, other: "CallerUse") -> "CallerUse":
        """What another node says of the same: it may have heard of more calls."""
        return replace(self, minute=max(self.minute, other.minute), day=max(self.day, other.day))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRunning(BackendSnapshot):
    """What one node runs of a backend. `failures`: the last ones, newest first."""

    name: str
    node: str
    failures: tuple[BackendFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class AddressUse:
    """An address from which a principal was authenticated at one node."""

    address: str
    requests: int
    first_at: datetime
    last_at: datetime
    node: str


@dataclass(frozen=True, slots=True)
class FailureView:
    """One failure of a backend."""

    tenant: str
    backend: str
    failure: BackendFailure

    def position(self, _sort: str) -> str:
        failure = self.failure
        which = public_id(f"{failure.node} {self.tenant} {self.backend} {failure.cause}")
        return newest_first(failure.at.timestamp(), which)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView(CallFacts):
    """A call that is over. What was sent and answered is not kept."""

    id: str
    at: Annotated[datetime, "When it was over."]
    duration_ms: float

    @classmethod
    def of(cls, call: CallRecord, node: str) -> "CallView":
        return cls.kept(KeptCall.of(call, node))

    @classmethod
    def kept(cls, call: KeptCall) -> "CallView":
        at = EPOCH + timedelta(microseconds=call.at_us)
        return cls(**call.facts(), id=f"{call.number:016x}", at=at, duration_ms=round(call.seconds * 1000, 3))

    def position(self, _sort: str) -> str:
        return newest_first(microseconds(self.at) / 1_000_000, self.id)


def place_of(call: CallRecord) -> str:
    """The position of its view."""
    return newest_first(call.at, f"{call.number:016x}")


def microseconds(at: datetime) -> int:
    """Since 1970."""
    return (at - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The current load of a node."""

    node: str
    host: str
    pid: int
    loop_lag_s: Annotated[float, "How late its event loop is."]
    memory_used_bytes: Annotated[int, "Of its container or machine as a whole."]
    memory_limit_bytes: int
    descriptors_used: int
    descriptors_limit: int
    connections: Annotated[int, "Of clients."]
    calls: Annotated[int, "In flight."]
    backends_resident_bytes: int
    backends_cpu_percent: Annotated[float, "Over the last seconds; 100 is one core."]
    refuses: Annotated[str | None, "What it refuses because of overload, and why."]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One gateway process. `problem`: why the answering node does not forward requests to it."""

    id: str
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None = None
    url: Annotated[str | None, "Its URL for other nodes (NODE_URL); null for a single node."] = None
    load: Annotated[NodeLoad | None, "null: it did not answer within a second."] = None
    sandbox: Annotated[SandboxView | None, "What it can confine its backends with; null likewise."] = None
