"""…/processes, of one tenant: the processes of its backends, and their stderr."""

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from pydantic import BaseModel, Field

from app.admin._backend_state import DenialAnswer
from app.admin._paging import AskedWindow, WindowQuery
from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import MayManage
from app.admin.idempotency import ONCE
from app.admin.schemas.rows import answer_of
from app.cluster.node_status.listing import Window
from app.cluster.node_status.process_restart import Restarted
from app.cluster.node_status.questions import DENIALS, PROCESSES, RESTART_PROCESS, STDERR
from app.cluster.node_status.views import ProcessView
from app.concurrency.at_once import at_once
from app.domain import views
from app.errors import NotFound, nodes_unavailable
from app.http.problems import responses

DEFAULT_LINES = 100
MAX_LINES = 1000

router = ResourceRouter(tags=["processes"])

ProcessId = Annotated[str, Path(description="The process's id as the list shows it; not its pid.")]
OneProcess = Annotated[str | None, Query(min_length=1, max_length=64, description="Only the one with this id.")]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES, description="How many of the last lines.")]


class StderrAnswer(BaseModel):
    """The last lines that a process wrote to stderr, oldest first; control characters are escaped."""

    lines: list[str]
    denials: list[DenialAnswer] = Field(description="What its sandbox and its limits denied it last, oldest first.")


async def _window(asked: AskedWindow, process: OneProcess = None) -> WindowQuery[Window]:
    return replace(asked, window=replace(asked.window, only=process or ""))


add_list(
    router,
    views.PROCESSES,
    PROCESSES,
    answer_of(ProcessView, "ProcessAnswer"),
    asked=Annotated[WindowQuery[Window], Depends(_window)],
)


_Restarted: Any = answer_of(Restarted, "RestartAnswer")


@router.post("/processes/{process}:restart", dependencies=[ONCE], responses=responses(409), response_model=_Restarted)
async def restart_process(access: MayManage, process: ProcessId) -> Any:
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
    return _Restarted.of(restarted)


@router.get("/processes/{process}/stderr")
async def read_stderr(access: MayManage, process: ProcessId, lines: Lines = DEFAULT_LINES) -> StderrAnswer:
    """The last lines of stderr, and what was denied to it. For administrators only: servers may write secrets there."""
    node = access.admin.node
    found, denied = await at_once(
        node.ask(STDERR, access.tenant, process, lines), node.ask(DENIALS, access.tenant, process)
    )
    if found is None:
        raise NotFound("Process not found")
    return StderrAnswer(lines=list(found), denials=[DenialAnswer.model_validate(asdict(each)) for each in denied or ()])
