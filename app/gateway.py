"""open_gateway: builds every long-lived object of a node, and closes them in reverse. Read it top to bottom for
the start, bottom to top for the end."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from app import __version__
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.jwks import KeySets
from app.auth.outbound import Outbound
from app.auth.sealing import Sealer
from app.auth.tokens import Tokens
from app.backends.pipes import PipeLimits
from app.backends.pool import PoolOptions, ProcessPool
from app.backends.supervisor import ProcessEnvironment, Supervisor, SupervisorOptions
from app.domain import BackendSpec, Tenant
from app.errors import GatewayError
from app.metrics import Metrics
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.lender import Lender
from app.sessions.overview import NodeOverview
from app.sessions.registry import SessionRegistry
from app.settings import Settings
from app.storage.api_keys import ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.issuers import IssuerRepository
from app.storage.tenants import TenantRepository
from app.storage.watch import DatabaseWatch

FLUSH_EVERY_S = 60.0  # how often it is written down when keys were used last

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One node's long-lived objects; `open_gateway` owns them."""

    settings: Settings
    metrics: Metrics
    database: Database
    tenants: TenantRepository
    backends: BackendRepository
    keys: ApiKeyRepository
    issuers: IssuerRepository
    key_maker: KeyMaker
    sealer: Sealer
    outbound: Outbound
    authenticator: Authenticator
    pool: ProcessPool
    registry: SessionRegistry
    implicit: ImplicitSessions
    effects: "LocalEffects"
    node: NodeOverview
    watch: DatabaseWatch

    async def check(self) -> dict[str, str]:
        """Whether this node can serve, part by part (fulfils `http.health.Readiness`)."""
        sessions = "shutting down" if self.registry.draining else "ok"
        return {"sessions": sessions, "database": self.watch.problem or "ok"}


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Opens a node on a database that is migrated already.

    Raises:
        GatewayError: something that is needed does not work; nothing stays open.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics(__version__)

        database = Database(settings.database_url)
        stack.push_async_callback(database.aclose)
        await database.ping()
        tenants, backends, keys = TenantRepository(database), BackendRepository(database), ApiKeyRepository(database)

        key_maker = KeyMaker(settings.secret_key)
        issuers, sealer = IssuerRepository(database), Sealer(settings.secret_key)
        outbound = Outbound(settings.outbound_allow)
        key_sets = await stack.enter_async_context(KeySets(outbound.get))
        authenticator = Authenticator(
            ApiKeys(keys, key_maker), metrics.auth_failures, tokens=Tokens(issuers, sealer, key_sets)
        )
        stack.push_async_callback(_flush_once, authenticator)

        supervisor = await stack.enter_async_context(
            Supervisor(
                metrics,
                SupervisorOptions(
                    environment=_backend_environment(settings.data_dir),
                    limits=PipeLimits(line_bytes=settings.max_line_bytes),
                    sched_batch=True,
                ),
            )
        )
        options = PoolOptions(max_processes=settings.max_processes, deadline_s=settings.pool_wait_s)
        pool = await stack.enter_async_context(ProcessPool(supervisor, metrics, options))
        lender = await stack.enter_async_context(Lender(pool, metrics))

        directory = BackendDirectory(backends, tenants)
        registry = await stack.enter_async_context(
            SessionRegistry(directory, lender, metrics, max_sessions=settings.max_sessions)
        )
        implicit = ImplicitSessions(registry, sealer)
        effects = LocalEffects(authenticator, directory, pool, registry, implicit)

        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(_flush_for_ever, authenticator)
        watch = DatabaseWatch(database)
        tasks.start_soon(watch.run)

        for spec in await backends.list_warm():
            pool.configure(spec)
        yield Gateway(
            settings=settings,
            metrics=metrics,
            database=database,
            tenants=tenants,
            backends=backends,
            keys=keys,
            issuers=issuers,
            key_maker=key_maker,
            sealer=sealer,
            outbound=outbound,
            authenticator=authenticator,
            pool=pool,
            registry=registry,
            implicit=implicit,
            effects=effects,
            node=NodeOverview(__version__, registry, pool, supervisor),
            watch=watch,
        )


def _backend_environment(data_dir: Path) -> ProcessEnvironment:
    """What backends see of this machine: a home and a place for temporary files away from our own."""
    home, temporary = data_dir / "backends" / "home", data_dir / "backends" / "tmp"
    for directory in (home, temporary):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ProcessEnvironment.of_this_process(str(home), str(temporary))


async def _flush_once(authenticator: Authenticator) -> None:
    try:
        await authenticator.flush_last_used()
    except GatewayError:
        log.warning("it could not be written down when keys were used last")


async def _flush_for_ever(authenticator: Authenticator) -> None:
    while True:
        await anyio.sleep(FLUSH_EVERY_S)
        await _flush_once(authenticator)


class LocalEffects:
    """What a change made over REST does to this node at once (fulfils `admin.effects.NodeEffects`)."""

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

    def backend_changed(self, spec: BackendSpec) -> None:
        """New sessions get the new backend; those of a disabled one end."""
        self._directory.forget(spec.tenant, spec.name)
        self._implicit.forget(spec.tenant, spec.name)
        if spec.enabled:
            self._pool.configure(spec)
        else:
            self._stop_backend(spec.key, "backend_disabled")

    def backend_removed(self, key: tuple[str, str]) -> None:
        """Its sessions end and its processes stop."""
        self._directory.forget(*key)
        self._implicit.forget(*key)
        self._stop_backend(key, "backend_removed")

    def backend_restarted(self, key: tuple[str, str]) -> None:
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

    def key_revoked(self, identity: tuple[str, str, str]) -> None:
        """The key's sessions end, and its next request is refused."""
        self._authenticator.forget(identity)
        self._registry.close_where(lambda session: session.principal.identity == identity, "key_revoked")

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """The sessions of its principals end, and their next requests are looked at anew."""
        self._authenticator.forget_issuer(tenant, issuer)
        theirs = (tenant, issuer)
        self._registry.close_where(lambda session: session.principal.identity[:2] == theirs, "issuer_changed")

    def _stop_backend(self, key: tuple[str, str], reason: str) -> None:
        self._registry.close_where(lambda session: session.spec.key == key, reason)
        self._pool.forget(key)
