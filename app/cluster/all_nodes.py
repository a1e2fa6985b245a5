"""AllNodes: sessions and processes of every node as values, for administrators. Each node tells of its own."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec

from app.backends.backend_check import Trial
from app.domain import BackendSpec, Limits, Principal
from app.errors import GatewayError
from app.logs import current
from app.peers.client import PeerRequest, PeerResponse
from app.peers.credentials import Word
from app.routing.routes import NodeRecord
from app.this_node.limits_use import LimitsUse, added
from app.this_node.listing import Gathered, Listing, Window, merged
from app.this_node.overview import NodeOverview
from app.this_node.views import (
    AddressUse,
    BackendRunning,
    FailureView,
    NodeLoad,
    NodeStatus,
    ProcessView,
    SessionView,
    TenantUse,
)

ANSWER_S = 1.0  # a node that takes longer is left out
MAX_ANSWER_BYTES = 16 << 20
OVERVIEW = "/internal/overview/"
CREDENTIAL = "credential"
ALL = "-"  # instead of a tenant's name: it is none
_NOBODY = Principal("", "node", "", frozenset())  # whom a node speaks for when it asks on its own account

T = TypeVar("T")

log = logging.getLogger(__name__)


class Sends(Protocol):
    """Requests to the other nodes (`peers.client.PeerClient`)."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Why those at these URLs and this one do not talk to each other."""

    async def send(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """Raises GatewayError."""


class AllNodes:
    """Fulfils `admin.node.NodeView`. What a silent node has is missing from the lists, and the log says so."""

    def __init__(
        self, own: NodeOverview, peers: Callable[[], Iterable[NodeRecord]], sends: Sends, url: str = ""
    ) -> None:
        self._own, self._peers, self._sends, self._url = own, peers, sends, url

    def status(self) -> NodeStatus:
        """The node that was asked."""
        return self._own.status()

    async def statuses(self) -> Sequence[NodeStatus]:
        """Every node: as it described itself at its last beat, and how it is now, if it answers."""
        loads = {load.node: load for load in (await self._gather("load", list[NodeLoad])).rows}
        problems, own = self._sends.problems, self._own.status()
        others = (
            NodeStatus(
                each.id,
                each.version,
                each.started_at,
                each.sessions,
                each.processes,
                each.draining,
                problems.get(each.url),
                each.url,
                loads.get(each.id),
            )
            for each in self._peers()
        )
        mine = replace(own, url=self._url or None, load=self._own.load())
        return sorted([mine, *others], key=lambda status: status.id)

    async def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        """The sessions of a tenant, or of all, on all nodes."""
        found = await self._gather("sessions", list[Listing[SessionView]], **_asked(tenant, window))
        return merged([self._own.sessions(tenant, window), *found.rows], window, found.silent)

    async def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        """The processes of a tenant, or of all, on all nodes."""
        found = await self._gather("processes", list[Listing[ProcessView]], **_asked(tenant, window))
        return merged([self._own.processes(tenant, window), *found.rows], window, found.silent)

    async def use(self, window: Window) -> Listing[TenantUse]:
        """What each tenant uses on all nodes."""
        found = await self._gather("use", list[Listing[TenantUse]], **_asked(None, window))
        sums: dict[str, TenantUse] = {}
        for listing in [self._own.use(window), *found.rows]:
            for each in listing.rows:
                sums[each.tenant] = sums[each.tenant] + each if each.tenant in sums else each
        rows = window.first(sums.values(), lambda each: each.position(window.sort))
        return Listing(rows, len(sums), found.silent)

    async def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        """The last failures of a tenant's backends, or of all, on all nodes, the newest first."""
        found = await self._gather("failures", list[Listing[FailureView]], **_asked(tenant, window))
        return merged([self._own.failures(tenant, window), *found.rows], window, found.silent)

    async def limits_use(self, tenant: str) -> tuple[LimitsUse, Sequence[str]]:
        """What of the tenant's limits is taken on all nodes; and those that have not told, by id."""
        found = await self._gather("limits", list[LimitsUse], tenant=tenant)
        return added([self._own.limits_use(tenant), *found.rows]), found.silent

    async def backends(self, tenant: str, first: str, last: str) -> Gathered[BackendRunning]:
        """What the nodes run of the tenant's backends from this name to that, see `NodeOverview.backends`."""
        asked = {"tenant": tenant, "first": first, "last": last}
        found = await self._gather("backends", list[BackendRunning], **asked)
        return Gathered([*self._own.backends(tenant, first, last), *found.rows], found.silent)

    async def credential_uses(self, identity: tuple[str, str, str]) -> Gathered[AddressUse]:
        """From where this principal was let in, at any node."""
        tenant, issuer, subject = identity
        found = await self._gather(CREDENTIAL, list[AddressUse], tenant=tenant, issuer=issuer, subject=subject)
        return Gathered([*self._own.credential_uses(identity), *found.rows], found.silent)

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
        return [*(await self._gather(what, kind, **query)).rows]

    async def _gather(self, what: str, kind: type[list[T]], **query: str) -> Gathered[T]:
        found: list[T] = []
        silent: list[str] = []

        async def ask(node: NodeRecord) -> None:
            try:
                with anyio.fail_after(ANSWER_S):
                    found.extend(msgspec.json.decode(await self._ask(node, what, query), type=kind))
            except (GatewayError, TimeoutError, msgspec.DecodeError) as problem:
                silent.append(node.id)
                log.warning(
                    "Node %s is missing from a list of all nodes: %s", node.id, str(problem) or "it does not answer"
                )

        async with anyio.create_task_group() as tasks:
            for node in self._peers():
                tasks.start_soon(ask, node)
        return Gathered(found, sorted(silent))

    async def _ask(self, node: NodeRecord, what: str, query: dict[str, str]) -> bytes:
        asked = f"?{urlencode(query)}" if query else ""
        target = f"{OVERVIEW}{what}{asked}".encode()
        method = "POST" if what == "end" else "GET"
        served = current.get()
        named = None if served is None else served.fields().get("request")
        headers = [(b"x-request-id", named.encode("ascii"))] if isinstance(named, str) else []
        response = await self._sends.send(node, PeerRequest(method, target, headers, Word(_NOBODY, "")))
        try:
            if response.status != 200:
                raise GatewayError(f"status {response.status}")
            return await response.body(MAX_ANSWER_BYTES)
        finally:
            response.close()


def answer_for(own: NodeOverview, what: str, query: dict[str, str]) -> Any:
    """What this node tells another that asks for its part; None for a question that there is not."""
    tenant = query.get("tenant", "")
    if what in ("sessions", "processes", "use", "failures"):
        return [_listed(own, what, None if tenant == ALL else tenant, query)]
    if what == "limits":
        return [own.limits_use(tenant)]
    if what == "load":
        return [own.load()]
    if what == "backends":
        return own.backends(tenant, query.get("first", ""), query.get("last", ""))
    if what == CREDENTIAL:
        return own.credential_uses((tenant, query.get("issuer", ""), query.get("subject", "")))
    if what == "end":
        return [own.end_session(tenant, query.get("session", ""))]
    if what == "stderr":
        lines = own.stderr(tenant, query.get("process", ""), int(query.get("lines", "0")))
        return [] if lines is None else [list(lines)]
    return None


def _asked(tenant: str | None, window: Window) -> dict[str, str]:
    return {"tenant": ALL if tenant is None else tenant, **{name: str(each) for name, each in asdict(window).items()}}


def _listed(own: NodeOverview, what: str, tenant: str | None, query: dict[str, str]) -> Any:
    window = Window(
        query.get("sort", "id"),
        query.get("after", ""),
        int(query.get("limit", "0")),
        query.get("backend", ""),
        query.get("only", ""),
    )
    if what == "use":
        return own.use(window)
    if what == "failures":
        return own.failures(tenant, window)
    return own.sessions(tenant, window) if what == "sessions" else own.processes(tenant, window)
