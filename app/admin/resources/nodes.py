"""/api/v1/nodes, and /api/v1/use: what each tenant uses of them."""

from typing import Any

from pydantic import Field

from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import Platform
from app.admin.schemas.fields import Answer
from app.admin.schemas.rows import answer_of
from app.cluster.node_status.questions import USE
from app.cluster.node_status.views import NodeLoad, NodeStatus, TenantUse
from app.domain import views
from app.jail.sandbox.report import AttemptView, ProfileView

router = ResourceRouter(tags=["nodes"])


_Load = answer_of(NodeLoad, "NodeLoadAnswer", without=["node"])
_Profile: Any = answer_of(ProfileView, "SandboxProfileAnswer")
_Attempt: Any = answer_of(AttemptView, "AttemptAnswer")


class NodeSandboxAnswer(Answer):
    """The sandbox of a node."""

    networks: dict[str, _Profile] = Field(description="By the `network` of a backend with default limits.")
    attempts: list[_Attempt]


_Node: Any = answer_of(NodeStatus, "NodeAnswer", ["id", "url"], load=_Load | None, sandbox=NodeSandboxAnswer | None)


@router.get("/nodes", response_model=Page[_Node])
async def list_nodes(access: Platform, asked: AskedPage) -> Page[Any]:
    """The nodes of the cluster, each as it described itself within the last seconds, and its current load."""
    return asked.of_all(await access.admin.node.statuses(), lambda node: node.id, _Node.of)


add_list(router, views.USE, USE, answer_of(TenantUse, "TenantUseAnswer"))
