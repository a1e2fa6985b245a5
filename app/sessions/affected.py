"""Whom a failure of a backend concerns, and calls that hang: what `backends.failures` is told by the sessions."""

from collections.abc import Callable, Iterable, Sequence

from app.backends.failures import Affected, FailureLog
from app.domain import BackendSpec, public_id
from app.processes.process import BackendProcess
from app.protocol.commands import Failed
from app.protocol.jsonrpc import string_of
from app.protocol.lifecycle import SessionState
from app.sessions.session import Session


def users_of(sessions: Iterable[Session], spec: BackendSpec, process: str | None) -> Sequence[Affected]:
    """The sessions that this process serves; without one, those that wait for a process of this backend."""

    def is_meant(session: Session) -> bool:
        if process is not None:
            return session.link.process == process
        return session.state is SessionState.CONNECTING and session.spec.key == spec.key

    return [_affected(session) for session in sessions if is_meant(session)]


def note_timeout(
    failures: FailureLog, find: Callable[[str], BackendProcess | None], session: Session, failed: Failed
) -> None:
    """A call of this session's had no answer in time."""
    process, call = session.link.process, failed.call
    failures.timed_out(
        session.spec,
        None if process is None else find(process),
        str(failed.error),
        method=call.method,
        tool=None if call.tool is None else _shown(string_of(call.tool)),
        affected=_affected(session),
    )


def _shown(name: str | None) -> str | None:
    """What a client has written, for a terminal."""
    return None if name is None else "".join(each if each.isprintable() else "?" for each in name)


def _affected(session: Session) -> Affected:
    principal = session.principal
    return Affected(public_id(session.id), principal.tenant, principal.issuer, principal.subject)
