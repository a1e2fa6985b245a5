"""AllNodes: sessions and processes of every node as values, for administrators. Each node tells of its own."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec

from app.backends.trial import Trial
from app.domain import BackendSpec, Limits, Principal
from app.errors import GatewayError
from app.routing.node_credentials import Word
from app.routing.peers import PeerRequest, PeerResponse
from app.routing.routes import NodeRecord
from app.sessions.overview import NodeOverview, NodeStatus, ProcessView, SessionView

ANSWER_S = 1.0  # a node that takes longer is left out
MAX_ANSWER_BYTES = 16 << 20
OVERVIEW = "/internal/overview/"
_NOBODY = Principal("", "node", "", frozenset())  # whom a node speaks for when it asks on its own account

T = TypeVar("T")
log = logging.getLogger(__name__)


class Sends(Protocol):
    """Requests to the other nodes (`routing.peers.PeerClient`)."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Why those at these URLs and this one do not talk to each other."""

    async def send(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """Raises GatewayError."""


class AllNodes:
    """Fulfils `admin.node.NodeView`. What a silent node has is missing from the lists, and the log says so."""

    def __init__(self, own: NodeOverview, peers: Callable[[], Iterable[NodeRecord]], sends: Sends) -> None:
        self._own, self._peers, self._sends = own, peers, sends

    def status(self) -> NodeStatus:
        """The node that was asked."""
        return self._own.status()

    def statuses(self) -> Sequence[NodeStatus]:
        """Every node, as it described itself at its last beat."""
        problems = self._sends.problems
        others = (
            NodeStatus(
                each.id,
                each.version,
                each.started_at,
                each.sessions,
                each.processes,
                each.draining,
                problems.get(each.url),
            )
            for each in self._peers()
        )
        return sorted([self._own.status(), *others], key=lambda status: status.id)

    async def sessions(self, tenant: str) -> Sequence[SessionView]:
        """The tenant's sessions on all nodes, by public id."""
        found = await self._of_all("sessions", list[SessionView], tenant=tenant)
        return sorted([*self._own.sessions(tenant), *found], key=lambda view: view.id)

    async def processes(self, tenant: str) -> Sequence[ProcessView]:
        """The tenant's processes on all nodes, by id."""
        found = await self._of_all("processes", list[ProcessView], tenant=tenant)
        return sorted([*self._own.processes(tenant), *found], key=lambda view: view.id)

    async def end_session(self, tenant: str, session: str) -> bool:
        """Ends the tenant's session with this public id, wherever it is; whether there was one."""
        if self._own.end_session(tenant, session):
            return True
        found: list[bool] = await self._of_all("end", list[bool], tenant=tenant, session=session)
        return any(found)

    async def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of the tenant's process, wherever it runs; None if there is no such process."""
        own = self._own.stderr(tenant, process, lines)
        if own is not None:
            return own
        found = await self._of_all("stderr", list[list[str]], tenant=tenant, process=process, lines=str(lines))
        return found[0] if found else None

    async def check(self, spec: BackendSpec, limits: Limits) -> Trial:
        """See `try_backend`; tried on this node."""
        return await self._own.check(spec, limits)

    async def _of_all(self, what: str, kind: type[list[T]], **query: str) -> list[T]:
        """What each other node answers, one list after the other."""
        found: list[T] = []

        async def ask(node: NodeRecord) -> None:
            try:
                with anyio.fail_after(ANSWER_S):
                    found.extend(msgspec.json.decode(await self._ask(node, what, query), type=kind))
            except (GatewayError, TimeoutError, msgspec.DecodeError) as problem:
                log.warning("node %s is missing from a list: %s", node.id, str(problem) or "it does not answer")

        async with anyio.create_task_group() as tasks:
            for node in self._peers():
                tasks.start_soon(ask, node)
        return found

    async def _ask(self, node: NodeRecord, what: str, query: dict[str, str]) -> bytes:
        target = f"{OVERVIEW}{what}?{urlencode(query)}".encode()
        method = "POST" if what == "end" else "GET"
        response = await self._sends.send(node, PeerRequest(method, target, (), Word(_NOBODY, "")))
        try:
            if response.status != 200:
                raise GatewayError(f"status {response.status}")
            return await response.body(MAX_ANSWER_BYTES)
        finally:
            response.close()


def answer_for(own: NodeOverview, what: str, query: dict[str, str]) -> Any:
    """What this node tells another that asks for its part; None for a question that there is not."""
    tenant = query.get("tenant", "")
    if what == "sessions":
        return own.sessions(tenant)
    if what == "processes":
        return own.processes(tenant)
    if what == "end":
        return [own.end_session(tenant, query.get("session", ""))]
    if what == "stderr":
        lines = own.stderr(tenant, query.get("process", ""), int(query.get("lines", "0")))
        return [] if lines is None else [list(lines)]
    return None
