"""…/processes, of one tenant: the processes of its backends, and their stderr."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from app.admin._paging import AskedWindow, RunningPage
from app.admin._route import ResourceRouter
from app.admin.context import MayManage, MayReadOfAll
from app.admin.idempotency import ONCE
from app.admin.schemas.fields import UseMembers
from app.cluster.node_status.listing import Window
from app.cluster.node_status.questions import PROCESSES, RESTART_PROCESS, STDERR
from app.errors import NotFound, nodes_unavailable
from app.http.problems import responses

DEFAULT_LINES = 100
MAX_LINES = 1000

router = ResourceRouter(tags=["processes"])

ProcessId = Annotated[str, Path(description="The process's id as the list shows it; not its pid.")]
OneProcess = Annotated[str, Query(max_length=64, description="Only the one with this id.")]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES, description="How many of the last lines.")]


class ProcessAnswer(UseMembers):
    """A backend's process. Memory and CPU time are measured every ten seconds or more often."""

    id: str
    tenant: str
    backend: str
    pid: int = Field(description="In tiers 2 and 3 that of bwrap, which wraps the server and ends with it.")
    state: str = Field(
        description="starting, warm, leased or stopping; frozen: leased, and it stands still while its session is idle."
    )
    started_at: datetime
    age_s: float
    sessions: list[str] = Field(
        description="The sessions it serves: one, unless the backend is shared; at most 100 are listed."
    )
    session_count: int
    stderr_lines: int = Field(description="How many are kept.")
    node: str
    tier: str = Field(description="What confines it: none, base, kernel, namespaces or assisted.")
    start: str = Field(
        description="`exec`; `fork`: of a template; `template`: it serves nobody, and others are forked from it."
    )
    start_reason: str = Field(description="Why it was executed, although its backend's `start` is another.")
    sent_bytes: int = Field(description="Written for its stdin.")
    received_bytes: int = Field(description="Read from its stdout.")


class RestartAnswer(BaseModel):
    """What has become of the process and of its sessions."""

    process: str
    backend: str
    node: str
    was: str = Field(description="Its state before; `template`: it served nobody, and others were forked from it.")
    sessions_ended: int = Field(description="Of a backend with `recovery: end`: their clients open new ones.")
    sessions_going_on: int = Field(
        description="With `recovery: respawn`: they get another process. Calls under way fail, and are not run again."
    )


class StderrAnswer(BaseModel):
    """The last lines that a process wrote to stderr, oldest first; control characters are escaped."""

    lines: list[str]


@router.get("/processes")
async def list_processes(
    access: MayReadOfAll, asked: AskedWindow, process: OneProcess = ""
) -> RunningPage[ProcessAnswer]:
    """The processes of a tenant's backends on all nodes, including warm ones; for platform administrators also of all
    tenants: `/tenants/-/processes`."""
    window = replace(asked.window, only=process)
    return asked.page(await access.admin.node.ask(PROCESSES, access.reach, window), ProcessAnswer.of)


@router.post("/processes/{process}:restart", dependencies=[ONCE], responses=responses(409))
async def restart_process(access: MayManage, process: ProcessId) -> RestartAnswer:
    """Stops one process, on whatever node it is; the next one starts when it is needed, at once if it was warm. The
    answer says what becomes of its sessions. No call runs twice."""
    node = access.admin.node
    found = await node.ask(PROCESSES, access.tenant, Window(only=process))
    if not found.rows:
        raise nodes_unavailable(found.silent) if found.silent else NotFound("Process not found")
    await access.admin.audit.append(access.act("process.restart", f"processes/{process}", found.rows[0].backend))
    restarted = await node.ask(RESTART_PROCESS, access.tenant, process)
    if restarted is None:
        raise NotFound("Process not found")
    return RestartAnswer(
        process=restarted.process,
        backend=restarted.backend,
        node=restarted.node,
        was=restarted.was,
        sessions_ended=restarted.ended,
        sessions_going_on=restarted.going_on,
    )


@router.get("/processes/{process}/stderr")
async def read_stderr(access: MayManage, process: ProcessId, lines: Lines = DEFAULT_LINES) -> StderrAnswer:
    """The last lines of stderr. For administrators only: servers may write secrets there."""
    found = await access.admin.node.ask(STDERR, access.tenant, process, lines)
    if found is None:
        raise NotFound("Process not found")
    return StderrAnswer(lines=list(found))
