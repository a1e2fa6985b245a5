"""LocalEffects: what a change does to this node, whoever made it."""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from app.auth.authenticator import Authenticator
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Tenant
from app.errors import Disabled
from app.sessionless.requests import SessionlessRequests
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session

Key = tuple[str, str]
Identity = tuple[str, str, str]

log = logging.getLogger(__name__)


class LocalEffects:
    """Carries changes out (fulfils `admin.context.NodeEffects`), and knows what of this node they can concern."""

    def __init__(
        self,
        authenticator: Authenticator,
        directory: BackendDirectory,
        pool: ProcessPool,
        registry: SessionRegistry,
        implicit: SessionlessRequests,
        tenants_off: Mapping[str, Disabled] = MappingProxyType({}),
    ) -> None:
        self._authenticator, self._directory = authenticator, directory
        self._pool, self._registry, self._implicit = pool, registry, implicit
        self._tenants_off = dict(tenants_off)

    # --- changes

    def backend_changed(self, spec: BackendSpec) -> None:
        """New sessions get the new backend; those of a disabled one end."""
        off = None if spec.enabled else Disabled("backend", spec.name, spec.reason)
        self._directory.told(spec, off)
        self._implicit.forget(spec.tenant, spec.name)
        if off is not None:
            self._stop_backend(spec.key, "backend_disabled", off)
        elif not self.is_off(spec.tenant):
            self._pool.configure(spec)

    def backend_removed(self, key: Key) -> None:
        """Its sessions end and its processes stop."""
        self._directory.forget(*key)
        self._implicit.forget(*key)
        self._stop_backend(key, "backend_removed")
        self._pool.failures.forget(key)

    def backend_restarted(self, key: Key) -> None:
        """Its sessions end, and what is warm is replaced."""
        self._registry.close_where(lambda session: session.spec.key == key, "backend_restarted")
        self._pool.restart(key)

    def tenant_changed(self, tenant: Tenant) -> None:
        """New sessions get the new limits; those of a tenant that is switched off end, and nothing is kept warm."""
        self._directory.forget(tenant.name)
        self._registry.limits_changed(tenant.name, tenant.limits)
        was_off = self._tenants_off.pop(tenant.name, None)
        if not tenant.enabled:
            self._tenants_off[tenant.name] = off = Disabled("tenant", tenant.name, tenant.reason)
            self._end_tenant(tenant.name, "tenant_disabled", off)
        elif was_off is not None:
            self._authenticator.forget_tenant(tenant.name)

    def tenant_removed(self, tenant: str) -> None:
        """Everything of it ends."""
        self._directory.forget(tenant)
        self._tenants_off.pop(tenant, None)
        self._end_tenant(tenant, "tenant_removed")
        for key in self._pool.failures.backends():
            if key[0] == tenant:
                self._pool.failures.forget(key)

    def key_revoked(self, identity: Identity) -> None:
        """The key's sessions end, and its next request is refused."""
        self._authenticator.forget(identity)
        self._registry.close_where(lambda session: session.principal.identity == identity, "key_revoked")

    def principal_changed(self, identity: Identity, off: Disabled | None) -> None:
        """A key or a principal was switched off, so its sessions end; or on again."""
        self._authenticator.forget(identity)
        if off is not None:
            self._end(lambda session: session.principal.identity == identity, f"{off.what}_disabled", off)

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """The sessions of its principals end, and their next requests are looked at anew."""
        self._authenticator.forget_issuer(tenant, issuer)
        theirs = (tenant, issuer)
        self._registry.close_where(lambda session: session.principal.identity[:2] == theirs, "issuer_changed")

    # --- changes that are only known to have happened

    def forget_backend(self, key: Key) -> None:
        """It may be another one now: whoever needs it asks the database."""
        self._directory.forget(*key)

    def forget_tenant(self, tenant: str) -> None:
        """The same for all that is remembered of a tenant."""
        self._directory.forget(tenant)

    def forget_principal(self, identity: Identity) -> None:
        """The same for what is remembered of a principal."""
        self._authenticator.forget(identity)

    def forget_everything(self) -> None:
        """Credentials and backends are looked up again; nothing ends."""
        self._authenticator.forget_everything()
        self._directory.forget_everything()

    # --- what there is

    def current(self, key: Key) -> BackendSpec | None:
        """The version of a backend that new processes are started from."""
        return self._pool.spec_of(key)

    def running(self, key: Key) -> list[BackendSpec]:
        """The versions of a backend that sessions have."""
        return [session.spec for session in self._registry if session.spec.key == key]

    def backends(self) -> set[Key]:
        """Of which something runs here, or has failed."""
        running = (session.spec.key for session in self._registry)
        return {*self._pool.backends(), *self._pool.failures.backends(), *running}

    def identities(self) -> set[Identity]:
        """Who has sessions here."""
        return {session.principal.identity for session in self._registry}

    def is_off(self, tenant: str) -> bool:
        """Whether the tenant is switched off, as far as is known here."""
        return tenant in self._tenants_off

    def tenants_off(self) -> set[str]:
        """Those that are."""
        return set(self._tenants_off)

    def _stop_backend(self, key: Key, reason: str, off: Disabled | None = None) -> None:
        self._end(lambda session: session.spec.key == key, reason, off)
        self._pool.forget(key)

    def _end_tenant(self, tenant: str, reason: str, off: Disabled | None = None) -> None:
        """Of a tenant everything ends: what its backends run, and what its principals have."""
        self._implicit.forget(tenant)
        self._authenticator.forget_tenant(tenant)
        self._end(lambda session: tenant in (session.spec.tenant, session.principal.tenant), reason, off)
        for key in self._pool.snapshot().backends:
            if key[0] == tenant:
                self._pool.forget(key)

    def _end(self, matches: Callable[[Session], bool], reason: str, off: Disabled | None) -> None:
        ended = self._registry.close_where(matches, reason, off)
        if off is not None and ended:
            log.info("Ended %d sessions here: %s", ended, off)
