"""/api/v1/nodes, and /api/v1/use: what each tenant uses of them."""

from datetime import datetime

from pydantic import Field

from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import Platform
from app.admin.schemas.fields import Answer
from app.admin.schemas.rows import answer_of
from app.cluster.node_status.questions import USE
from app.cluster.node_status.views import TenantUse
from app.domain import views

router = ResourceRouter(tags=["nodes"])


class NodeLoadAnswer(Answer):
    """The current load of a node."""

    host: str
    pid: int
    loop_lag_s: float = Field(description="How late its event loop is.")
    memory_used_bytes: int = Field(description="Of its container or machine as a whole.")
    memory_limit_bytes: int
    descriptors_used: int
    descriptors_limit: int
    connections: int = Field(description="Of clients.")
    calls: int = Field(description="In flight.")
    backends_resident_bytes: int
    backends_cpu_percent: float = Field(description="Over the last seconds; 100 is one core.")
    refuses: str | None = Field(description="What it refuses because of overload, and why.")


class SandboxProfileAnswer(Answer):
    """How processes are confined on a node."""

    tier: int = Field(description="0 to 3 (docs/security.md); -1: not at all.")
    name: str
    network: str
    enforced: list[str] = Field(description="The guarantees that held when a probe tried to break them.")
    missing: dict[str, str] = Field(description="The others, with the reason.")
    weaker: list[str] = Field(description="What is weaker than its name says.")


class AttemptAnswer(Answer):
    """What a probe tried inside a sandbox when the node started."""

    tier: int
    network: str
    name: str
    guarantee: str
    was_denied: bool
    detail: str


class NodeSandboxAnswer(Answer):
    """The sandbox of a node."""

    networks: dict[str, SandboxProfileAnswer] = Field(description="By the `network` of a backend with default limits.")
    attempts: list[AttemptAnswer]


class NodeAnswer(Answer):
    """One gateway process. `problem`: why the answering node does not forward requests to it."""

    id: str
    url: str | None = Field(description="Its URL for other nodes (NODE_URL); null for a single node.")
    version: str
    started_at: datetime
    sessions: int
    processes: int
    draining: bool
    problem: str | None
    load: NodeLoadAnswer | None = Field(description="null: it did not answer within a second.")
    sandbox: NodeSandboxAnswer | None = Field(description="What it can confine its backends with; null likewise.")


@router.get("/nodes")
async def list_nodes(access: Platform, asked: AskedPage) -> Page[NodeAnswer]:
    """The nodes of the cluster, each as it described itself within the last seconds, and its current load."""
    return asked.of_all(await access.admin.node.statuses(), lambda node: node.id, NodeAnswer.of)


add_list(router, views.USE, USE, answer_of(TenantUse, "TenantUseAnswer"))
