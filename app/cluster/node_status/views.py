"""What runs, as values: sent between nodes, and shown by the REST API."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.backends.failures import BackendFailure
from app.backends.inventory import BackendSnapshot
from app.cluster.node_status.listing import NO_USE, Use, newest_first, position
from app.domain import public_id
from app.jail.sandbox.report import SandboxView
from app.telemetry.call_history.history import CallRecord
from app.telemetry.call_history.kept import CallFacts, KeptCall

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session. `id` is public: it names the session and gives no access. `use` is that of its process."""

    id: str
    tenant: str
    backend: str
    principal_tenant: str
    issuer: str
    subject: str
    transport: str
    state: str
    protocol_version: str
    opened_at: datetime
    age_s: float
    idle_s: float
    process: str | None
    node: str
    client_name: str | None = None
    client_version: str | None = None
    address: str | None = None
    use: Use = NO_USE

    def position(self, sort: str) -> str:
        return position(sort, self.id, self.opened_at.timestamp(), self.use.amounts(sort))


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A backend's process. `sessions` has the first MAX_NAMED public ids of those it serves.

    `sent_bytes` went to its stdin.
    """

    id: str
    tenant: str
    backend: str
    pid: int
    state: str
    started_at: datetime
    age_s: float
    sessions: tuple[str, ...]
    session_count: int
    stderr_lines: int
    node: str
    use: Use = NO_USE
    tier: str = "none"
    start: str = "exec"
    start_reason: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0

    def position(self, sort: str) -> str:
        return position(sort, self.id, self.started_at.timestamp(), self.use.amounts(sort))


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What one tenant runs on one node, or on all."""

    tenant: str
    sessions: int = 0
    processes: int = 0
    use: Use = NO_USE

    def position(self, sort: str) -> str:
        return position(sort, self.tenant, 0.0, self.use.amounts(sort))

    def __add__(self, other: "TenantUse") -> "TenantUse":
        sessions, processes = self.sessions + other.sessions, self.processes + other.processes
        return TenantUse(self.tenant, sessions, processes, self.use + other.use)


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
    """One call that is over."""

    id: str
    at: datetime
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
    """The load of one node, and where it runs."""

    node: str
    host: str
    pid: int
    loop_lag_s: float
    memory_used_bytes: int
    memory_limit_bytes: int
    descriptors_used: int
    descriptors_limit: int
    connections: int
    calls: int
    backends_resident_bytes: int
    backends_cpu_percent: float
    refuses: str | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node. `url` is where other nodes reach it; `problem`: why the node that was asked cannot work with it; `load`
    and `sandbox` are None if it does not answer."""

    id: str
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None = None
    url: str | None = None
    load: NodeLoad | None = None
    sandbox: SandboxView | None = None
