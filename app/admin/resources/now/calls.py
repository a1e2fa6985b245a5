"""…/calls, of one tenant or of all: the last calls on all nodes, and their sums by group."""

import math
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from app.admin._paging import AskedPage, OfBackend, RunningPage, WindowQuery
from app.admin._route import ResourceRouter
from app.admin.context import MayReadOfAll
from app.admin.resources.audit import Moment
from app.admin.schemas.fields import SILENT
from app.admin.schemas.rows import answer_of
from app.cluster.node_status.found_calls import find_calls
from app.cluster.node_status.found_calls import group_calls as grouped
from app.cluster.node_status.listing import CallWindow
from app.cluster.node_status.views import CallView
from app.telemetry.call_history.query import CallGroup, GroupBy

router = ResourceRouter(tags=["calls"])

Words = Annotated[str | None, Query(min_length=1, max_length=256)]


class CallGroupAnswer(BaseModel):
    """Calls that have something in common."""

    name: str
    within: str = Field(description="The backend of a tool, or the issuer of a subject; else empty.")
    count: int
    errors: int
    p50_ms: float = Field(description="Half of them took no longer; exact to 5 %.")
    p99_ms: float
    bytes_in: int
    bytes_out: int

    @classmethod
    def of(cls, group: CallGroup) -> "CallGroupAnswer":
        sums = {name: value for name, value in asdict(group).items() if name != "buckets"}
        return cls(**sums, p50_ms=group.percentile_ms(0.5), p99_ms=group.percentile_ms(0.99))


class CallGroupsAnswer(BaseModel):
    """All groups, that with the most calls first."""

    items: list[CallGroupAnswer]
    silent_nodes: list[str] = Field(description=SILENT)


async def _matching(  # noqa: PLR0913 - each is a parameter of the query
    backend: OfBackend = None,
    method: Words = None,
    tool: Words = None,
    outcome: Annotated[str | None, Query(min_length=1, max_length=64, description="`error`: all but `ok`.")] = None,
    subject: Words = None,
    client_name: Words = None,
    session: Words = None,
    request_id: Words = None,
    since: Annotated[Moment | None, Query(description="At this time or later: 2030-01-31T12:00:00Z.")] = None,
    until: Annotated[Moment | None, Query(description="Before this time.")] = None,
    min_ms: Annotated[float, Query(ge=0, le=1e9, description="Only calls that took so long or longer.")] = 0.0,
) -> CallWindow:
    return CallWindow(
        "at",
        backend=backend or "",
        method=method or "",
        tool=tool or "",
        outcome=outcome or "",
        subject=subject or "",
        client_name=client_name or "",
        session=session or "",
        request_id=request_id or "",
        since=0.0 if since is None else since.timestamp(),
        until=math.inf if until is None else until.timestamp(),
        min_ms=min_ms,
    )


MatchingCalls = Annotated[CallWindow, Depends(_matching)]


_CallAnswer: Any = answer_of(
    CallView, "CallAnswer", ("id", "at", "tenant", "backend", "method", "tool", "outcome", "duration_ms")
)


@router.get("/calls", response_model=RunningPage[_CallAnswer])
async def list_calls(access: MayReadOfAll, asked: AskedPage, matching: MatchingCalls) -> RunningPage[Any]:
    """The last calls of a tenant on all nodes, the newest first; for platform administrators also of all tenants:
    `/tenants/-/calls`, of each node the last 10,000. Each node keeps up to CALLS_PER_TENANT; with CALLS_KEPT_DAYS they
    are in the database too, of which `total` counts 10,000 at most."""
    window = replace(matching, after=asked.after, limit=asked.fetch)
    found = await find_calls(access.admin.node, access.admin.archive, access.reach, window)
    return WindowQuery(asked, window).page(found, _CallAnswer.of)


@router.get("/calls:grouped")
async def group_calls(
    access: MayReadOfAll,
    matching: MatchingCalls,
    by: Annotated[GroupBy, Query(description="What they have in common.")],
) -> CallGroupsAnswer:
    """The sums of those calls by what they have in common: how many, how many failed, how long they took."""
    found = await grouped(access.admin.node, access.admin.archive, access.reach, matching, by)
    return CallGroupsAnswer(items=[CallGroupAnswer.of(each) for each in found.rows], silent_nodes=list(found.silent))
