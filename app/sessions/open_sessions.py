"""OpenSessions: the sessions of this node, by id. Made before the pool, the routes and the failure log, which need
them. Only the registry adds and removes."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from app.backends.failures import Affected, FailureLog
from app.domain import BackendSpec, public_id
from app.processes.denials import SAID_BYTES, Denial, said_of
from app.processes.endings import at_limit, raising
from app.processes.process import BackendProcess
from app.protocol.commands import Answer, Call, Failed
from app.protocol.jsonrpc import METHOD_NOT_FOUND, code_of, string_of
from app.sessions.call_observers import Observed, printable
from app.sessions.endings import TAKEN_OVER
from app.sessions.session import Session, SessionState
from app.telemetry.metrics import method_label

log = logging.getLogger(__name__)


class OpenSessions:
    """`by_id` are those that requests find; the hidden ones finish their last calls, or are being handed over to
    another node."""

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self.hidden: dict[str, Session] = {}
        self._of_tenants: dict[str, dict[str, Session]] = {}
        self._watched: dict[tuple[str, str], Callable[[Session], None]] = {}
        self.draining = False

    def add(self, session: Session) -> None:
        self.by_id[session.id] = session
        self._of_tenants.setdefault(session.spec.tenant, {})[session.public_id] = session

    def watch(self, backend: tuple[str, str], told: Callable[[Session], None] | None) -> None:
        """`told` hears of each new session of this backend from now on; None: nobody does any more."""
        if told is None:
            del self._watched[backend]
        else:
            self._watched[backend] = told

    def announce(self, session: Session) -> None:
        """It is new on this node, and it is known when it was opened."""
        told = self._watched.get(session.spec.key)
        if told is not None:
            told(session)

    def hide(self, session: Session) -> None:
        """New requests do not find it, and wait until another node has it or it has ended; calls in flight go on, and
        can be cancelled."""
        if self.by_id.pop(session.id, None) is not None:
            self.hidden[session.id] = session

    def show(self, session: Session) -> None:
        """Requests find a hidden one again."""
        if self.hidden.get(session.id) is session and session.id not in self.by_id:
            self.by_id[session.id] = self.hidden.pop(session.id)

    def remove(self, session: Session) -> None:
        """One that was handed over may have come back before it has ended here: then there are two of this id."""
        tenant = session.spec.tenant
        of_tenant = self._of_tenants.get(tenant, {})
        for table, name in ((self.by_id, session.id), (self.hidden, session.id), (of_tenant, session.public_id)):
            if table.get(name) is session:
                del table[name]
        if not of_tenant:
            self._of_tenants.pop(tenant, None)

    def shown(self, tenant: str | None) -> Mapping[str, Session]:
        """Those of a tenant, or all, the hidden ones too, by their public ids."""
        if tenant is None:
            return {name: session for each in self._of_tenants.values() for name, session in each.items()}
        return self._of_tenants.get(tenant, {})

    def take_no_more(self) -> None:
        self.draining = True

    def lost(self, session_id: str) -> None:
        """Closes a session that another node owns now."""
        session = self.by_id.get(session_id) or self.hidden.get(session_id)
        if session is not None:
            session.close(TAKEN_OVER)

    def deliver_held(self) -> None:
        """The sessions are still ours after a standstill: they handle what their processes said meanwhile."""
        for session in self:
            try:
                session.deliver_held()
            except Exception:
                log.exception("Could not deliver held output of session %s; it is closed", public_id(session.id))
                session.close("internal_error")

    def calls_in_flight(self) -> int:
        """How many requests of clients wait for their answer."""
        return sum(session.exchange.in_flight for session in self)

    def users_of(self, spec: BackendSpec, process: str | None) -> Sequence[Affected]:
        """The sessions of this process; without one, those that wait for a process of this backend."""

        def is_meant(session: Session) -> bool:
            if process is not None:
                return session.connection.process == process
            return session.state is SessionState.CONNECTING and session.spec.key == spec.key

        return [_affected(session) for session in self if is_meant(session)]

    def __len__(self) -> int:
        return len(self.by_id) + len(self.hidden)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self.by_id.values(), *self.hidden.values()])


Find = Callable[[str], BackendProcess | None]


def note_timeout(failures: FailureLog, find: Find, session: Session, failed: Failed) -> None:
    """Notes in the failure log that a call had no answer in time; its caller is told at which limit the process is."""
    call = failed.call
    process, tool = _about(find, session, call)
    denials = () if process is None else process.denied(b"", time.monotonic())
    limit = "" if process is None else process.limit_reached(is_late=True)
    if limit:
        failed.error.advise(
            f"The backend is{at_limit(limit, session.spec).removeprefix(',')}. {raising(limit, session.spec)}"
        )
    failures.timed_out(
        session.spec,
        process,
        str(failed.error) + at_limit(limit, session.spec),
        method=call.method,
        tool=tool,
        affected=_affected(session),
        hint=raising(limit, session.spec),
    )
    if process is not None and denials:
        _log(process, call, tool, denials)


def note_failed(failures: FailureLog, find: Find, session: Observed, answer: Answer) -> None:
    """Notes in the failure log and in the log what was denied to a process whose call has failed."""
    call = answer.call
    process, tool = _about(find, session, call)
    if process is None or code_of(answer.response) == METHOD_NOT_FOUND:  # nothing was tried, and the next call may be
        return
    said = bytes(memoryview(answer.response.value)[:SAID_BYTES])
    if denials := process.denied(said, time.monotonic()):
        failures.denied(process, denials, method=call.method, tool=tool, affected=_affected(session))
        _log(process, call, tool, denials)


def _about(find: Find, session: Observed, call: Call) -> tuple[BackendProcess | None, str | None]:
    """The process that the call went to, and the tool."""
    named = session.connection.process
    tool = string_of(call.target) if call.method == "tools/call" else None
    return None if named is None else find(named), tool and printable(tool)


def _log(process: BackendProcess, call: Call, tool: str | None, denials: Sequence[Denial]) -> None:
    log.warning(
        "A call failed, and something was denied to its backend",
        extra={
            "method": method_label(call.method),
            "tool": tool,
            "backend": process.spec.name,
            "backend_tenant": process.spec.tenant,
            "backend_process": process.id,
            "denied": said_of(denials),
        },
    )


def _affected(session: Observed) -> Affected:
    principal = session.principal
    return Affected(public_id(session.id), principal.tenant, principal.issuer, principal.subject)
