"""An Inspecting without a node, for what only needs to have one."""

from app.cluster.node_status.inspecting import Inspecting
from app.sessions.open_sessions import OpenSessions
from app.storage.audit import Act
from app.telemetry.metrics import Metrics


async def _write(act: Act) -> None:
    """There is no trail."""


def no_inspections() -> Inspecting:
    return Inspecting("n1", OpenSessions(), lambda key: (), lambda spec: (), _write, Metrics("test"), 0)
