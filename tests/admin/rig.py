"""The REST API on a real database, without a gateway: what the tests of this folder talk to."""

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from inspect import isawaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import anyio
import httpx2
import msgspec
from fastapi import FastAPI
from starlette.datastructures import State

from app.admin.context import AdminContext
from app.admin.idempotency import AnsweredOnce
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.authorization.clients import ClientSecrets
from app.auth.issuer_check import IssuerCheck
from app.auth.jwks import KeySets
from app.auth.outbound import Outbound
from app.auth.outbound_urls import Policy
from app.auth.tokens import Tokens
from app.backends.catalog.entries import Decision, Entry
from app.backends.catalog.knowledge import Knowledge
from app.backends.checks.backend_check import CheckResult
from app.backends.checks.steps import Steps
from app.backends.connections.toolsets import Toolsets
from app.backends.images.engine import Image
from app.backends.images.images import Images
from app.backends.openapi.apis import Apis
from app.backends.openapi.documents import Documents
from app.backends.packages.packages import Outdated
from app.backends.packages.recognition import NotInstallable, image_runner_of, line_of, recognised
from app.cluster._affected import affected_by
from app.cluster.node_status.activity import Moment, NodeActivity
from app.cluster.node_status.inspection_views import InspectionView, Opened, Seen, view_of
from app.cluster.node_status.limits_use import LimitsUse
from app.cluster.node_status.listing import NO_USE, Gathered, Listing, Use, Window
from app.cluster.node_status.problems.problem import Problem, for_tenant
from app.cluster.node_status.process_restart import Restarted
from app.cluster.node_status.views import (
    AddressUse,
    BackendRunning,
    FailureView,
    NodeLoad,
    NodeStatus,
    ProcessView,
    SessionView,
    TenantUse,
)
from app.domain import ApiKey, BackendSpec, Limits, Member, Network, Package, Tenant, Toolset
from app.domain.resources.guides import GUIDES, Guide
from app.domain.resources.recipes import RECIPES, Method, Recipe, Step
from app.errors import BackendExited, Conflict, InvalidRequest, UpstreamFailed
from app.http import health
from app.jail.sandbox.report import ProfileView, SandboxView
from app.limits.caller_limits import CallerLimits
from app.limits.caller_rates import RateLimiter
from app.limits.loop_shares import LoopShares
from app.node.application import build_api
from app.processes.denials import Denial
from app.protocol.toolset.offer import Known, Offer
from app.sessions.directory import BackendDirectory
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.connections import ConnectionRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.people import PersonRepository
from app.storage.access.switches import SwitchRepository
from app.storage.audit import Act
from app.storage.audit_queries import AuditLog, Which
from app.storage.backends import BackendRepository
from app.storage.declared import StoredResources
from app.storage.due import DueRepository
from app.storage.engine import Database
from app.storage.idempotency import IdempotencyRepository
from app.storage.tenants import TenantRepository
from app.storage.tools.approvals import Approvals, Judgement
from app.storage.tools.catalog import CatalogRepository
from app.storage.tools.toolsets import ToolsetRepository
from app.telemetry.capture.inspection import About
from app.telemetry.capture.inspections import Inspections
from app.telemetry.capture.masking import Mask
from app.telemetry.metrics import Metrics
from tests.auth.test_jwks import Host
from tests.databases import SEALER, migrate

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = Offer(msgspec.Raw(b"{}"))
TWICE = Method(((Step("one", "echo_say"),), (Step("two", "echo_say"),)))


@dataclass
class Node:
    """Runs nothing; shows what it was given, by tenant."""

    running: dict[str, list[SessionView]] = field(default_factory=dict)
    started: dict[str, list[ProcessView]] = field(default_factory=dict)
    ran: dict[str, list[BackendRunning]] = field(default_factory=dict)
    used: list[TenantUse] = field(default_factory=list)
    came: dict[tuple[str, str, str], list[AddressUse]] = field(default_factory=dict)
    failed: list[FailureView] = field(default_factory=list)
    taken: dict[str, LimitsUse] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    did: dict[str | None, list[Moment]] = field(default_factory=dict)  # by tenant
    wrong: list[Problem] = field(default_factory=list)
    check_result: CheckResult = field(default_factory=CheckResult)
    checked: list[BackendSpec] = field(default_factory=list)
    looked: Inspections = field(default_factory=lambda: Inspections(8 << 20))
    refusal: Opened | None = None  # of an inspection

    def status(self) -> NodeStatus:
        return NodeStatus("n1", "test", AT, len(self.running), len(self.started), False)

    @property
    def ids(self) -> list[str]:
        return ["n1"]

    async def ask(self, question: Any, *asked: Any) -> Any:
        """Answers as one node, by the method with the name of the question; a test may put a coroutine there."""
        told = getattr(self, question.name)(*asked)
        answer = await told if isawaitable(told) else told
        return question.merge(Gathered([answer], self.silent, self.ids), *asked)

    async def statuses(self) -> list[NodeStatus]:
        load = NodeLoad("n1", "host", 1, 0.0, 1, 2, 3, 4, 5, 6, 7, 8.0, None)
        return [replace(self.status(), url="http://10.0.0.1:8080", load=load)]

    async def problems(self, tenant: str | None) -> Gathered[Problem]:
        return Gathered(for_tenant(self.wrong, tenant), self.silent)

    def sandbox(self) -> SandboxView:
        kinds: tuple[Network, ...] = ("none", "web", "host")
        views = {kind: ProfileView(1, "kernel", kind, ["files"], {"memory": "no control groups"}) for kind in kinds}
        return SandboxView("n1", views)

    def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        found = [view for name, views in self.running.items() for view in views if tenant in (None, name)]
        chosen = [view for view in found if window.only in ("", view.id)]
        return self._listing(chosen, window)

    def _listing(self, found: list[Any], window: Window) -> Listing[Any]:
        return Listing(window.first(found, lambda row: row.position(window.sort)), len(found))

    def activity(self, tenant: str | None, node: str, steps: int) -> NodeActivity | None:
        return NodeActivity("n1", 0, 180, self.did.get(tenant, []), 8 << 30) if node in ("", "n1") else None

    def calls(self, tenant: str | None, window: Window) -> Listing[Any]:
        return Listing([], 0)

    def call_groups(self, tenant: str | None, window: Window, by: str) -> list[Any]:
        return []

    def callers(self, tenant: str | None, window: Window) -> Listing[Any]:
        return Listing([], 0)

    def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        return self._listing([each for each in self.failed if tenant in (None, each.tenant)], window)

    def use(self, _tenant: str | None, window: Window) -> Listing[TenantUse]:
        return Listing(self.used, len(self.used))

    def limits_use(self, tenant: str) -> LimitsUse:
        return self.taken.get(tenant, LimitsUse())

    def end_session(self, tenant: str, session: str) -> bool:
        before = self.running.get(tenant, [])
        self.running[tenant] = [view for view in before if view.id != session]
        return len(before) != len(self.running[tenant])

    def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        found = [view for name, views in self.started.items() for view in views if tenant in (None, name)]
        return self._listing([view for view in found if window.only in ("", view.id)], window)

    def restart_process(self, tenant: str, process: str) -> Restarted | None:
        found = [view for view in self.started.get(tenant, []) if view.id == process]
        self.started[tenant] = [view for view in self.started.get(tenant, []) if view.id != process]
        return Restarted(process, found[0].backend, "n1", found[0].state, 1, 2) if found else None

    def backends(self, tenant: str, first: str, last: str) -> list[BackendRunning]:
        return [each for each in self.ran.get(tenant, []) if first <= each.name <= last]

    def credential_uses(self, identity: tuple[str, str, str]) -> list[AddressUse]:
        return self.came.get(identity, [])

    def inspect_session(self, about: About, _nodes: Sequence[str]) -> Opened | None:
        found = next((view for view in self.running.get(about.tenant, []) if view.id == about.session), None)
        if found is None:
            return None
        return self.inspect_backend(replace(about, backend=found.backend, transport=found.transport), ())

    def inspect_backend(self, about: About, _nodes: Sequence[str]) -> Opened:
        return self.refusal or Opened(view_of(self.looked.open(about, Mask(), lambda member: ()), "n1"))

    def confirm_inspection(self, tenant: str, inspection: str) -> InspectionView | None:
        found = self.looked.find(tenant, inspection)
        return None if found is None or not found.is_open else view_of(found, "n1")

    def inspections(self, tenant: str, _window: Window) -> list[InspectionView]:
        return [view_of(each, "n1") for each in self.looked.of(tenant)]

    def inspected(self, tenant: str, inspection: str, after: int, limit: int) -> Seen | None:
        found = self.looked.find(tenant, inspection)
        return None if found is None else Seen(view_of(found, "n1"), list(found.after(after))[:limit])

    def close_inspection(self, tenant: str, inspection: str) -> bool:
        ended = self.looked.end_where(
            lambda each: (each.about.tenant, each.about.id) == (tenant, inspection), AT.timestamp(), "closed"
        )
        return ended > 0

    def stderr(self, tenant: str, process: str, lines: int) -> list[str] | None:
        known = any(view.id == process for view in self.started.get(tenant, []))
        return ["first", "second", "third"][-lines:] if known else None

    def denials(self, tenant: str, process: str) -> list[Denial] | None:
        known = any(view.id == process for view in self.started.get(tenant, []))
        return [Denial("file", "/srv/a", AT)] if known else None

    async def check(self, spec: BackendSpec, limits: Limits, steps: Steps) -> CheckResult:
        self.checked.append(spec)
        for each in self.check_result.steps:
            steps.begin(each.name)
            steps.took(each.name, each.ms / 1000)
        return self.check_result

    def add_session(self, tenant: str, name: str, use: Use = NO_USE) -> None:
        view = SessionView(
            name, tenant, "echo", tenant, "key", "AAAAAAAA", "cursor", "1.2", "192.0.2.7", "streamable", "open",
            "2025-11-25", AT, 2.0, 1.0, "p1", "n1", use,
        )  # fmt: skip
        self.running.setdefault(tenant, []).append(view)

    def add_process(self, tenant: str, name: str, use: Use = NO_USE) -> None:
        view = ProcessView(name, tenant, "echo", 1234, "leased", AT, 1.0, ("s1",), 1, 3, "n1", use)
        self.started.setdefault(tenant, []).append(view)


@dataclass
class Offers:
    """What backends say that they offer, without starting them."""

    audit: AuditLog
    known: dict[tuple[str, str], Offer] = field(default_factory=dict)
    judged: list[tuple[str, str]] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    problems: dict[tuple[str, str], str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)  # of each tool, as it is stored
    newer: dict[tuple[str, str], Offer] = field(default_factory=dict)  # of other versions
    waiting: dict[str, str] = field(default_factory=dict)  # tools that are withheld, and why

    async def of_members(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        return self.cached(tenant, backends)

    def cached(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        found = [self.known.get((tenant, backend)) for backend in backends]
        return [None if offer is None else Known(offer) for offer in found]

    async def offer_of(self, spec: BackendSpec, limits: Limits) -> Offer:
        assert spec.package is not None
        if spec.package.version == "4":
            raise BackendExited("exit status 1")
        return self.newer.get(spec.key, self.known.get(spec.key, NOTHING))

    async def note(self, spec: BackendSpec, offer: Offer) -> None:
        self.known[spec.key] = offer

    async def reread(self, key: tuple[str, str]) -> None:
        pass

    async def withheld(self, key: tuple[str, str], offer: Offer) -> dict[str, str]:
        return self.waiting

    async def aside(self, tenant: str, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def changed_elsewhere(self, key: tuple[str, str], *, is_shown: bool) -> None:
        """There are no others."""

    async def approvals(self, key: tuple[str, str]) -> Approvals:
        return Approvals("off", "accept", {})

    async def decide(self, key: tuple[str, str], decision: Decision, *, act: Act | None = None) -> None:
        self.decided.append(decision)
        assert act is not None
        await self.audit.append(act)

    async def under(
        self, key: tuple[str, str], policy: str, minor: str, store: Callable[[Judgement], Awaitable[BackendSpec]]
    ) -> BackendSpec:
        self.judged.append(key)
        row = (await CatalogRepository(self.audit._database).get(key[0], [key[1]])).get(key[1])
        said = Approvals(policy, minor, {})
        return await store(Judgement({}, said) if row is None else Judgement(row.pins, said, row.revision))

    def problem(self, key: tuple[str, str]) -> str | None:
        return self.problems.get(key)

    def used(self, spec: BackendSpec) -> None:
        """Nothing runs."""

    def doubt(self, key: tuple[str, str]) -> None:
        """Nothing runs."""

    async def ask(self, key: tuple[str, str]) -> None:
        self.asked.append(key)

    async def entries(self, tenant: str, backends: Sequence[str]) -> dict[str, Entry]:
        found = {name: self.known.get((tenant, name)) for name in backends}
        return {name: Entry("d", 1, offer, AT, AT, self.found) for name, offer in found.items() if offer is not None}


@dataclass
class Ready:
    """A node's parts, as they are set."""

    parts: dict[str, str] = field(default_factory=lambda: {"database": "ok"})
    away: dict[str, str] = field(default_factory=dict)

    async def check(self) -> dict[str, str]:
        return self.parts

    def degraded(self) -> dict[str, str]:
        return self.away


@dataclass
class Rig:
    """An API with a key of every kind."""

    app: FastAPI
    admin: AdminContext
    heard: list[tuple[str, ...]]  # what nodes would look at, after changes
    ready: Ready
    node: Node
    idp: Host  # of every issuer
    offers: Offers
    root: str = ""

    async def key(self, tenant: str, *scopes: str) -> str:
        """Makes a key; returns its text."""
        new = self.admin.key_maker.make()
        record = ApiKey(new.id, tenant, "", new.digest, 1, frozenset(scopes), datetime.now(UTC))
        await self.admin.keys.create(tenant, record)
        return new.text

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        client: tuple[str, int] = ("127.0.0.1", 1234),
    ) -> httpx2.Response:
        """One request, by the platform administrator unless a key is given ("" is none)."""
        sent = {"Authorization": f"Bearer {self.root if key is None else key}"} if key != "" else {}
        if body is not None or content is not None:
            sent["Content-Type"] = "application/json"
            content = content if content is not None else json.dumps(body).encode()
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False, client=client)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return await http.request(method, path, content=content, headers={**sent, **(headers or {})})

    async def trail(self, tenant: str | None = None) -> list[Act]:
        """The audit trail, oldest first."""
        return [entry.act for entry in reversed(await self.admin.audit.list(Which(tenant), limit=1000))]


@cache
def shared_api() -> FastAPI:
    """Built once: that, and what it works out of a route when it is first asked for, take longer than most tests."""
    return build_api()


def _own_api() -> FastAPI:
    """The same application for everybody, working on what its caller puts into `state`. Nobody changes its routes."""
    api = copy.copy(shared_api())
    api.state = State()
    return api


async def fill(database: Database) -> None:
    """Tenants acme and zenith, each with a backend `echo`, and a toolset `all` that has it, a recipe and a guide."""
    toolset, stored = Toolset(members=(Member("echo", "echo_"),)), StoredResources(database)
    for name in ("acme", "zenith"):
        await TenantRepository(database).create(Tenant(name))
        await BackendRepository(database, SEALER).create(
            name, BackendSpec(name, "echo", "/bin/cat", env={"TOKEN": "s3cret"})
        )
        await ToolsetRepository(database).create(name, BackendSpec(name, "all", "", toolset=toolset))
        await stored.of(RECIPES).create(name, twice())
        await stored.of(GUIDES).create(name, style(f"Of {name}."))


@cache
def filled_file() -> bytes:
    """What stands in a filled SQLite database: filling it once is enough for all."""

    async def make(url: str) -> None:
        database = Database(url)
        await fill(database)
        await database.aclose()

    with TemporaryDirectory() as folder:
        anyio.run(make, migrate(f"sqlite:///{folder}/test.db"))
        return Path(folder, "test.db").read_bytes()


class HasEvery:
    """In the place of an Engine: each image is there."""

    def image(self, reference: str) -> Image:
        return Image("a" * 64, ())


class Installed:
    """In the place of Packages: each package is there, in the version 1.0.0, and each image."""

    images = Images(cast("Any", HasEvery()))

    async def resolved(self, spec: BackendSpec, known: BackendSpec | None = None) -> BackendSpec:
        if image_runner_of(line_of(spec.command, spec.args)) is not None:
            return await self.images.resolved(spec, known)
        try:
            request = recognised(spec.command, spec.args)
        except NotInstallable as error:
            raise InvalidRequest(str(error), field="command") from None
        if request is None:
            return replace(spec, package=None)
        package = Package(request.registry, request.name, "1.0.0", request.program or request.name, "0" * 64)
        return replace(spec, package=package)

    async def updated(self, spec: BackendSpec, version: str | None) -> BackendSpec:
        """To 2.0.0 by default. The version 3 does not exist, and 4 cannot be started."""
        assert spec.package is not None
        if version == "3":
            raise InvalidRequest("there is no such version", field="to")
        return replace(spec, package=replace(spec.package, version=version or "2.0.0", lock="2" * 64))

    async def outdated(self, specs: Iterable[BackendSpec]) -> list[Outdated]:
        """All have a newer version, but for those whose registry is away."""
        found = [(each.name, each.package) for each in specs if each.package is not None]
        return [
            Outdated(name, package, problem="ECONNREFUSED registry.internal:443")
            if "away" in package.name
            else Outdated(name, package, newest="2.0.0")
            for name, package in found
        ]


@asynccontextmanager
async def open_rig(url: str) -> AsyncIterator[Rig]:
    """On a database that is empty, or filled."""
    database, metrics, maker = Database(url), Metrics("test"), KeyMaker(b"s" * 32)
    keys = ApiKeyRepository(database)
    switches = SwitchRepository(database)
    authenticator = Authenticator(ApiKeys(keys, maker), metrics.auth_failures, switches=switches)
    tenants, backends, toolsets = (
        TenantRepository(database),
        BackendRepository(database, SEALER),
        ToolsetRepository(database),
    )
    stored = StoredResources(database)
    guides, recipes = stored.of(GUIDES), stored.of(RECIPES)
    directory, offers = BackendDirectory(backends.get, tenants.get), Offers(AuditLog(database))
    app, ready, node = _own_api(), Ready(), Node()
    issuers, sealer, idp = IssuerRepository(database), SEALER, Host()
    check = IssuerCheck(Tokens(issuers, sealer, KeySets(idp.fetch)), idp.fetch, switches.off)
    context = AdminContext(
        tenants=tenants,
        backends=backends,
        toolsets=toolsets,
        stored=stored,
        offered=Toolsets(
            directory.find, offers, Knowledge(guides, recipes), metrics, CallerLimits(metrics.rate_limited)
        ),
        catalog=offers,
        packages=Installed(),
        keys=keys,
        key_maker=maker,
        issuers=issuers,
        connections=ConnectionRepository(database),
        people=PersonRepository(database),
        client_secrets=ClientSecrets(b"s" * 32),
        sealer=sealer,
        check_url=Outbound(()).check,
        upstream_policy=Policy((), "TRUNKLINE_UPSTREAM_ALLOW"),
        documents=Documents(_nothing_there, Apis(backends.api)),
        issuer_check=check,
        authenticator=authenticator,
        now=_now,
        audit=AuditLog(database),
        node=cast("Any", node),
        archive=None,
        check=lambda *asked: node.check(*asked),  # noqa: PLW0108 - tests replace the method
        rates=RateLimiter("rest", metrics.rate_limited),
        switches=switches,
        due=DueRepository(database),
        shares=LoopShares(metrics),
        answered_once=AnsweredOnce(IdempotencyRepository(database), b"s" * 32, _now),
    )
    app.state.admin_context = context
    app.state.health = health.Health(ready, metrics.registry)
    with suppress(Conflict):  # they are there
        await fill(database)
    heard = list[tuple[str, ...]]()

    async def committed(acts: Sequence[Act]) -> None:
        heard.extend((affected.kind, *affected.about) for affected in filter(None, map(affected_by, acts)))
        authenticator.forget_everything()

    database.after_commits(committed)
    rig = Rig(app, context, heard, ready, node, idp, offers)
    rig.root = await rig.key("default", "platform:admin")
    try:
        yield rig
    finally:
        await database.aclose()


def twice() -> Recipe:
    return Recipe(name="twice", toolset="all", input_schema={"type": "object"}, method=TWICE, changed_at=_now())


def style(text: str) -> Guide:
    return Guide(name="style", title="Style", description="How to write", text=text, changed_at=_now())


async def _nothing_there(key: tuple[str, str], url: str) -> bytes:
    raise UpstreamFailed("far.example answered HTTP 404")


def _now() -> datetime:
    return datetime.now(UTC)
