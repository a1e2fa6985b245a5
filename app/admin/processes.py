"""…/processes, of one tenant: what its backends run, and their last words."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from app.admin.context import MayManage, MayRead
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.errors import NotFound
from app.sessions.overview import ProcessView

DEFAULT_LINES = 100
MAX_LINES = 1000

router = APIRouter(route_class=AdminRoute, tags=["processes"])

ProcessId = Annotated[str, Path(description="The process's id as the list shows it; not its pid.")]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES, description="How many of the last lines.")]


class ProcessAnswer(BaseModel):
    """A backend's process."""

    id: str
    backend: str
    pid: int
    state: str = Field(description="starting, warm, leased or stopping.")
    started_at: datetime
    age_s: float
    resident_bytes: int = Field(description="With everything it started; measured every ten seconds, 0 before that.")
    sessions: list[str] = Field(description="Those it serves: one, unless the backend is shared.")
    stderr_lines: int = Field(description="How many are kept.")
    node: str = Field(description="Which node runs it.")

    @classmethod
    def of(cls, view: ProcessView) -> Self:
        """Shows the value."""
        return cls(**{**asdict(view), "sessions": list(view.sessions)})


class StderrAnswer(BaseModel):
    """The end of what a process wrote to stderr, oldest line first; control characters are escaped."""

    lines: list[str]


@router.get("")
async def list_processes(access: MayRead, asked: AskedPage) -> Page[ProcessAnswer]:
    """The processes of the tenant's backends on all nodes, warm ones included, by id; see the list of sessions."""
    return asked.of_all(await access.admin.node.processes(access.tenant), lambda view: view.id, ProcessAnswer.of)


@router.get("/{process}/stderr")
async def read_stderr(access: MayManage, process: ProcessId, lines: Lines = DEFAULT_LINES) -> StderrAnswer:
    """Its last lines. For administrators only: servers write secrets there."""
    found = await access.admin.node.stderr(access.tenant, process, lines)
    if found is None:
        raise NotFound("Process not found")
    return StderrAnswer(lines=list(found))
