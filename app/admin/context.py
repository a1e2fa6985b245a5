"""What the endpoints work with, and the one check that each of them starts with."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Protocol

from fastapi import Depends, Request

from app.admin.idempotency import AnsweredOnce
from app.admin.node import NodeView
from app.auth import Authenticator, KeyMaker
from app.auth.issuer_check import IssuerCheck
from app.auth.policy import has_scope, is_platform_admin, may_see
from app.auth.sealing import Sealer
from app.domain import DEFAULT_TENANT, BackendSpec, Principal, Scope, Tenant, is_name
from app.errors import Disabled, Forbidden, NotFound
from app.http.dependencies import CurrentPrincipal
from app.limits.rate_limiter import RateLimiter
from app.storage import ApiKeyRepository, BackendRepository, TenantRepository
from app.storage.audit import AuditLog
from app.storage.audit_act import Act, Change
from app.storage.issuers import IssuerRepository
from app.storage.switches import SwitchRepository


class NodeEffects(Protocol):
    """Hears of stored changes. The methods start what has to be done and return at once; they do not raise."""

    def tenant_changed(self, tenant: Tenant) -> None:
        """Its limits are others now, or it is switched off, or on again."""

    def tenant_removed(self, tenant: str) -> None:
        """It is gone with its backends and keys: end its sessions and processes."""

    def backend_changed(self, spec: BackendSpec) -> None:
        """It is new, or something about it is: start nothing any more from older versions."""

    def backend_removed(self, key: tuple[str, str]) -> None:
        """It is gone: end its sessions and processes."""

    def backend_restarted(self, key: tuple[str, str]) -> None:
        """Nothing is stored, but its sessions end, and its warm processes are replaced."""

    def key_revoked(self, identity: tuple[str, str, str]) -> None:
        """Its holder is nobody any more: end the sessions. The authenticator has forgotten it already."""

    def principal_changed(self, identity: tuple[str, str, str], off: Disabled | None) -> None:
        """A key or a principal is switched `off`: end its sessions; or it is on again."""

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """It is new, changed or gone: end the sessions of its principals. The authenticator has forgotten them."""


ALL = "-"  # instead of a tenant's name in a path: all tenants


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Built by `main.py`, found on `app.state.admin`."""

    tenants: TenantRepository
    backends: BackendRepository
    keys: ApiKeyRepository
    key_maker: KeyMaker
    authenticator: Authenticator
    effects: NodeEffects
    now: Callable[[], datetime]
    audit: AuditLog
    node: NodeView
    rates: RateLimiter
    answered_once: AnsweredOnce
    switches: SwitchRepository
    checks_under_way: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class IssuerContext:
    """What the endpoints of issuers need beside that; built by `main.py`, found on `app.state.issuers`.

    `check_url` raises UrlRefused for what would not be fetched.
    """

    repository: IssuerRepository
    sealer: Sealer
    check_url: Callable[[str], object]
    check: IssuerCheck
    under_way: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def checking(self, tenant: str, what: str) -> Iterator[bool]:
        """Around a look at other people's hosts. False: the same is being looked at already."""
        if (tenant, what) in self.under_way:
            yield False
            return
        self.under_way.add((tenant, what))
        try:
            yield True
        finally:
            self.under_way.discard((tenant, what))


@dataclass(frozen=True, slots=True)
class Access:
    """A request that may do what it asks for, in this tenant."""

    tenant: str
    principal: Principal
    admin: AdminContext
    request_id: str

    @property
    def reach(self) -> str | None:
        """The tenant, or None for all tenants."""
        return None if self.tenant == ALL else self.tenant

    def act(
        self, action: str, target: str, detail: str = "", *, tenant: str | None = None, changes: tuple[Change, ...] = ()
    ) -> Act:
        """What this request does, for the audit trail. Nothing secret goes in here."""
        concerned = self.tenant if tenant is None else tenant
        now = self.admin.now()
        return Act(concerned, self.principal.identity, action, target, now, self.request_id, detail, changes)


def _needs(scope: Scope) -> Callable[[Request, Principal], Awaitable[Access]]:
    async def check(request: Request, principal: CurrentPrincipal) -> Access:
        admin: AdminContext = request.app.state.admin
        tenant = request.path_params.get("tenant", DEFAULT_TENANT)
        # Three cases. 1. A tenant of others is answered like one that does not exist, before anything is looked up.
        if not may_see(principal, tenant) or not is_name(tenant):
            raise NotFound("Tenant not found")
        # 2. Within one's own, the answer says what is missing.
        if not has_scope(principal, tenant, scope):
            raise Forbidden([scope], held=principal.scopes)
        # 3. Allowed; a tenant that is gone is gone for its own keys too, however fresh they are in memory.
        await admin.tenants.get(tenant)
        return Access(tenant, principal, admin, request.state.request_id)

    return check


def _needs_or_all(scope: Scope) -> Callable[[Request, Principal], Awaitable[Access]]:
    of_tenant = _needs(scope)

    async def check(request: Request, principal: CurrentPrincipal) -> Access:
        if request.path_params.get("tenant") == ALL and is_platform_admin(principal):
            return Access(ALL, principal, request.app.state.admin, request.state.request_id)
        return await of_tenant(request, principal)  # for everybody else there is no tenant `-`

    return check


def _issuer_context(request: Request) -> IssuerContext:
    context: IssuerContext = request.app.state.issuers
    return context


Issuers = Annotated[IssuerContext, Depends(_issuer_context)]


async def _platform(request: Request, principal: CurrentPrincipal) -> Access:
    if not is_platform_admin(principal):
        raise Forbidden([Scope.PLATFORM_ADMIN], held=principal.scopes)
    return Access(DEFAULT_TENANT, principal, request.app.state.admin, request.state.request_id)


Platform = Annotated[Access, Depends(_platform)]
"""For what belongs to no tenant."""

MayRead = Annotated[Access, Depends(_needs(Scope.TENANT_READ))]
MayReadOfAll = Annotated[Access, Depends(_needs_or_all(Scope.TENANT_READ))]
"""The same; and of all tenants, under the name `-`, for platform administrators."""

MayAudit = Annotated[Access, Depends(_needs(Scope.AUDIT_READ))]
MayManage = Annotated[Access, Depends(_needs(Scope.TENANT_ADMIN))]
MayRegister = Annotated[Access, Depends(_needs(Scope.PLATFORM_ADMIN))]
"""A command is code execution: raw ones, and whom they belong to, are for platform administrators."""
