"""restart: ends one process, so that another takes its place, and says what becomes of its sessions."""

from dataclasses import dataclass
from typing import Annotated

from app.backends.pool import ProcessPool
from app.processes.supervisor import Supervisor
from app.sessions.endings import PROCESS_RESTARTED
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session

_WHY = "an administrator has restarted its process"


@dataclass(frozen=True, slots=True)
class Restarted:
    """What has become of the process and of its sessions."""

    process: str
    backend: str
    node: str
    was: Annotated[str, "Its state before; `template`: it served nobody, and others were forked from it."]
    sessions_ended: Annotated[int, "Of a backend with `recovery: end`: their clients open new ones."]
    sessions_going_on: Annotated[
        int,
        "With `recovery: respawn`: they get another process. Calls under way fail, and are not run again.",
    ]


def restart(
    node: str, registry: SessionRegistry, pool: ProcessPool, supervisor: Supervisor, tenant: str, process: str
) -> Restarted | None:
    """Ends the tenant's process with this id; None if there is none. Does not wait.

    Sessions whose backend has `recovery: respawn` get another process: their calls that are under way fail, and later
    ones wait for it. Others end.
    """
    found = supervisor.find(process)
    if not process or found is None or found.spec.tenant != tenant:
        return None
    was = "template" if found.is_template else found.state.value
    sessions = sum(each.connection.process == process for each in registry)
    ended = registry.close_where(
        lambda each: each.connection.process == process and _ends_with_it(each), PROCESS_RESTARTED
    )
    if found.is_template:
        supervisor.forking.forget(found.spec.key)
    pool.end(found, _WHY)
    return Restarted(process, found.spec.name, node, was, ended, sessions - ended)


def _ends_with_it(session: Session) -> bool:
    """A session with a toolset goes on: its member gets another process."""
    return not session.spec.is_respawned and session.spec.toolset is None
