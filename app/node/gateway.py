"""open_gateway: builds every long-lived object of a node, and closes them in reverse. Read it top to bottom for
the start, bottom to top for the end."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import anyio
import anyio.to_thread

from app import __version__
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator, Storage
from app.auth.credential_uses import CredentialUses
from app.auth.issuer_check import IssuerCheck
from app.auth.jwks import KeySets
from app.auth.outbound import Outbound
from app.auth.sealing import Sealer
from app.auth.tokens import Tokens
from app.backends.failures import FailureLog
from app.backends.pool import PoolOptions, ProcessPool
from app.cluster.all_nodes import AllNodes
from app.cluster.cluster_rates import SCRIPT as RATES
from app.cluster.cluster_rates import SharedRates
from app.cluster.cluster_use import SharedUse
from app.cluster.durability import Durability
from app.cluster.effects import ClusterEffects
from app.cluster.journal_writer import JournalWriter
from app.cluster.opening import Routing, open_routing
from app.cluster.reconcile import Settling
from app.cluster.takeover import TakeOver
from app.config.environment import PREFIX
from app.config.settings import Settings
from app.errors import GatewayError, SettingsError
from app.limits.overload import Marks, Overload
from app.limits.rate_limiter import RateLimiter
from app.limits.use_metrics import TenantsUse, show_use
from app.links.leasing import Lender
from app.metrics import Metrics
from app.node.readiness import database_words, nodes_words, overload_words, redis_words, routes_words
from app.peers.client import Deadlines
from app.peers.dead_peers import Silence, abandon_the_dead, stay_acquainted
from app.peers.passing import Passing
from app.processes import homes
from app.processes.pipes import PipeLimits
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.redis.connection import Script
from app.routing.heartbeat import Heartbeat
from app.routing.router import Router
from app.routing.routes import NodeRecord, caller_key, new_node_id
from app.sessionless.pooled_session import CallerHomes
from app.sessionless.requests import ImplicitSessions
from app.sessionless.suspended_calls import Place
from app.sessions.affected import note_timeout, users_of
from app.sessions.directory import BackendDirectory
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.standstill import Fence, StandstillGuard
from app.sessions.sweep import sweep_for_ever
from app.storage.api_keys import ApiKeyRepository
from app.storage.audit_follower import ActFollower
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.issuers import IssuerRepository
from app.storage.secret_key import SecretKeyCheck
from app.storage.switches import SwitchRepository
from app.storage.tenants import TenantRepository
from app.storage.watch import DatabaseWatch
from app.this_node.effects import LocalEffects
from app.this_node.overview import NodeOverview

SILENT_COMMENTS = 2.5  # a stream of another node's that misses so many of its keep-alive comments is dead
LAST_WORDS_S = 2.0  # to tell the others what this node had; what they are not told lapses
FLUSH_EVERY_S = 60.0  # how often it is written down when keys were used last

_MOVE = "move what is still needed (docs/operations.md, Homes), then remove it"

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
    switches: SwitchRepository
    issuers: IssuerRepository
    key_maker: KeyMaker
    sealer: Sealer
    outbound: Outbound
    issuer_check: IssuerCheck
    authenticator: Authenticator
    pool: ProcessPool
    registry: SessionRegistry
    guard: StandstillGuard
    ownership: Ownership
    router: Router
    take_over: TakeOver
    implicit: ImplicitSessions
    effects: ClusterEffects
    overview: NodeOverview
    node: AllNodes
    routing: Routing
    heartbeat: Heartbeat
    overload: Overload
    watch: DatabaseWatch
    passing: Passing

    async def check(self) -> dict[str, str]:
        """Whether this node can serve, part by part (fulfils `http.health.Readiness`)."""
        sessions = "shutting down" if self.registry.leaving or self.registry.draining else "ok"
        problem = self.watch.problem
        parts = {"sessions": sessions, "database": "ok" if problem is None else database_words(problem)}
        if not math.isfinite(self.heartbeat.last_ok):  # until the first beat; later its own sessions are served without
            parts["routes"] = routes_words()
        return parts

    def degraded(self) -> dict[str, str]:
        """What does not work and does not keep the node from serving, each with what to do."""
        redis, overload, nodes = self.routing.redis, self.overload, self.routing.peers.problems
        words = {}
        if redis is not None and redis.problem is not None:
            words["redis"] = redis_words(redis.problem, is_up=redis.is_up)
        if overload.sessions is not None:
            words["overload"] = overload_words(overload.problem or "", (overload.calls or overload.sessions).mark)
        if nodes:
            words["nodes"] = nodes_words(nodes)
        return words

    async def say_it_leaves(self) -> None:
        """Tells the other nodes, before anything else: they open nothing here from now on, keep no connections, and do
        not take it for dead when it is gone. Its sessions are still here."""
        self.registry.leave()
        if self.routing.notices is not None:
            with anyio.move_on_after(LAST_WORDS_S):
                await self.heartbeat.beat()
                self.effects.node_leaving(self.routing.node)
                await self.routing.notices.flush(LAST_WORDS_S)

    async def drain(self, seconds: float) -> int:
        """Ends this node's sessions, those that can go on elsewhere by a hand-over; then nobody asks it any more.
        Streams of other nodes' sessions end meanwhile; what else they answer through this one is for `passing.finish`.

        Returns:
            How many calls were cut off.
        """
        if self.routing.notices is None:
            return await self.registry.drain(seconds)
        self.ownership.release_callers()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.passing.end_streams, seconds)
            cut_off = await self.registry.drain(seconds)
            tasks.cancel_scope.cancel()
        await self.ownership.flush(LAST_WORDS_S)
        self.effects.node_leaving(self.routing.node)
        await self.routing.notices.flush(LAST_WORDS_S)
        await self.heartbeat.leave()
        return cut_off


@asynccontextmanager
async def open_gateway(settings: Settings, node_id: str | None = None) -> AsyncIterator[Gateway]:
    """Opens a node on a database that is migrated already. Without `node_id` it makes itself one.

    Raises:
        GatewayError: something that is needed does not work; nothing stays open.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics(__version__)

        database = Database(settings.database_url)
        stack.push_async_callback(database.aclose)
        await database.ping()
        await SecretKeyCheck(database, settings.secret_key).claim()
        tenants, backends, keys = TenantRepository(database), BackendRepository(database), ApiKeyRepository(database)
        switches = SwitchRepository(database)
        tenants_off = await switches.tenants_off()
        warm = await backends.list_warm()  # before there are tasks: what fails among them is raised in a group

        key_maker = KeyMaker(settings.secret_key)
        issuers, sealer = IssuerRepository(database), Sealer(settings.secret_key)
        outbound = Outbound(settings.outbound_allow)
        key_sets = await stack.enter_async_context(KeySets(outbound.get))
        tokens = Tokens(issuers, sealer, key_sets)
        watch, trail = DatabaseWatch(database), ActFollower(database)
        authenticator = Authenticator(
            ApiKeys(keys, key_maker),
            metrics.auth_failures,
            tokens=tokens,
            tries=RateLimiter("bad_credentials", metrics.rate_limited),
            storage=Storage(watch.is_away, trail.age_s),
            switches=switches,
            uses=CredentialUses(metrics.new_addresses),
        )
        stack.push_async_callback(_flush_once, authenticator)

        supervisor = await stack.enter_async_context(
            Supervisor(
                metrics,
                SupervisorOptions(
                    homes=await _open_homes(settings, backends),
                    limits=PipeLimits(line_bytes=settings.max_line_bytes),
                    sched_batch=True,
                ),
            )
        )
        node_id = node_id or new_node_id(settings.node_name)
        failures = FailureLog(node_id)
        options = PoolOptions(max_processes=settings.max_processes, deadline_s=settings.pool_wait_s)
        pool = await stack.enter_async_context(ProcessPool(supervisor, metrics, options, failures=failures))
        lender = await stack.enter_async_context(Lender(pool, metrics))

        # Other nodes, if there can be any: who has which session, and what all of them must know.
        routing = await stack.enter_async_context(
            open_routing(
                node_id,
                settings.node_url or "",
                settings.redis_url,
                settings.secret_key,
                sealer,
                metrics,
                claim_wait_s=settings.pool_wait_s,
                deadlines=Deadlines(idle_s=SILENT_COMMENTS * settings.keepalive_s),
            )
        )
        ownership = await stack.enter_async_context(Ownership(routing.store, node_id, routing.url))

        overload = Overload(
            metrics,
            Marks(settings.shed_lag_s, settings.shed_sessions_percent / 100, settings.shed_calls_percent / 100),
        )
        directory = BackendDirectory(backends, tenants)
        journals = JournalWriter(routing.journals, sealer, on_fenced=ownership.doubt)
        durability, fence = Durability(journals, lender), Fence()
        registry = await stack.enter_async_context(
            SessionRegistry(
                directory,
                lender,
                metrics,
                ownership,
                max_sessions=settings.max_sessions,
                stream_after_s=settings.stream_after_s,
                overload=overload,
                fence=fence,
                durability=None if routing.is_alone else durability,
                on_timeout=partial(note_timeout, failures, supervisor.find),
            )
        )
        failures.users_of = partial(users_of, registry)
        pool.reclaim = registry.reclaiming.reclaim
        of_node = {
            "node_sessions": registry.sessions_of_node,
            "node_processes": pool.processes_of_node,
            "node_waiting": pool.waiting_of_node,
        }
        show_use(metrics, TenantsUse(registry.gates, pool.used_of), of_node)
        homes = CallerHomes(ownership.may_have_line, lambda caller: ownership.release(caller_key(*caller)))
        implicit = ImplicitSessions(registry, sealer, here=Place(node_id, routing.url), homes=homes)
        uses = authenticator.uses
        overview = NodeOverview(node_id, __version__, registry, pool, supervisor, metrics.connections_open, uses)
        heartbeat = Heartbeat(
            routing.store,
            lambda: _record(overview, routing.url),
            lambda: list(ownership),
            ownership.lost,
            fence.now,
            journals.rewrite_all,
        )
        guard = StandstillGuard(fence, registry, ownership, heartbeat.prove_anew)
        probe = Silence(routing.peers.probe)
        router = Router(routing.store, node_id, heartbeat.peers, heartbeat.departed, probe, ownership.has_ended)
        stack.push_async_callback(_leave, heartbeat)
        ownership.on_session_lost = registry.lost
        ownership.on_caller_lost = lambda route: implicit.lines.lost((route.identity, route.tenant, route.backend))

        local = LocalEffects(authenticator, directory, pool, registry, implicit, tenants_off)
        settling = Settling(local, backends, tenants, keys, issuers, switches)

        def node_leaves(node: str) -> None:
            router.forget_node(node)
            record = heartbeat.peers.get(node)
            if record is not None:
                heartbeat.peers[node] = replace(record, draining=True)
                routing.peers.retire(record.url)

        effects = ClusterEffects(local, settling, trail, routing.notices, node_leaves)

        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(sweep_for_ever, registry, guard, implicit.sweep)
        tasks.start_soon(_flush_for_ever, authenticator)
        tasks.start_soon(authenticator.watch.run)
        tasks.start_soon(uses.run)
        tasks.start_soon(watch.run)
        tasks.start_soon(heartbeat.run)
        tasks.start_soon(overload.run)
        tasks.start_soon(effects.run)
        if routing.redis is not None:
            rates = SharedRates(registry.gates, partial(routing.redis.run, Script(RATES)))
            use = SharedUse(
                registry.gates, pool, routing.redis.pipeline, sealer, node_id, lambda: tuple(heartbeat.peers)
            )
            pool.used_elsewhere = use.processes_elsewhere
            for run in (journals.run, rates.run, use.run):
                tasks.start_soon(run)
            tasks.start_soon(abandon_the_dead, heartbeat.peers, probe, routing.peers.abandon)
            tasks.start_soon(stay_acquainted, heartbeat.peers, routing.peers.probe)
        take_over = TakeOver(ownership, directory, partial(durability.restore, registry), metrics)

        for spec in warm:
            pool.configure(spec)
        yield Gateway(
            settings=settings,
            metrics=metrics,
            database=database,
            tenants=tenants,
            backends=backends,
            keys=keys,
            switches=switches,
            issuers=issuers,
            key_maker=key_maker,
            sealer=sealer,
            outbound=outbound,
            issuer_check=IssuerCheck(tokens, outbound.get, switches.off),
            authenticator=authenticator,
            pool=pool,
            registry=registry,
            guard=guard,
            ownership=ownership,
            router=router,
            take_over=take_over,
            implicit=implicit,
            effects=effects,
            overview=overview,
            node=AllNodes(overview, heartbeat.peers.values, routing.peers, routing.url),
            routing=routing,
            heartbeat=heartbeat,
            overload=overload,
            watch=watch,
            passing=Passing(),
        )


def _record(overview: NodeOverview, url: str) -> NodeRecord:
    """This node as the others see it."""
    status = overview.status()
    return NodeRecord(
        status.id, url, status.version, status.started_at, status.sessions, status.processes, status.draining
    )


async def _open_homes(settings: Settings, backends: BackendRepository) -> homes.Homes:
    """Where backends live. The one home that they all had in versions before this goes to the only tenant that has
    backends; of several nobody knows whose files are whose."""
    root, old = settings.homes, settings.data_dir / "backends" / "home"
    try:
        await anyio.to_thread.run_sync(homes.make_root, root)
    except OSError as error:
        raise SettingsError(f"{PREFIX}HOMES_DIR: cannot make {str(root)!r}: {error.strerror}") from None
    if await anyio.to_thread.run_sync(homes.is_left, old):
        try:
            owners = await backends.homes(limit=2)
            if len(owners) == 1 and await anyio.to_thread.run_sync(homes.adopt, old, root, owners[0]):
                log.warning("moved the home of all backends to that of their tenant: %s", root / owners[0])
            elif len(owners) != 1:
                log.warning("backends no longer use %s: each tenant has a home in %s; %s", old, root, _MOVE)
        except OSError as error:
            log.warning("backends no longer use %s, and it could not be moved: %s; %s", old, error, _MOVE)
    return homes.Homes(root)


async def _leave(heartbeat: Heartbeat) -> None:
    """However the node ends: the others need not wait for its lease to lapse."""
    with anyio.move_on_after(LAST_WORDS_S, shield=True):
        await heartbeat.leave()


async def _flush_once(authenticator: Authenticator) -> None:
    try:
        await authenticator.flush_last_used()
    except GatewayError:
        log.warning("Could not save last_used_at of API keys; will try again")


async def _flush_for_ever(authenticator: Authenticator) -> None:
    while True:
        await anyio.sleep(FLUSH_EVERY_S)
        await _flush_once(authenticator)
