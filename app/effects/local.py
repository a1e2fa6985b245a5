"""LocalEffects: what a change does to this node, whoever made it."""

from app.auth.authenticator import Authenticator
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Tenant
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.registry import SessionRegistry

Key = tuple[str, str]
Identity = tuple[str, str, str]


class LocalEffects:
    """Carries changes out (fulfils `admin.effects.NodeEffects`), and knows what of this node they can concern."""

    def __init__(
        self,
        authenticator: Authenticator,
        directory: BackendDirectory,
        pool: ProcessPool,
        registry: SessionRegistry,
        implicit: ImplicitSessions,
    ) -> None:
        self._authenticator, self._directory = authenticator, directory
        self._pool, self._registry, self._implicit = pool, registry, implicit

    # --- changes

    def backend_changed(self, spec: BackendSpec) -> None:
        """New sessions get the new backend; those of a disabled one end."""
        self._directory.forget(spec.tenant, spec.name)
        self._implicit.forget(spec.tenant, spec.name)
        if spec.enabled:
            self._pool.configure(spec)
        else:
            self._stop_backend(spec.key, "backend_disabled")

    def backend_removed(self, key: Key) -> None:
        """Its sessions end and its processes stop."""
        self._directory.forget(*key)
        self._implicit.forget(*key)
        self._stop_backend(key, "backend_removed")

    def backend_restarted(self, key: Key) -> None:
        """Its sessions end, and what is warm is replaced."""
        self._registry.close_where(lambda session: session.spec.key == key, "backend_restarted")
        self._pool.restart(key)

    def tenant_changed(self, tenant: Tenant) -> None:
        """New sessions get the new limits."""
        self._directory.forget(tenant.name)
        self._registry.limits_changed(tenant.name, tenant.limits)

    def tenant_removed(self, tenant: str) -> None:
        """Everything of it ends."""
        self._directory.forget(tenant)
        self._implicit.forget(tenant)
        self._authenticator.forget_tenant(tenant)
        self._registry.close_where(lambda session: session.spec.tenant == tenant, "tenant_removed")
        for key in self._pool.snapshot().backends:
            if key[0] == tenant:
                self._pool.forget(key)

    def key_revoked(self, identity: Identity) -> None:
        """The key's sessions end, and its next request is refused."""
        self._authenticator.forget(identity)
        self._registry.close_where(lambda session: session.principal.identity == identity, "key_revoked")

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
        """Of which something runs here."""
        return {*self._pool.backends(), *(session.spec.key for session in self._registry)}

    def identities(self) -> set[Identity]:
        """Who has sessions here."""
        return {session.principal.identity for session in self._registry}

    def _stop_backend(self, key: Key, reason: str) -> None:
        self._registry.close_where(lambda session: session.spec.key == key, reason)
        self._pool.forget(key)
