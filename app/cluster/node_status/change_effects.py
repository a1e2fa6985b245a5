"""ChangeEffects: what a change does to this node, whichever node made it."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from app.auth.authenticator import Authenticator
from app.backends.catalog.knowledge import Knowledge
from app.backends.connections.toolsets import Toolsets
from app.backends.pool import ProcessPool
from app.backends.upstreams.upstreams import Upstreams
from app.cluster._affected import Affected, Kind
from app.cluster.node_status.inspecting import Inspecting
from app.domain import BackendSpec, Principal, Tenant
from app.errors import BackendNotFound, BackendUnavailable, Disabled
from app.limits.tenant_budgets import TenantBudgets
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.sessionless.requests import SessionlessRequests
from app.telemetry.call_history.history import CallHistory

Key = tuple[str, str]
Identity = tuple[str, str, str]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ChangeEffects:
    """Carries out changes, and knows what on this node they can affect. No method waits."""

    _authenticator: Authenticator
    _directory: BackendDirectory
    _pool: ProcessPool
    _upstreams: Upstreams
    _toolsets: Toolsets
    _registry: SessionRegistry
    _sessionless: SessionlessRequests
    _budgets: TenantBudgets
    _knowledge: Knowledge
    _history: CallHistory
    _inspecting: Inspecting
    tenants_off: dict[str, Disabled] = field(default_factory=dict)

    def doubt(self, affected: Affected) -> None:
        """Something has changed: it is looked up again before it is used, and what has to end in any case ends."""
        match affected:
            case Affected(Kind.BACKEND, (tenant, name)):
                self._directory.forget(tenant, name)
                self._sessionless.forget(tenant, name)
                self._toolsets.changed_elsewhere((tenant, name))
            case Affected(Kind.RESTART, (tenant, name)):
                self.backend_restarted((tenant, name))
            case Affected(Kind.TENANT, (tenant,)):
                self._directory.forget(tenant)
                self._budgets.limits_may_have_changed(tenant)
            case Affected(Kind.TENANT_GONE, (tenant,)):
                self.tenant_removed(tenant)
            case Affected(Kind.PRINCIPAL, (tenant, issuer, subject)):
                self._authenticator.forget((tenant, issuer, subject))
            case Affected(Kind.ISSUER, (tenant, issuer)):
                self.issuer_changed(tenant, issuer)
            case Affected(Kind.GRANTS, (tenant,)):
                self._authenticator.forget_grants(tenant)
            case Affected(Kind.WRITINGS, (tenant,)):
                self._knowledge.changed_somewhere(tenant)

    def forget_everything(self) -> None:
        """Anything may have changed."""
        self._authenticator.forget_everything()
        self._directory.forget_everything()
        self._knowledge.anything_may_have_changed()
        self._toolsets.anything_may_have_changed()
        self._budgets.limits_may_have_changed()

    # --- what is stored now

    def backend_changed(self, spec: BackendSpec) -> None:
        """It is new or another one: no more processes of older versions are started."""
        off = None if spec.enabled else Disabled("backend", spec.name, spec.reason)
        self._directory.told(spec, off)
        self._inspecting.backend_changed(spec)
        if off is not None:
            self._stop_backend(spec.key, "backend_disabled", off)
        elif spec.url is not None:
            self._upstreams.configure(spec)
        elif spec.toolset is None and not self.is_off(spec.tenant):
            self._pool.configure(spec)

    def access_changed(self, spec: BackendSpec) -> None:
        """Other callers may use it than when some session was opened. Those that were opened without a list end."""
        self._toolsets.access_changed(spec)
        if spec.access:
            self._registry.close_where(
                lambda each: each.spec.key == spec.key and not each.spec.is_toolset, "access_changed"
            )

    def backend_removed(self, key: Key) -> None:
        """Ends its sessions and processes."""
        self._directory.forget(*key)
        self._sessionless.forget(*key)
        self._stop_backend(key, "backend_removed")
        self._toolsets.removed(key)
        self._pool.failures.forget(key)

    def backend_restarted(self, key: Key) -> None:
        """Ends its sessions and replaces its warm processes."""
        reason = "backend_restarted"
        # A parked session has no process that could be replaced: its next one will be new.
        self._registry.close_where(lambda each: each.spec.key == key and not each.connection.is_without_process, reason)
        self._toolsets.backend_lost(key, BackendUnavailable("the server was restarted"), reason)
        self._pool.restart(key)
        self._upstreams.restart(key)

    def tenant_changed(self, tenant: Tenant) -> None:
        """It has these limits, and is on or off."""
        self._directory.forget(tenant.name)
        self._authenticator.forget_grants(tenant.name)
        self._registry.gates.configure(tenant.name, tenant.limits)
        self._budgets.know(tenant.name, tenant.limits)
        self._inspecting.restrict(tenant.name, tenant.inspections)
        was_off = self.tenants_off.pop(tenant.name, None)
        if not tenant.enabled:
            self.tenants_off[tenant.name] = off = Disabled("tenant", tenant.name, tenant.reason)
            self._end_tenant(tenant.name, "tenant_disabled", off)
        elif was_off is not None:
            self._authenticator.forget_tenant(tenant.name)

    def tenant_removed(self, tenant: str) -> None:
        """Its backends and keys are gone too."""
        self._directory.forget(tenant)
        self.tenants_off.pop(tenant, None)
        self._end_tenant(tenant, "tenant_removed")
        self._inspecting.tenant_removed(tenant)
        self._history.forget(tenant)
        for key in self._pool.failures.backends():
            if key[0] == tenant:
                self._pool.failures.forget(key)

    def key_revoked(self, identity: Identity) -> None:
        """Its sessions end."""
        self._authenticator.forget(identity)
        self._authenticator.uses.settle(lambda each: each == identity)
        self._inspecting.end_of_opener(lambda opener: opener == identity)
        self._registry.close_where(lambda session: session.principal.identity == identity, "key_revoked")

    def principal_off(self, identity: Identity, off: Disabled) -> None:
        """A key or a principal is switched off."""
        self._authenticator.forget(identity)
        self._authenticator.uses.settle(lambda each: each == identity)
        self._inspecting.end_of_opener(lambda opener: opener == identity)
        self._end(lambda session: session.principal.identity == identity, f"{off.what}_disabled", off)

    def grants_over(self, tenant: str, standing: Collection[str]) -> None:
        """What the tenant's authorization server has granted goes on only for these (`Principal.grant`)."""

        def is_over(principal: Principal) -> bool:
            return principal.tenant == tenant and bool(principal.grant) and principal.grant not in standing

        self._registry.close_where(lambda session: is_over(session.principal), "grant_ended")

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """It was created, changed or removed: its tokens are verified anew, and their sessions end."""
        self._authenticator.forget_issuer(tenant, issuer)
        theirs = (tenant, issuer)
        self._authenticator.uses.settle(lambda each: each[:2] == theirs)
        self._inspecting.end_of_opener(lambda opener: opener[:2] == theirs)
        self._registry.close_where(lambda session: session.principal.identity[:2] == theirs, "issuer_changed")

    # --- what is known here

    def current(self, key: Key) -> BackendSpec | None:
        """The version of a backend that new processes are started from."""
        return self._pool.spec_of(key) or self._upstreams.spec_of(key)

    def running(self, key: Key) -> list[BackendSpec]:
        """The versions of a backend that sessions use."""
        return [session.spec for session in self._registry if session.spec.key == key]

    def backends(self) -> set[Key]:
        """Backends that have run or failed here."""
        running = (session.spec.key for session in self._registry)
        return {*self._pool.backends(), *self._upstreams.backends(), *self._pool.failures.backends(), *running}

    def identities(self) -> set[Identity]:
        """Principals with sessions or inspections here, or of whose use something is shown as a problem."""
        sessions = (session.principal.identity for session in self._registry)
        return {*sessions, *self._inspecting.openers(), *self._authenticator.uses.shown()}

    def grants(self, tenant: str) -> set[str]:
        """On what sessions stand here that were opened with tokens of the tenant's authorization server."""
        principals = (session.principal for session in self._registry)
        return {each.grant for each in principals if each.grant and each.tenant == tenant}

    def inspected(self) -> set[str]:
        """Tenants with open inspections here."""
        return self._inspecting.tenants()

    def is_off(self, tenant: str) -> bool:
        return tenant in self.tenants_off

    def _stop_backend(self, key: Key, reason: str, off: Disabled | None = None) -> None:
        self._end(lambda session: session.spec.key == key, reason, off)
        self._toolsets.backend_lost(key, off or BackendNotFound(), reason)
        self._pool.forget(key)
        self._upstreams.forget(key)

    def _end_tenant(self, tenant: str, reason: str, off: Disabled | None = None) -> None:
        """Ends the sessions of its backends and of its principals, and its processes."""
        self._sessionless.forget(tenant)
        self._authenticator.forget_tenant(tenant)
        self._authenticator.uses.settle(lambda each: each[0] == tenant)
        self._inspecting.end_of_opener(lambda opener: opener[0] == tenant)
        self._end(lambda session: tenant in (session.spec.tenant, session.principal.tenant), reason, off)
        for key in self._pool.backends():
            if key[0] == tenant:
                self._pool.forget(key)
        for key in self._upstreams.backends():
            if key[0] == tenant:
                self._upstreams.forget(key)

    def _end(self, matches: Callable[[Session], bool], reason: str, off: Disabled | None) -> None:
        ended = self._registry.close_where(matches, reason, off)
        if off is not None and ended:
            log.info("Ended %d session%s on this node: %s", ended, "" if ended == 1 else "s", off)
