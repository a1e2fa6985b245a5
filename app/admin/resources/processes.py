"""…/processes, of one tenant: the processes of its backends, and their stderr."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.admin.context import MayManage, MayReadOfAll
from app.admin.paging import AskedWindow, RunningPage
from app.admin.route import AdminRoute
from app.admin.schemas.fields import UseMembers
from app.errors import NotFound

DEFAULT_LINES = 100
MAX_LINES = 1000

router = APIRouter(route_class=AdminRoute, tags=["processes"])

ProcessId = Annotated[str, Path(description="The process's id as the list shows it; not its pid.")]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES, description="How many of the last lines.")]


class ProcessAnswer(UseMembers):
    """A backend's process. Memory and CPU time are measured every ten seconds or more often."""

    id: str
    tenant: str
    backend: str
    pid: int = Field(description="In tiers 2 and 3 that of bwrap, which wraps the server and ends with it.")
    state: str = Field(description="starting, warm, leased or stopping.")
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


class StderrAnswer(BaseModel):
    """The last lines that a process wrote to stderr, oldest first; control characters are escaped."""

    lines: list[str]


@router.get("/processes")
async def list_processes(access: MayReadOfAll, asked: AskedWindow) -> RunningPage[ProcessAnswer]:
    """The processes of a tenant's backends on all nodes, including warm ones; for platform administrators also of all
    tenants: `/tenants/-/processes`."""
    return asked.page(await access.admin.node.processes(access.reach, asked.window), ProcessAnswer.of)


@router.get("/processes/{process}/stderr")
async def read_stderr(access: MayManage, process: ProcessId, lines: Lines = DEFAULT_LINES) -> StderrAnswer:
    """The last lines of stderr. For administrators only: servers may write secrets there."""
    found = await access.admin.node.stderr(access.tenant, process, lines)
    if found is None:
        raise NotFound("Process not found")
    return StderrAnswer(lines=list(found))
