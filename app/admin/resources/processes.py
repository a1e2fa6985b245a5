"""…/processes, of one tenant: what its backends run, and their last words."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.admin.context import MayManage, MayReadOfAll
from app.admin.resources.use import UseMembers, flat
from app.admin.route import AdminRoute
from app.admin.windows import AskedWindow, RunningPage
from app.errors import NotFound
from app.this_node.views import ProcessView

DEFAULT_LINES = 100
MAX_LINES = 1000

router = APIRouter(route_class=AdminRoute, tags=["processes"])

ProcessId = Annotated[str, Path(description="The process's id as the list shows it; not its pid.")]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES, description="How many of the last lines.")]


class ProcessAnswer(UseMembers):
    """A backend's process. Memory and processor time are measured every ten seconds, every two while somebody asks."""

    id: str
    tenant: str
    backend: str
    pid: int
    state: str = Field(description="starting, warm, leased or stopping.")
    started_at: datetime
    age_s: float
    sessions: list[str] = Field(description="Those it serves: one, unless the backend is shared; 100 at most.")
    session_count: int
    stderr_lines: int = Field(description="How many are kept.")
    node: str = Field(description="Which node runs it.")

    @classmethod
    def of(cls, view: ProcessView) -> Self:
        """Shows the value."""
        return cls(**{**asdict(view), **flat(view.use), "sessions": list(view.sessions)})


class StderrAnswer(BaseModel):
    """The end of what a process wrote to stderr, oldest line first; control characters are escaped."""

    lines: list[str]


@router.get("")
async def list_processes(access: MayReadOfAll, asked: AskedWindow) -> RunningPage[ProcessAnswer]:
    """The processes of a tenant's backends on all nodes, warm ones included, or of all tenants:
    `/tenants/-/processes`, for platform administrators."""
    return asked.page(await access.admin.node.processes(access.reach, asked.window), ProcessAnswer.of)


@router.get("/{process}/stderr")
async def read_stderr(access: MayManage, process: ProcessId, lines: Lines = DEFAULT_LINES) -> StderrAnswer:
    """Its last lines. For administrators only: servers write secrets there."""
    found = await access.admin.node.stderr(access.tenant, process, lines)
    if found is None:
        raise NotFound("Process not found")
    return StderrAnswer(lines=list(found))
