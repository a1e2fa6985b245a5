"""NodeView: what the endpoints can see of what runs, on all nodes."""

from collections.abc import Sequence
from typing import Protocol

from app.backends.trial import Trial
from app.domain import BackendSpec, Limits
from app.sessions.overview import NodeStatus, ProcessView, SessionView


class NodeView(Protocol):
    """The live objects as values. Always of one tenant; another tenant's are not there."""

    def status(self) -> NodeStatus:
        """The node itself."""

    def statuses(self) -> Sequence[NodeStatus]:
        """Every node, by id."""

    async def sessions(self, tenant: str) -> Sequence[SessionView]:
        """The tenant's sessions, by their public ids."""

    async def end_session(self, tenant: str, session: str) -> bool:
        """Ends the session with this public id; False if there is none."""

    async def processes(self, tenant: str) -> Sequence[ProcessView]:
        """The tenant's processes, by id."""

    async def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of a process; None if there is no such process."""

    async def check(self, spec: BackendSpec, limits: Limits) -> Trial:
        """Starts one process, asks what it offers and stops it. Raises ShuttingDown."""
