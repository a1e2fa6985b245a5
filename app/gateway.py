"""open_gateway: builds every long-lived object of a node, and closes them in reverse. Read it top to bottom for
the start, bottom to top for the end."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from app import __version__
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator, Storage
from app.auth.jwks import KeySets
from app.auth.outbound import Outbound
from app.auth.sealing import Sealer
from app.auth.tokens import Tokens
from app.backends.pipes import PipeLimits
from app.backends.pool import PoolOptions, ProcessPool
from app.backends.supervisor import ProcessEnvironment, Supervisor, SupervisorOptions
from app.effects.cluster import ClusterEffects
from app.effects.local import LocalEffects
from app.effects.settling import Settling
from app.errors import GatewayError
from app.limits.overload import Marks, Overload
from app.limits.rate_limiter import RateLimiter
from app.limits.shared_rates import SCRIPT as RATES
from app.limits.shared_rates import SharedRates
from app.limits.shared_use import SharedUse
from app.metrics import Metrics
from app.routing.departures import Silence, abandon_the_dead, stay_acquainted
from app.routing.heartbeat import Heartbeat
from app.routing.opening import Routing, open_routing
from app.routing.passing import Passing
from app.routing.peers import Deadlines
from app.routing.redis_connection import Script
from app.routing.router import Router
from app.routing.routes import NodeRecord, caller_key, new_node_id
from app.sessions.all_nodes import AllNodes
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.journal_writer import JournalWriter
from app.sessions.lender import Lender
from app.sessions.overview import NodeOverview
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.restoring import Durability
from app.sessions.suspended import Place
from app.sessions.takeover import TakeOver
from app.settings import Settings
from app.storage.api_keys import ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.following import ActFollower
from app.storage.issuers import IssuerRepository
from app.storage.tenants import TenantRepository
from app.storage.watch import DatabaseWatch

SILENT_COMMENTS = 2.5  # a stream of another node's that misses so many of its keep-alive comments is dead
LAST_WORDS_S = 2.0  # to tell the others what this node had; what they are not told lapses
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
        parts = {"sessions": sessions, "database": self.watch.problem or "ok"}
        if not math.isfinite(self.heartbeat.last_ok):  # until the first beat; later its own sessions are served without
            parts["routes"] = "this node is not known to the others yet"
        return parts

    def degraded(self) -> dict[str, str]:
        """What does not work and does not keep the node from serving."""
        redis, nodes = self.routing.redis, self.routing.peers.problems
        problems = {
            "redis": None if redis is None else redis.problem,
            "overload": self.overload.problem,
            "nodes": "; ".join(f"{url}: {problem}" for url, problem in nodes.items()) or None,
        }
        return {part: problem for part, problem in problems.items() if problem is not None}

    async def say_it_leaves(self) -> None:
        """Tells the other nodes, before anything else: they open nothing here from now on, keep no connections, and do
        not take it for dead when it is gone. Its sessions are still here."""
        self.registry.leaving = True
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
        warm = await backends.list_warm()  # before there are tasks: what fails among them is raised in a group

        key_maker = KeyMaker(settings.secret_key)
        issuers, sealer = IssuerRepository(database), Sealer(settings.secret_key)
        outbound = Outbound(settings.outbound_allow)
        key_sets = await stack.enter_async_context(KeySets(outbound.get))
        watch, trail = DatabaseWatch(database), ActFollower(database)
        authenticator = Authenticator(
            ApiKeys(keys, key_maker),
            metrics.auth_failures,
            tokens=Tokens(issuers, sealer, key_sets),
            tries=RateLimiter("bad_credentials", metrics.rate_limited),
            storage=Storage(watch.is_away, trail.age_s),
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

        # Other nodes, if there can be any: who has which session, and what all of them must know.
        node_id = new_node_id(settings.node_name)
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
        registry = await stack.enter_async_context(
            SessionRegistry(
                directory,
                lender,
                metrics,
                ownership,
                max_sessions=settings.max_sessions,
                stream_after_s=settings.stream_after_s,
                overload=overload,
            )
        )
        implicit = ImplicitSessions(registry, sealer, here=Place(node_id, routing.url))
        overview = NodeOverview(node_id, __version__, registry, pool, supervisor)
        heartbeat = Heartbeat(
            routing.store,
            lambda: _record(overview, routing.url),
            lambda: list(ownership),
            ownership.lost,
            registry.fence.now,
        )
        probe = Silence(routing.peers.probe)
        router = Router(routing.store, node_id, heartbeat.peers, heartbeat.departed, probe, ownership.has_ended)
        stack.push_async_callback(_leave, heartbeat)
        ownership.on_session_lost = registry.lost
        ownership.on_caller_lost = lambda route: implicit.lines.lost((route.identity, route.tenant, route.backend))
        implicit.lines.on_caller_gone = lambda caller: ownership.release(caller_key(*caller))
        implicit.lines.may_serve = ownership.may_have_line
        registry.prove_routes = heartbeat.prove_anew

        local = LocalEffects(authenticator, directory, pool, registry, implicit)
        settling = Settling(local, backends, tenants, keys, issuers)

        def node_leaves(node: str) -> None:
            router.forget_node(node)
            record = heartbeat.peers.get(node)
            if record is not None:
                heartbeat.peers[node] = replace(record, draining=True)
                routing.peers.retire(record.url)

        effects = ClusterEffects(local, settling, trail, routing.notices, node_leaves)

        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(_flush_for_ever, authenticator)
        tasks.start_soon(authenticator.watch.run)
        tasks.start_soon(watch.run)
        tasks.start_soon(heartbeat.run)
        tasks.start_soon(overload.run)
        tasks.start_soon(effects.run)
        journals = JournalWriter(routing.journals, sealer, on_fenced=ownership.doubt)
        durability = Durability(journals, lender)
        if routing.redis is not None:
            registry.durability, registry.hand_over = durability, registry.give_away
            heartbeat.on_forgotten = journals.rewrite_all
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
            issuers=issuers,
            key_maker=key_maker,
            sealer=sealer,
            outbound=outbound,
            authenticator=authenticator,
            pool=pool,
            registry=registry,
            ownership=ownership,
            router=router,
            take_over=take_over,
            implicit=implicit,
            effects=effects,
            overview=overview,
            node=AllNodes(overview, heartbeat.peers.values, routing.peers),
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


def _backend_environment(data_dir: Path) -> ProcessEnvironment:
    """What backends see of this machine: a home and a place for temporary files away from our own."""
    home, temporary = data_dir / "backends" / "home", data_dir / "backends" / "tmp"
    for directory in (home, temporary):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ProcessEnvironment.of_this_process(str(home), str(temporary))


async def _leave(heartbeat: Heartbeat) -> None:
    """However the node ends: the others need not wait for its lease to lapse."""
    with anyio.move_on_after(LAST_WORDS_S, shield=True):
        await heartbeat.leave()


async def _flush_once(authenticator: Authenticator) -> None:
    try:
        await authenticator.flush_last_used()
    except GatewayError:
        log.warning("it could not be written down when keys were used last")


async def _flush_for_ever(authenticator: Authenticator) -> None:
    while True:
        await anyio.sleep(FLUSH_EVERY_S)
        await _flush_once(authenticator)
