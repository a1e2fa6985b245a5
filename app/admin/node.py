"""NodeView: what the endpoints can see of what runs, on all nodes."""

from collections.abc import Sequence
from typing import Protocol

from app.backends.backend_check import Trial
from app.domain import BackendSpec, Limits
from app.this_node.limits_use import LimitsUse
from app.this_node.listing import Gathered, Listing, Window
from app.this_node.views import AddressUse, BackendRunning, FailureView, NodeStatus, ProcessView, SessionView, TenantUse


class NodeView(Protocol):
    """The live objects as values, of one tenant: another tenant's are not there. Lists are also of all tenants."""

    def status(self) -> NodeStatus:
        """The node itself."""

    async def statuses(self) -> Sequence[NodeStatus]:
        """Every node, by id."""

    async def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        """The tenant's sessions, or those of all where it is None."""

    async def end_session(self, tenant: str, session: str) -> bool:
        """Ends the session with this public id; False if there is none."""

    async def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        """The tenant's processes, or those of all where it is None."""

    async def use(self, window: Window) -> Listing[TenantUse]:
        """What each tenant uses."""

    async def limits_use(self, tenant: str) -> tuple[LimitsUse, Sequence[str]]:
        """What of the tenant's limits is taken; and which nodes have not told."""

    async def backends(self, tenant: str, first: str, last: str) -> Gathered[BackendRunning]:
        """What runs of the tenant's backends from this name to that, and has failed lately."""

    async def credential_uses(self, identity: tuple[str, str, str]) -> Gathered[AddressUse]:
        """From where this principal was let in."""

    async def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        """The last failures of the tenant's backends, or of all where it is None, the newest first."""

    async def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of a process; None if there is no such process."""

    async def check(self, spec: BackendSpec, limits: Limits) -> Trial:
        """Starts one process, asks what it offers and stops it. Raises ShuttingDown."""
