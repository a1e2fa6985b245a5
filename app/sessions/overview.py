"""NodeOverview: this node's sessions and processes as values, for administrators. Always of one tenant."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.backends.pool import ProcessPool
from app.backends.process import BackendProcess
from app.backends.supervisor import Supervisor
from app.backends.trial import SUFFIX, Trial, try_backend
from app.domain import BackendSpec, Limits
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session

ENDED = "ended_by_administrator"


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session. `id` is public: it finds the session here, and opens nothing."""

    id: str
    backend: str
    issuer: str
    subject: str
    transport: str
    state: str
    protocol_version: str
    opened_at: datetime
    idle_s: float
    calls: int
    process: str | None
    node: str


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A backend's process. `sessions` are the public ids of those it serves: one, unless the backend is shared."""

    id: str
    backend: str
    pid: int
    state: str
    started_at: datetime
    age_s: float
    resident_bytes: int
    sessions: tuple[str, ...]
    stderr_lines: int
    node: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node in numbers. `problem`: why the node that was asked and this one do not work together."""

    id: str
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None = None


def public_id(session_id: str) -> str:
    """What a session is called where others than its owner can see it: its real id is half of a credential."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]


class NodeOverview:
    """Looks, ends and tries. Owns nothing. What all nodes have is gathered by AllNodes."""

    def __init__(
        self, node: str, version: str, registry: SessionRegistry, pool: ProcessPool, supervisor: Supervisor
    ) -> None:
        self._registry, self._pool, self._supervisor = registry, pool, supervisor
        self._id, self._version, self._started_at = node, version, datetime.now(UTC)

    def status(self) -> NodeStatus:
        """This node."""
        return NodeStatus(
            id=self._id,
            version=self._version,
            started_at=self._started_at,
            sessions=len(self._registry),
            processes=len(self._supervisor.processes),
            draining=self._registry.leaving or self._registry.draining,
        )

    def sessions(self, tenant: str) -> Sequence[SessionView]:
        """The tenant's sessions, by public id."""
        now = time.monotonic()
        found = [_session(each, now, self._id) for each in self._registry if each.spec.tenant == tenant]
        return sorted(found, key=lambda view: view.id)

    def end_session(self, tenant: str, session: str) -> bool:
        """Ends the tenant's session with this public id; whether there was one."""

        def is_meant(each: Session) -> bool:
            return each.spec.tenant == tenant and public_id(each.id) == session

        return self._registry.close_where(is_meant, ENDED) > 0

    def processes(self, tenant: str) -> Sequence[ProcessView]:
        """The tenant's processes, by id; one that is just being started has none yet and is left out."""
        sessions = defaultdict[str | None, list[str]](list)
        for session in self._registry:
            if session.spec.tenant == tenant:
                sessions[session.process].append(public_id(session.id))
        now = time.time()
        found = (each for each in self._supervisor.processes if each.spec.tenant == tenant and each.id)
        return sorted((_process(each, sessions[each.id], now, self._id) for each in found), key=lambda view: view.id)

    def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of the tenant's process; None if there is no such process."""
        for each in self._supervisor.processes:
            if each.spec.tenant == tenant and each.id == process:
                return each.stderr.last_lines(lines)
        return None

    async def check(self, spec: BackendSpec, limits: Limits) -> Trial:
        """See `try_backend`."""
        return await try_backend(self._pool, spec, limits)


def _session(session: Session, now: float, node: str) -> SessionView:
    age_s = now - session.opened_at
    return SessionView(
        id=public_id(session.id),
        backend=session.spec.name,
        issuer=session.principal.issuer,
        subject=session.principal.subject,
        transport=session.transport,
        state=session.state.value,
        protocol_version=session.version,
        opened_at=datetime.fromtimestamp(time.time() - age_s, UTC),
        idle_s=round(now - session.last_seen, 3),
        calls=session.exchange.in_flight,
        process=session.process,
        node=node,
    )


def _process(process: BackendProcess, sessions: Iterable[str], now: float, node: str) -> ProcessView:
    return ProcessView(
        id=process.id,
        backend=process.spec.name.removesuffix(SUFFIX),
        pid=process.pid,
        state=process.state.value,
        started_at=datetime.fromtimestamp(process.started_at, UTC),
        age_s=round(max(0.0, now - process.started_at), 3),
        resident_bytes=process.resident_bytes,
        sessions=tuple(sorted(sessions)),
        stderr_lines=process.stderr.line_count,
        node=node,
    )
