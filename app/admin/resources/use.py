"""/api/v1/use: which tenant takes how much."""

from dataclasses import asdict
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.admin.context import Platform
from app.admin.route import AdminRoute
from app.admin.windows import AskedWindow, RunningPage
from app.this_node.listing import Use
from app.this_node.views import TenantUse

router = APIRouter(route_class=AdminRoute, tags=["nodes"])


class UseMembers(BaseModel):
    """What something takes."""

    resident_bytes: int = Field(description="Of the processes, with all that they started.")
    cpu_s: float = Field(description="Of those processes, since their start.")
    cpu_percent: float | None = Field(
        description="The same over the last seconds; 100 is one core. null: not known yet."
    )
    calls: int = Field(description="In flight.")
    calls_total: int = Field(description="Of the sessions that are open, since they were opened.")


class TenantUseAnswer(UseMembers):
    """What a tenant has running on all nodes."""

    tenant: str
    sessions: int
    processes: int = Field(description="Warm ones and those of a check included.")

    @classmethod
    def of(cls, found: TenantUse) -> Self:
        """Shows the value."""
        return cls(tenant=found.tenant, sessions=found.sessions, processes=found.processes, **flat(found.use))


def flat(use: Use) -> dict[str, float]:
    """For `UseMembers`."""
    return asdict(use)


@router.get("/use")
async def list_use(access: Platform, asked: AskedWindow) -> RunningPage[TenantUseAnswer]:
    """What each tenant that runs anything takes; a node tells of 2,000 tenants at most, those that come first."""
    return asked.page(await access.admin.node.use(asked.window), TenantUseAnswer.of)
