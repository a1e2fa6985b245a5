"""/api/v1/nodes"""

from dataclasses import asdict
from datetime import datetime
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.admin.context import Platform
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.this_node.views import NodeStatus

router = APIRouter(route_class=AdminRoute, tags=["nodes"])


class NodeLoadAnswer(BaseModel):
    """How much a node has to do, now."""

    host: str
    pid: int
    loop_lag_s: float = Field(description="How late its event loop is.")
    memory_used_bytes: int = Field(description="Of its container or machine, everything in it included.")
    memory_limit_bytes: int
    descriptors_used: int
    descriptors_limit: int
    connections: int = Field(description="Of clients.")
    calls: int = Field(description="In flight.")
    backends_resident_bytes: int
    backends_cpu_percent: float = Field(description="Over the last seconds; 100 is one core.")
    refuses: str | None = Field(description="What it refuses because it is overloaded, and why.")


class NodeAnswer(BaseModel):
    """One gateway process. `problem`: why the node that was asked does not send requests on to it."""

    id: str
    url: str | None = Field(description="Where the other nodes reach it (NODE_URL); null where there is one node only.")
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None
    load: NodeLoadAnswer | None = Field(description="null: it did not answer within a second.")

    @classmethod
    def of(cls, node: NodeStatus) -> Self:
        """Shows the value."""
        return cls.model_validate(asdict(node))


@router.get("/nodes")
async def list_nodes(access: Platform, asked: AskedPage) -> Page[NodeAnswer]:
    """The nodes that share the work, each as it described itself within the last seconds, and its load now."""
    return asked.of_all(await access.admin.node.statuses(), lambda node: node.id, NodeAnswer.of)
