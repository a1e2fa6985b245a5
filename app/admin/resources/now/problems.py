"""/api/v1/problems and …/tenants/{tenant}/problems: what is wrong now, in words."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, Field

from app.admin._route import ResourceRouter
from app.admin.context import Access, MayRead, Platform
from app.admin.schemas.fields import SILENT
from app.cluster.node_status.problems.problem import Problem, Severity, merged
from app.http.problems import responses
from app.storage.due import ExpiringKey, WaitingTools

EXPIRES_WITHIN = timedelta(days=14)
URGENT_WITHIN = timedelta(days=2)
MAX_SHOWN = 200

router = ResourceRouter(tags=["problems"])

TenantName = Annotated[str, Path(description="The tenant's name.")]


class Named(BaseModel):
    """A thing."""

    kind: str
    name: str


class ProblemAnswer(BaseModel):
    """Something that a person should look at."""

    kind: str = Field(description="A stable word for machines; docs/on-call.md has them all.")
    severity: Severity
    tenant: str | None = Field(description="null: it concerns the platform.")
    about: Named = Field(description="What it concerns.")
    words: str = Field(description="What is wrong, in a sentence.")
    do: str = Field(description="What to do.")
    since: datetime | None = Field(description="Since when this is known; null: not known.")
    nodes: list[str] = Field(description="The nodes that see it; empty for what the database says.")
    see: Named | None = Field(description="The page of the console that helps.")


class ProblemsAnswer(BaseModel):
    """What is wrong now, the worst first, then the newest."""

    items: list[ProblemAnswer]
    total: int = Field(description=f"The list has the first {MAX_SHOWN}.")
    silent_nodes: list[str] = Field(description=SILENT)


@router.get("/problems")
async def list_problems(access: Platform) -> ProblemsAnswer:
    """What is wrong now with the platform and with all tenants."""
    return await _found(access, None)


@router.get("/tenants/{tenant}/problems", responses=responses(404))
async def list_problems_of_tenant(access: MayRead, tenant: TenantName) -> ProblemsAnswer:
    """What is wrong now for one tenant. Of the gateway itself it hears what concerns it, not where or why."""
    return await _found(access, tenant)


async def _found(access: Access, tenant: str | None) -> ProblemsAnswer:
    admin, now = access.admin, access.admin.now()
    live = await admin.node.problems(tenant)
    keys = await admin.due.keys(tenant, now, now + EXPIRES_WITHIN)
    found = merged([*live.rows, *_of_keys(keys, now), *_of_tools(await admin.due.tools(tenant))])
    return ProblemsAnswer(items=list(map(_shown, found[:MAX_SHOWN])), total=len(found), silent_nodes=list(live.silent))


def _of_keys(keys: Iterable[ExpiringKey], now: datetime) -> Iterator[Problem]:
    for key in keys:
        left = key.expires_at - now
        when = f"in {left.days} days" if left.days > 1 else f"in {left.total_seconds() / 3600:.0f} hours"
        words = f"The key {key.id} ({key.name}) is in use, and expires {when}."
        do = "Make another one, give it to its user, and revoke this one."
        severity: Severity = "warning" if left < URGENT_WITHIN else "info"
        since = (key.expires_at - EXPIRES_WITHIN).timestamp()
        about = ("key", key.id)
        yield Problem("key_expires", severity, about, words, do, ("keys", key.id), key.tenant, since)


def _of_tools(waiting: Iterable[WaitingTools]) -> Iterator[Problem]:
    for each in waiting:
        parts = [f"{count} {'are' if count > 1 else 'is'} {status}" for status, count in sorted(each.statuses.items())]
        held = "withheld until then" if each.policy == "block" else "passed meanwhile, as the policy is to warn"
        words = f"Tools of the backend {each.backend} wait for approval: {' and '.join(parts)}. They are {held}."
        do = "Read the differences, and approve or reject them."
        about = ("backend", each.backend)
        yield Problem("tools_wait", "warning", about, words, do, ("backend", each.backend), each.tenant,
                      each.since.timestamp())  # fmt: skip


def _shown(problem: Problem) -> ProblemAnswer:
    about, see = (Named(kind=kind, name=name) if kind else None for kind, name in (problem.about, problem.see))
    since = datetime.fromtimestamp(problem.since, UTC) if problem.since else None
    return ProblemAnswer(**{**asdict(problem), "about": about, "see": see, "since": since})
