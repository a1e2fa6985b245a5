"""/api/v1/nodes"""

from dataclasses import asdict
from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel

from app.admin.context import Platform
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute

router = APIRouter(route_class=AdminRoute, tags=["nodes"])


class NodeAnswer(BaseModel):
    """One gateway process. `problem`: why the node that was asked does not send requests on to it."""

    id: str
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None


@router.get("/nodes")
async def list_nodes(access: Platform, asked: AskedPage) -> Page[NodeAnswer]:
    """The nodes that share the work, each as it described itself within the last seconds."""
    return asked.of_all(access.admin.node.statuses(), lambda node: node.id, lambda node: NodeAnswer(**asdict(node)))
