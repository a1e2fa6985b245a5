"""/api/v1/activity and …/tenants/{tenant}/activity: the last quarter of an hour in steps of five seconds."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, Field

from app.admin._route import ResourceRouter
from app.admin.context import Access, MayRead, Platform
from app.admin.schemas.fields import SILENT
from app.cluster.node_status.activity import STEP_S, STEPS, Moment, Shown, added, quantile
from app.cluster.node_status.questions import ACTIVITY
from app.errors import NotFound
from app.http.problems import responses
from app.limits.tenant_budgets import MIB

router = ResourceRouter(tags=["activity"])

OfNode = Annotated[
    str | None,
    Query(
        min_length=1, max_length=100, description="Only of the node with this id; without it, of all nodes together."
    ),
]
LastSteps = Annotated[
    int, Query(ge=1, le=STEPS, description="Only so many of the last steps, for a client that has the others.")
]
TenantName = Annotated[str, Path(description="The tenant's name.")]
_T = TypeVar("_T")
_V = TypeVar("_V")


class ActivityAnswer(BaseModel):
    """Series of equal length, oldest first: the value of each step. null: no node can tell, or there is no value."""

    since: datetime = Field(description="The beginning of the first step.")
    until: datetime = Field(description="The end of the last step.")
    step_s: int
    sessions: list[int | None] = Field(description="Open at the end of the step.")
    calls_per_second: list[float | None] = Field(description="Calls that ended, failed ones included.")
    errors: dict[str, list[int | None]] = Field(
        description="By reason: calls that failed in the step, and requests that were refused. Only reasons that occur."
    )
    p50_s: list[float | None] = Field(description="Half of the calls took no longer; exact to 9 %.")
    p99_s: list[float | None] = Field(description="99 of 100 calls took no longer; exact to 9 %.")
    processes: dict[str, list[int | None]] = Field(description="By state. Only states that occur.")
    resident_bytes: list[int | None] = Field(description="Memory of the processes, measured every ten seconds or so.")
    memory_limit_bytes: int | None = Field(
        description="For a tenant its `limits.memory_mb`; else the memory of the nodes' machines or containers."
    )
    waiting: list[int | None] = Field(description="Callers who wait for a process.")
    nodes: list[str] = Field(description="The nodes whose activity this is.")
    summed_nodes: list[str] = Field(
        description="Nodes with so many tenants that this one has no series of its own there: its activity is missing."
    )
    silent_nodes: list[str] = Field(description=SILENT)


@router.get("/activity", responses=responses(404))
async def read_activity(access: Platform, node: OfNode = None, steps: LastSteps = STEPS) -> ActivityAnswer:
    """What went on during the last quarter of an hour, of all tenants together."""
    shown = await _of(access, None, node, steps)
    return _answer(shown, shown.memory_limit_bytes or None)


@router.get("/tenants/{tenant}/activity", responses=responses(404))
async def read_activity_of_tenant(
    access: MayRead, tenant: TenantName, node: OfNode = None, steps: LastSteps = STEPS
) -> ActivityAnswer:
    """What went on during the last quarter of an hour, of one tenant."""
    shown = await _of(access, tenant, node, steps)
    memory_mb = (await access.admin.tenants.get(tenant)).limits.memory_mb
    return _answer(shown, None if memory_mb is None else memory_mb * MIB)


async def _of(access: Access, tenant: str | None, node: str | None, steps: int) -> Shown:
    shown = await access.admin.node.ask(ACTIVITY, tenant, node or "", steps)
    if shown is None:
        raise NotFound("Node not found")
    return shown


def _answer(shown: Shown, memory_limit_bytes: int | None) -> ActivityAnswer:
    until, moments = datetime.fromtimestamp(shown.until_s, UTC), shown.moments

    def column(value: Callable[[Moment], _T]) -> list[_T | None]:
        return [None if each is None else value(each) for each in moments]

    return ActivityAnswer(
        since=until - timedelta(seconds=STEP_S * len(moments)),
        until=until,
        step_s=STEP_S,
        sessions=column(lambda each: each.sessions),
        calls_per_second=column(lambda each: round(sum(each.buckets.values()) / STEP_S, 2)),
        errors=_by_name(moments, lambda each: each.errors),
        p50_s=_quantiles(moments, 0.5),
        p99_s=_quantiles(moments, 0.99),
        processes=_by_name(moments, lambda each: each.processes),
        resident_bytes=column(lambda each: each.resident_bytes),
        memory_limit_bytes=memory_limit_bytes,
        waiting=column(lambda each: each.waiting),
        nodes=list(shown.nodes),
        summed_nodes=list(shown.summed),
        silent_nodes=list(shown.silent),
    )


def _by_name(
    moments: Sequence[Moment | None], counts: Callable[[Moment], Mapping[str, int]]
) -> dict[str, list[int | None]]:
    whole: dict[str, int] = {}
    for each in moments:
        whole = whole if each is None else added(whole, counts(each))
    return {
        name: [None if each is None else counts(each).get(name, 0) for each in moments]
        for name in sorted(whole, key=lambda name: (-whole[name], name))
    }


def _quantiles(moments: Sequence[Moment | None], share: float) -> list[float | None]:
    found = (None if each is None else quantile(each.buckets, share) for each in moments)
    return [None if each is None else round(each, 5) for each in found]
