"""AllNodes: sessions and processes of all nodes, for administrators. Each node is asked for its own."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec

from app.backends.checks.backend_check import CheckResult
from app.backends.checks.steps import Steps
from app.cluster.node_status.activity import STEPS, NodeActivity, Shown, together
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.inspection_views import (
    InspectionAsked,
    InspectionView,
    Opened,
    Seen,
    seen_together,
    views_together,
)
from app.cluster.node_status.limits_use import LimitsUse, added
from app.cluster.node_status.listing import CallWindow, Gathered, Listing, Ranked, Window, merged, place_of_event
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.problems.nodes import Lost, of_others
from app.cluster.node_status.problems.problem import Problem
from app.cluster.node_status.problems.problem import merged as merged_problems
from app.cluster.node_status.process_restart import Restarted
from app.cluster.node_status.views import (
    AddressUse,
    BackendRunning,
    CallView,
    FailureView,
    NodeLoad,
    NodeStatus,
    ProcessView,
    SessionView,
    TenantUse,
)
from app.cluster.peers.client import PeerClient, PeerRequest
from app.cluster.peers.credentials import Word
from app.concurrency.at_once import at_once
from app.domain import BackendSpec, Limits, Principal
from app.errors import AGAIN, GatewayError, NodeUnavailable, nodes_unavailable
from app.jail.sandbox.report import SandboxView
from app.sessions.routes import NodeRecord
from app.telemetry.call_history.kept import CallArchive
from app.telemetry.call_history.query import CallGroup
from app.telemetry.call_history.query import added as added_groups
from app.telemetry.logs import current

ANSWER_S = 1.0  # slower nodes are left out
MAX_COUNTED = 10_000  # calls in the database that match a filter; what is beyond is not counted
WRITTEN_AFTER_S = 5.0  # by then calls are in the database, if they are kept there
MAX_ANSWER_BYTES = 16 << 20
OVERVIEW = "/internal/overview/"
CREDENTIAL = "credential"
_CHANGING = frozenset({"end", "restart", "inspect", "confirm_inspection", "close_inspection"})
ALL = "-"  # for all tenants; no tenant can have this name
_NOBODY = Principal("", "node", "", frozenset())  # for requests of the node itself

T = TypeVar("T")
R = TypeVar("R", bound=Ranked)

log = logging.getLogger(__name__)


class AllNodes:
    """Fulfils `admin.context.NodeView`. Without a tenant lists are of all tenants. Nodes that do not answer in time are
    named as `silent`, and logged."""

    def __init__(
        self,
        own: NodeOverview,
        peers: Callable[[], Iterable[NodeRecord]],
        client: PeerClient,
        url: str = "",
        departed: Callable[[], Iterable[NodeRecord]] = tuple,
        archive: CallArchive | None = None,
    ) -> None:
        """`departed`: nodes of which nothing is heard any more. `archive`: calls that are kept in the database."""
        self._archive = archive
        self._own, self._peers, self._client, self._url = own, peers, client, url
        self._lost = Lost(departed, time.monotonic)

    async def statuses(self) -> Sequence[NodeStatus]:
        """All nodes by id: as of their last heartbeats, with the present load of those that answer."""
        told, confined = await at_once(self._gather("load", list[NodeLoad]), self.sandboxes())
        loads = {load.node: load for load in told.rows}
        sandboxes = {each.node: each for each in confined.rows}
        problems, own = self._client.problems, self._own.status()
        others = (
            NodeStatus(
                **asdict(each),
                problem=problems.get(each.url),
                load=loads.get(each.id),
                sandbox=sandboxes.get(each.id),
            )
            for each in self._peers()
        )
        mine = replace(own, url=self._url or None, load=loads[own.id], sandbox=sandboxes[own.id])
        return sorted([mine, *others], key=lambda status: status.id)

    async def sandboxes(self) -> Gathered[SandboxView]:
        """What each node found out at its start about its sandbox."""
        return await self._gather("sandbox", list[SandboxView])

    async def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        return await self._merged("sessions", list[Listing[SessionView]], tenant, window)

    async def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        return await self._merged("processes", list[Listing[ProcessView]], tenant, window)

    async def use(self, window: Window) -> Listing[TenantUse]:
        found = await self._gather("use", list[Listing[TenantUse]], **_asked(None, window))
        sums: dict[str, TenantUse] = {}
        for listing in found.rows:
            for each in listing.rows:
                sums[each.tenant] = sums[each.tenant] + each if each.tenant in sums else each
        rows = window.first(sums.values(), lambda each: each.position(window.sort))
        return Listing(rows, len(sums), found.silent)

    async def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        """The last failures of backends, newest first."""
        return await self._merged("failures", list[Listing[FailureView]], tenant, window)

    async def calls(self, tenant: str | None, window: CallWindow) -> Listing[CallView]:
        """The last calls of a tenant, or of all, newest first; also from the database, where they are kept."""
        found = await self._merged("calls", list[Listing[CallView]], tenant, window)
        if self._archive is None:
            return found
        kept = await self._archive.find(tenant, window.filter, place_of_event(window.after), window.limit)
        total = await self._archive.count(tenant, window.filter, MAX_COUNTED)
        rows = {each.id: each for each in (*map(CallView.kept, kept), *found.rows)}  # the newest are in both
        shown = window.first(rows.values(), lambda each: each.position(window.sort))
        return Listing(shown, max(total, found.total), found.silent)

    async def call_groups(self, tenant: str | None, window: CallWindow, by: str) -> Gathered[CallGroup]:
        """Their sums, the groups with the most calls first. Where calls are kept in the database, those of the last
        seconds are counted at the nodes that have them, as they may not be written yet."""
        kept: list[CallGroup] = []
        if self._archive is not None:
            recent = time.time() - WRITTEN_AFTER_S
            until = min(window.until, recent)
            if window.since < until:
                kept += await self._archive.groups(tenant, replace(window, until=until).filter, by)
            window = replace(window, since=max(window.since, recent))
        asked = {self._own.status().id, *(each.id for each in self._peers())}  # there may be others at the end
        found = await self._gather("call_groups", list[CallGroup], by=by, **_asked(tenant, window))
        if self._archive is not None:  # those of nodes that are gone, or did not answer
            kept += await self._archive.groups(tenant, window.filter, by, asked - set(found.silent))
        return Gathered(added_groups([*kept, *found.rows]), found.silent)

    async def limits_use(self, tenant: str) -> tuple[LimitsUse, Sequence[str]]:
        """What is taken of the tenant's limits on all nodes, and the silent nodes."""
        found = await self._gather("limits", list[LimitsUse], tenant=tenant)
        return added(found.rows), found.silent

    async def backends(self, tenant: str, first: str, last: str) -> Gathered[BackendRunning]:
        """What each node runs of the tenant's backends with names from `first` to `last`, and their failures."""
        return await self._gather("backends", list[BackendRunning], tenant=tenant, first=first, last=last)

    async def credential_uses(self, identity: tuple[str, str, str]) -> Gathered[AddressUse]:
        """The addresses from which this principal was admitted, per node."""
        tenant, issuer, subject = identity
        return await self._gather(CREDENTIAL, list[AddressUse], tenant=tenant, issuer=issuer, subject=subject)

    async def end_session(self, tenant: str, session: str) -> bool:
        """Ends the session with this public id on any node; False if there is none.

        Raises:
            NodeUnavailable: a node that may have it did not answer.
        """
        if self._own.end_session(tenant, session):
            return True
        told = await self._ask_all_others("end", list[bool], tenant=tenant, session=session)
        if not any(told.rows) and told.silent:
            raise nodes_unavailable(told.silent)
        return any(told.rows)

    async def restart_process(self, tenant: str, process: str) -> Restarted | None:
        """Restarts a process on any node; None if there is none. Raises as `end_session`."""
        if (own := self._own.restart_process(tenant, process)) is not None:
            return own
        told = await self._ask_all_others("restart", list[Restarted], tenant=tenant, process=process)
        if not told.rows and told.silent:
            raise nodes_unavailable(told.silent)
        return told.rows[0] if told.rows else None

    async def open_inspection(self, tenant: str, asked: InspectionAsked) -> Opened | None:
        """Opens an inspection where its session is, None if no node has it; or on every node, where it is of a backend.
        If this raises, or the answer is a refusal, parts of it may be open, which end soon.

        Raises:
            NodeUnavailable: a node that may have the session, or is to have a part, did not answer.
        """
        peers = list(self._peers())
        if not asked.session and peers:
            asked = asked.among([self._own.status().id, *(each.id for each in peers)])
        words = {"tenant": tenant, **asked.words()}
        rows: list[Opened] = list(answer_for(self._own, "inspect", words))
        if asked.session and rows:
            return rows[0]
        told = await self._ask_others("inspect", list[Opened], peers, **words)
        rows += told.rows
        if told.silent and not asked.session:
            raise NodeUnavailable(
                f"no answer from {', '.join(told.silent)}, whose sessions it would not see", hint=AGAIN
            )
        if told.silent and not rows:
            raise nodes_unavailable(told.silent)
        views = [each.view for each in rows if each.view is not None]
        refusal = next((each for each in rows if each.view is None), None)
        return refusal or (Opened(views_together(views)[0]) if views else None)

    async def confirm_inspection(self, tenant: str, inspection: str) -> InspectionView | None:
        """Who has opened it may still do so. None, or without some of its nodes: it has ended.

        Raises as `end_session`."""
        told = await self._gather_all("confirm_inspection", list[InspectionView], tenant=tenant, inspection=inspection)
        if not told.rows and told.silent:
            raise nodes_unavailable(told.silent)
        return views_together(told.rows)[0] if told.rows else None

    async def inspections(self, tenant: str) -> Gathered[InspectionView]:
        """The tenant's inspections, open and lately ended, the newest first."""
        found = await self._gather_all("inspections", list[InspectionView], tenant=tenant)
        return Gathered(views_together(found.rows), found.silent)

    async def inspected(self, tenant: str, inspection: str, after: int, limit: int) -> Seen | None:
        """Messages of an inspection on any node; None if there is no such inspection. Raises as `end_session`."""
        asked = {"inspection": inspection, "after": str(after), "limit": str(limit)}
        found = await self._gather_all("inspected", list[Seen], tenant=tenant, **asked)
        if not found.rows and found.silent:
            raise nodes_unavailable(found.silent)
        return seen_together(found.rows, limit, found.silent)

    async def close_inspection(self, tenant: str, inspection: str, *, has_parts: bool = False) -> bool:
        """Closes an inspection on any node; False if none was open. `has_parts`: every node may have one.

        Raises:
            NodeUnavailable: a node that may have it, or a part of it, did not answer; what others have is closed.
        """
        told = await self._gather_all("close_inspection", list[bool], tenant=tenant, inspection=inspection)
        if told.silent and (has_parts or not any(told.rows)):
            raise nodes_unavailable(told.silent)
        return any(told.rows)

    async def activity(self, tenant: str | None, node: str, steps: int = STEPS) -> Shown | None:
        """The last quarter of an hour, or its last steps, of one node or of all (""); None if there is no such node."""
        asked = {"tenant": ALL if tenant is None else tenant, "steps": str(steps)}
        told = await self._gather("activity", list[NodeActivity], node, **asked)
        if node and not told.rows and not told.silent:
            return None
        return together(told.rows, told.silent, steps)

    async def problems(self, tenant: str | None) -> tuple[Sequence[Problem], Sequence[str]]:
        """What is wrong now, the worst first, and the silent nodes."""
        asked = "problems", list[Problem]
        if tenant is not None:
            told = await self._gather(*asked, tenant=tenant)
            return merged_problems(told.rows), told.silent
        # One that has lost Redis still answers, and knows why nobody hears of it.
        told, answers = await at_once(self._gather(*asked, tenant=ALL), self._ask_lost(*asked, tenant=ALL))
        others = of_others(self._own.status(), list(self._peers()), told.silent)
        found = [*told.rows, *others, *answers.rows, *self._lost.problems(answers.silent)]
        return merged_problems(found), told.silent

    async def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of a process on any node; None if there is no such process."""
        own = self._own.stderr(tenant, process, lines)
        if own is not None:
            return own
        asked = {"tenant": tenant, "process": process, "lines": str(lines)}
        found = await self._ask_all_others("stderr", list[list[str]], **asked)
        return found.rows[0] if found.rows else None

    async def check(self, spec: BackendSpec, limits: Limits, steps: Steps) -> CheckResult:
        """Checks a backend on this node (`check_backend`)."""
        return await self._own.check(spec, limits, steps)

    async def _merged(self, what: str, kind: type[list[Listing[R]]], tenant: str | None, window: Window) -> Listing[R]:
        found = await self._gather_all(what, kind, **_asked(tenant, window))
        return merged(found.rows, window, found.silent)

    async def _gather_all(self, what: str, kind: type[list[T]], /, **query: str) -> Gathered[T]:
        """As `_gather`, and the rows of nodes that have lost Redis and still answer: what they have goes on."""
        others = await self._ask_all_others(what, kind, **query)
        return Gathered([*answer_for(self._own, what, query), *others.rows], others.silent)

    async def _gather(self, what: str, kind: type[list[T]], only: str = "", /, **query: str) -> Gathered[T]:
        """The rows of all nodes, this one first; or those of `only` one."""
        others = await self._ask_others(what, kind, [each for each in self._peers() if only in ("", each.id)], **query)
        own = answer_for(self._own, what, query) if not only or only == self._own.status().id else []
        return Gathered([*own, *others.rows], others.silent)

    async def _ask_all_others(self, what: str, kind: type[list[T]], /, **query: str) -> Gathered[T]:
        """Nothing is expected of a node that has lost Redis: it may be dead."""
        found, theirs = await at_once(self._ask_others(what, kind, **query), self._ask_lost(what, kind, **query))
        return Gathered([*found.rows, *theirs.rows], found.silent)

    async def _ask_lost(self, what: str, kind: type[list[T]], /, **query: str) -> Gathered[T]:
        return await self._ask_others(what, kind, [each.node for each in self._lost.lately()], **query)

    async def _ask_others(
        self, what: str, kind: type[list[T]], nodes: Sequence[NodeRecord] | None = None, /, **query: str
    ) -> Gathered[T]:
        heard = {each.id for each in self._peers()}  # of others the problem `node_lost` tells
        found: list[T] = []
        silent: list[str] = []

        async def ask(node: NodeRecord) -> None:
            try:
                with anyio.fail_after(ANSWER_S):
                    found.extend(msgspec.json.decode(await self._ask(node, what, query), type=kind))
            except (GatewayError, TimeoutError, msgspec.DecodeError) as problem:
                silent.append(node.id)
                if node.id in heard:
                    why = str(problem) or "it does not answer"
                    log.warning("Node %s is missing from a list of all nodes: %s", node.id, why)

        async with anyio.create_task_group() as tasks:
            for node in self._peers() if nodes is None else nodes:
                tasks.start_soon(ask, node)
        return Gathered(found, sorted(silent))

    async def _ask(self, node: NodeRecord, what: str, query: dict[str, str]) -> bytes:
        asked = f"?{urlencode(query)}" if query else ""
        target = f"{OVERVIEW}{what}{asked}".encode()
        method = "POST" if what in _CHANGING else "GET"
        served = current.get()
        named = None if served is None else served.fields().get("request")
        headers = [(b"x-request-id", named.encode("ascii"))] if isinstance(named, str) else []
        response = await self._client.send(node, PeerRequest(method, target, headers, Word(_NOBODY, "")))
        try:
            if response.status != 200:
                raise GatewayError(f"status {response.status}")
            return await response.body(MAX_ANSWER_BYTES)
        finally:
            response.close()


def answer_for(own: NodeOverview, what: str, query: dict[str, str]) -> Any:
    """This node's rows, for its own AllNodes or another node's; None for an unknown question."""
    tenant = query.get("tenant", "")
    lists = {"sessions": own.sessions, "processes": own.processes, "failures": own.failures}
    if what in lists:
        return [lists[what](None if tenant == ALL else tenant, msgspec.convert(query, Window, strict=False))]
    if what in ("calls", "call_groups"):
        asked = msgspec.convert(query, CallWindow, strict=False)
        whose = None if tenant == ALL else tenant
        return [own.calls(whose, asked)] if what == "calls" else own.call_groups(whose, asked, query.get("by", ""))
    if what in ("use", "limits"):
        window = msgspec.convert(query, Window, strict=False)
        return [own.use(window) if what == "use" else own.limits_use(tenant)]
    if what in ("load", "sandbox"):
        return [own.load() if what == "load" else own.sandbox()]
    if what == "backends":
        return own.backends(tenant, query.get("first", ""), query.get("last", ""))
    if what == CREDENTIAL:
        return own.credential_uses((tenant, query.get("issuer", ""), query.get("subject", "")))
    if what in ("activity", "problems"):
        reach = None if tenant == ALL else tenant
        steps = int(query.get("steps", STEPS))
        return [own.activity(reach, steps)] if what == "activity" else own.problems(reach)
    if what == "end":
        return [own.end_session(tenant, query.get("session", ""))]
    if what in ("restart", "stderr"):
        process, lines = query.get("process", ""), int(query.get("lines", "0"))
        found = own.restart_process(tenant, process) if what == "restart" else own.stderr(tenant, process, lines)
        return [] if found is None else [found]
    return None if own.inspecting is None else _of_inspections(own.inspecting, what, tenant, query)


def _of_inspections(inspecting: Inspecting, what: str, tenant: str, query: dict[str, str]) -> Any:
    named = query.get("inspection", "")
    if what == "inspections":
        return inspecting.of(tenant)
    if what == "inspect":
        opened = inspecting.open(tenant, InspectionAsked.said(query))
        return [] if opened is None else [opened]
    if what == "inspected":
        seen = inspecting.seen(tenant, named, int(query.get("after", "0")), int(query.get("limit", "0")))
        return [] if seen is None else [seen]
    if what == "confirm_inspection":
        view = inspecting.confirm(tenant, named)
        return [] if view is None else [view]
    return [inspecting.close(tenant, named)] if what == "close_inspection" else None


def _asked(tenant: str | None, window: Window) -> dict[str, str]:
    return {"tenant": ALL if tenant is None else tenant, **{name: str(each) for name, each in asdict(window).items()}}
