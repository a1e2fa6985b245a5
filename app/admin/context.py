"""What the endpoints work with, and the permission check that each of them starts with."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from app.admin.idempotency import AnsweredOnce
from app.auth.api_keys import KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.authorization.clients import ClientSecrets
from app.auth.issuer_check import IssuerCheck
from app.auth.outbound_urls import Policy
from app.auth.policy import has_scope, is_platform_admin, is_platform_scope, may_grant, may_see
from app.auth.sealing import Sealer
from app.backends.catalog.entries import Decision, Entry
from app.backends.checks.backend_check import CheckResult
from app.backends.checks.steps import Steps
from app.backends.openapi.documents import Documents
from app.backends.packages.packages import Outdated
from app.cluster.node_status.listing import Gathered
from app.cluster.node_status.problems.problem import Problem
from app.cluster.node_status.question import Nodes
from app.cluster.node_status.views import NodeStatus
from app.domain import DEFAULT_TENANT, BackendSpec, Limits, Principal, Scope, is_name
from app.errors import Conflict, Forbidden, InvalidRequest, NotFound
from app.http.dependencies import CurrentPrincipal, authenticate_again
from app.http.request_ids import named
from app.limits.caller_rates import RateLimiter
from app.limits.loop_shares import LoopShares
from app.protocol.search.index import Hit
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Offer
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.connections import ConnectionRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.people import PersonRepository
from app.storage.access.switches import SwitchRepository
from app.storage.audit import Act, Change
from app.storage.audit_queries import AuditLog
from app.storage.backends import BackendRepository
from app.storage.declared import StoredResources
from app.storage.due import DueRepository
from app.storage.tenants import TenantRepository
from app.storage.tools.approvals import Approvals, Judgement
from app.storage.tools.toolsets import ToolsetRepository
from app.telemetry.call_history.kept import CallArchive

T = TypeVar("T")


class NodeView(Nodes, Protocol):
    """What runs on all nodes (`cluster.all_nodes.AllNodes`). Where a question names a tenant, None stands for all."""

    @property
    def ids(self) -> Sequence[str]: ...
    async def statuses(self) -> Sequence[NodeStatus]: ...
    async def problems(self, tenant: str | None) -> Gathered[Problem]: ...


class Offered(Protocol):
    """What toolsets show (`connections.toolsets.Toolsets`)."""

    async def listing(self, spec: BackendSpec, *, is_searched: bool = False) -> ToolsetListing:
        """What this toolset shows now. Members that nobody has asked yet are asked. Raises StorageUnavailable."""

    async def everything(self, tenant: str, offers: Mapping[str, Offer]) -> ToolsetListing:
        """All of this, by backend, to be searched."""

    async def search(self, tenant: str, listing: ToolsetListing, query: str, limit: int) -> Sequence[Hit]:
        """What a query means of it."""

    def problem(self, key: tuple[str, str]) -> str | None:
        """Why a backend did not say what it offers, in words."""


class CatalogView(Protocol):
    """What backends offer (`catalog.catalog.Catalog`)."""

    async def entries(self, tenant: str, backends: Sequence[str]) -> Mapping[str, Entry]:
        """What is known of these backends; asks none of them. Raises StorageUnavailable."""

    async def ask(self, key: tuple[str, str]) -> None:
        """Asks a backend now, and waits for what it offers, though not for long."""

    async def offer_of(self, spec: BackendSpec, limits: Limits) -> Offer:
        """What a version of a backend offers that nobody has stored. Raises GatewayError: it does not say."""

    async def note(self, spec: BackendSpec, offer: Offer) -> None:
        """Stores what the backend offers. Raises GatewayError: it could not be stored."""

    def used(self, spec: BackendSpec) -> None:
        """Asks this version of a backend soon, if it is known and starts something else than the one that was asked."""

    async def approvals(self, key: tuple[str, str]) -> Approvals:
        """What persons have said of the backend's tools."""

    async def withheld(self, key: tuple[str, str], offer: Offer) -> Mapping[str, str]:
        """Which tools of what a process offers are neither shown nor called, and why."""

    async def reread(self, key: tuple[str, str]) -> None:
        """Something is stored of the backend that toolsets see."""

    async def aside(self, tenant: str, work: Callable[..., T], *args: Any) -> T:
        """Does in a thread what takes long with the tenant's definitions, one at a time for each tenant."""

    async def decide(self, key: tuple[str, str], decision: Decision, *, act: Act | None = None) -> None:
        """Approves or rejects tools as they are offered. Raises Conflict, InvalidRequest."""

    async def under(
        self, key: tuple[str, str], policy: str, minor: str, store: Callable[[Judgement], Awaitable[BackendSpec]]
    ) -> BackendSpec:
        """The backend's policy for its tools becomes this one, by `store`, with what follows from it."""


class PackageView(Protocol):
    """What commands such as `npx`, `uvx` and `docker run` name (`packages.packages.Packages`)."""

    async def resolved(self, spec: BackendSpec, known: BackendSpec | None = None) -> BackendSpec:
        """The backend with its package, if it names one: installed here. Raises InvalidRequest, QuotaExceeded."""

    async def updated(self, spec: BackendSpec, version: str | None) -> BackendSpec:
        """The backend with another version of its package: installed here. Raises InvalidRequest, QuotaExceeded."""

    async def outdated(self, specs: Iterable[BackendSpec]) -> Sequence[Outdated]:
        """Those of these backends whose package has a newer version, and those of which nobody knows."""


ALL = "-"  # instead of a tenant's name in a path: all tenants


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What all endpoints work with. `create_app` puts it on `app.state.admin_context`."""

    tenants: TenantRepository
    backends: BackendRepository
    toolsets: ToolsetRepository
    stored: StoredResources
    offered: Offered
    catalog: CatalogView
    packages: PackageView
    keys: ApiKeyRepository
    key_maker: KeyMaker
    issuers: IssuerRepository
    connections: ConnectionRepository
    people: PersonRepository
    client_secrets: ClientSecrets
    sealer: Sealer
    check_url: Callable[[str], object]  # raises UrlRefused for a URL that would not be fetched
    upstream_policy: Policy  # for the URL of a backend
    documents: Documents
    issuer_check: IssuerCheck
    authenticator: Authenticator
    now: Callable[[], datetime]
    audit: AuditLog
    node: NodeView
    archive: CallArchive | None  # of calls
    check: Callable[[BackendSpec, Limits, Steps], Awaitable[CheckResult]]  # of a backend, on this node
    rates: RateLimiter
    answered_once: AnsweredOnce
    switches: SwitchRepository
    due: DueRepository
    shares: LoopShares
    under_way: set[tuple[str, str]] = field(default_factory=set)  # see `Access.alone`


@dataclass(frozen=True, slots=True)
class Access:
    """A request that may do what it asks for, in this tenant."""

    tenant: str
    principal: Principal
    admin: AdminContext
    request_id: str
    ask_again: Callable[[], Awaitable[Principal]]  # as `http.dependencies.authenticate_again`

    @property
    def reach(self) -> str | None:
        """The tenant, or None for all tenants."""
        return None if self.tenant == ALL else self.tenant

    def act(
        self, action: str, target: str, detail: str = "", *, tenant: str | None = None, changes: tuple[Change, ...] = ()
    ) -> Act:
        """What this request does, for the audit trail. It must not contain secrets."""
        concerned = self.tenant if tenant is None else tenant
        now = self.admin.now()
        return Act(concerned, self.principal.identity, action, target, now, self.request_id, detail, changes)

    async def require_still(self, scope: Scope) -> None:
        """Asks the database, after a wait, whether the credential is still valid and has this scope in the tenant.

        Raises:
            Unauthenticated, Disabled: it is not.
            Forbidden: it has not.
        """
        principal = await self.ask_again()
        if principal.identity != self.principal.identity or not has_scope(principal, self.tenant, scope):
            raise Forbidden([scope], held=principal.scopes)

    def require_grant(self, scopes: Collection[str], field: str) -> None:
        """Checks that this principal may grant the scopes; `field` of the body has them.

        Raises:
            InvalidRequest: the tenant cannot have such scopes.
            Forbidden: the principal may not grant them.
        """
        if self.tenant != DEFAULT_TENANT and any(map(is_platform_scope, scopes)):
            raise InvalidRequest("platform scopes exist in the tenant `default` only", field=field)
        if not may_grant(self.principal, self.tenant, scopes):
            raise Forbidden(sorted(scopes))

    @contextmanager
    def alone(self, target: str, refusal: str) -> Iterator[None]:
        """Around a check of this target.

        Raises:
            Conflict: with this message, if another check of it is under way.
        """
        key = (self.tenant, target)
        if key in self.admin.under_way:
            raise Conflict(refusal)
        self.admin.under_way.add(key)
        try:
            yield
        finally:
            self.admin.under_way.discard(key)


def _access(tenant: str, principal: Principal, request: Request) -> Access:
    ask_again = partial(authenticate_again, request)
    return Access(tenant, principal, request.app.state.admin_context, named(request.scope).request, ask_again)


def _needs(
    scope: Scope, *, or_all: bool = False, named: Scope | None = None
) -> Callable[[Request, Principal], Awaitable[Access]]:
    """A refusal names this scope, or another one that always helps (`named`). With `or_all`, platform administrators
    may name all tenants, as `-`; nobody else has a tenant of that name."""

    async def check(request: Request, principal: CurrentPrincipal) -> Access:
        tenant = request.path_params.get("tenant", DEFAULT_TENANT)
        if or_all and tenant == ALL and is_platform_admin(principal):
            return _access(ALL, principal, request)
        # A tenant of others is answered like one that does not exist, before anything is looked up.
        if not may_see(principal, tenant) or not is_name(tenant):
            raise NotFound("Tenant not found")
        # Within one's own tenant, the answer says which scope is missing.
        if not has_scope(principal, tenant, scope):
            raise Forbidden([named or scope], held=principal.scopes)
        access = _access(tenant, principal, request)
        await access.admin.tenants.get(tenant)  # a deleted tenant's keys may still be remembered
        return access

    return check


async def _platform(request: Request, principal: CurrentPrincipal) -> Access:
    if not is_platform_admin(principal):
        raise Forbidden([Scope.PLATFORM_ADMIN], held=principal.scopes)
    return _access(DEFAULT_TENANT, principal, request)


async def _of_tenant(request: Request, principal: CurrentPrincipal) -> Access:
    """Everybody of the tenant; what they see is their own, unless a scope says otherwise."""
    tenant = request.path_params.get("tenant", DEFAULT_TENANT)
    if not may_see(principal, tenant) or not is_name(tenant):
        raise NotFound("Tenant not found")
    access = _access(tenant, principal, request)
    await access.admin.tenants.get(tenant)
    return access


async def who_asks(request: Request, principal: CurrentPrincipal) -> Principal:
    """In its own tenant, or where it may see the tenant; without one in the path, wherever it is from."""
    tenant = request.path_params.get("tenant", principal.tenant)
    if not may_see(principal, tenant) or not is_name(tenant):
        raise NotFound("Tenant not found")
    return principal


WhoAsks = Annotated[Principal, Depends(who_asks)]  # no permission is needed to know oneself
Platform = Annotated[Access, Depends(_platform)]  # for what belongs to no tenant
MayRead = Annotated[Access, Depends(_needs(Scope.TENANT_READ))]
OfTenant = Annotated[Access, Depends(_of_tenant)]
MayReadOfAll = Annotated[Access, Depends(_needs(Scope.TENANT_READ, or_all=True))]
MayAudit = Annotated[Access, Depends(_needs(Scope.AUDIT_READ))]
MayManage = Annotated[Access, Depends(_needs(Scope.TENANT_ADMIN))]
# What platform administrators may always do, and administrators of the tenant with some objects.
MayPerhapsManage = Annotated[Access, Depends(_needs(Scope.TENANT_ADMIN, named=Scope.PLATFORM_ADMIN))]
# Registering a command is permission to execute code: for platform administrators only.
MayRegister = Annotated[Access, Depends(_needs(Scope.PLATFORM_ADMIN))]
