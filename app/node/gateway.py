"""open_gateway: builds every long-lived object of a node, and closes them in reverse. Read it top to bottom for
the start, bottom to top for the end. What the groups of objects are made of is in `parts`."""

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskGroup

from app import __version__
from app.auth.api_keys import KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.issuer_check import IssuerCheck
from app.auth.outbound import Outbound
from app.auth.sealing import Sealer
from app.backends.pool import ProcessPool
from app.cluster.all_nodes import AllNodes
from app.cluster.cluster_rates import SCRIPT as RATES
from app.cluster.cluster_rates import SharedRates
from app.cluster.cluster_use import SharedUse
from app.cluster.effects import ClusterEffects
from app.cluster.journal_writer import JournalWriter
from app.cluster.opening import Routing
from app.cluster.takeover import TakeOver
from app.config.settings import Settings
from app.limits.overload import Overload
from app.metrics import Metrics
from app.node.parts.credentials import flush_for_ever, open_credentials
from app.node.parts.effects import make_effects
from app.node.parts.membership import LAST_WORDS_S, join
from app.node.parts.opening import Opening
from app.node.parts.processes import open_processes
from app.node.parts.records import open_records
from app.node.parts.routes import open_routes
from app.node.parts.sessions import open_sessions
from app.node.readiness import database_words, nodes_words, overload_words, redis_words, routes_words
from app.peers.dead_peers import Silence, abandon_the_dead, stay_acquainted
from app.peers.passing import Passing
from app.redis.connection import RedisConnection, Script
from app.routing.heartbeat import Heartbeat
from app.routing.router import Router
from app.routing.routes import new_node_id
from app.sessionless.requests import SessionlessRequests
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.standstill import StandstillGuard
from app.sessions.sweep import sweep_for_ever
from app.storage.api_keys import ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.issuers import IssuerRepository
from app.storage.switches import SwitchRepository
from app.storage.tenants import TenantRepository
from app.storage.watch import DatabaseWatch
from app.this_node.overview import NodeOverview


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
    implicit: SessionlessRequests
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
        node_id = node_id or new_node_id(settings.node_name)
        opening = Opening(stack, settings, Metrics(__version__), node_id, __version__)
        records = await open_records(opening)
        credentials = await open_credentials(opening, records)
        processes = await open_processes(opening, records.backends)
        routes = await open_routes(opening, credentials.sealer)
        sessions = await open_sessions(opening, records, credentials, processes, routes)
        membership, routing = join(opening, routes, sessions), routes.routing
        gateway = Gateway(
            settings=settings,
            metrics=opening.metrics,
            database=records.database,
            tenants=records.tenants,
            backends=records.backends,
            keys=records.keys,
            switches=records.switches,
            issuers=records.issuers,
            key_maker=credentials.key_maker,
            sealer=credentials.sealer,
            outbound=credentials.outbound,
            issuer_check=credentials.issuer_check,
            authenticator=credentials.authenticator,
            pool=processes.pool,
            registry=sessions.registry,
            guard=membership.guard,
            ownership=routes.ownership,
            router=membership.router,
            take_over=sessions.take_over,
            implicit=sessions.implicit,
            effects=make_effects(records, credentials, processes, routes, sessions, membership),
            overview=sessions.overview,
            node=AllNodes(sessions.overview, membership.heartbeat.peers.values, routing.peers, routing.url),
            routing=routing,
            heartbeat=membership.heartbeat,
            overload=sessions.overload,
            watch=records.watch,
            passing=Passing(),
        )
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        _start_tasks(tasks, gateway)
        if routing.redis is not None:
            _start_tasks_of_several(tasks, gateway, routing.redis, sessions.journals, membership.probe)
        for spec in records.warm:
            gateway.pool.configure(spec)
        yield gateway


def _start_tasks(tasks: TaskGroup, gateway: Gateway) -> None:
    """What goes on in every node by itself."""
    authenticator = gateway.authenticator
    tasks.start_soon(sweep_for_ever, gateway.registry, gateway.guard, gateway.implicit.sweep)
    tasks.start_soon(flush_for_ever, authenticator)
    tasks.start_soon(authenticator.watch.run)
    tasks.start_soon(authenticator.uses.run)
    tasks.start_soon(gateway.watch.run)
    tasks.start_soon(gateway.heartbeat.run)
    tasks.start_soon(gateway.overload.run)
    tasks.start_soon(gateway.effects.run)


def _start_tasks_of_several(
    tasks: TaskGroup, gateway: Gateway, redis: RedisConnection, journals: JournalWriter, probe: Silence
) -> None:
    """What nodes do that share a Redis, even where there is only one of them."""
    gates, pool, peers = gateway.registry.gates, gateway.pool, gateway.heartbeat.peers
    rates = SharedRates(gates, partial(redis.run, Script(RATES)))
    use = SharedUse(gates, pool, redis.pipeline, gateway.sealer, gateway.routing.node, lambda: tuple(peers))
    for run in (journals.run, rates.run, use.run):
        tasks.start_soon(run)
    tasks.start_soon(abandon_the_dead, peers, probe, gateway.routing.peers.abandon)
    tasks.start_soon(stay_acquainted, peers, gateway.routing.peers.probe)
