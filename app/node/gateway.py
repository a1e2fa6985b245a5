"""open_gateway: builds every long-lived object of a node, and closes them in reverse. Read it top to bottom for
the start, bottom to top for the end. What the groups of objects are made of is in `parts`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from app import __version__
from app.cluster.caller_counts import CallerCounts
from app.cluster.changes import Changes
from app.cluster.cluster_rates import SCRIPT as RATES
from app.cluster.cluster_rates import ClusterRates
from app.cluster.cluster_use import ClusterUse
from app.cluster.node_status.change_effects import ChangeEffects
from app.cluster.opening import Routing
from app.cluster.peers.dead_nodes import abandon_the_dead, stay_acquainted
from app.cluster.peers.passing import Passing
from app.cluster.reconcile import Reconciler
from app.node.certificate_files import CertificateFiles
from app.node.jobs import Job, keep_running
from app.node.parts.credentials import Credentials, flush_for_ever, open_credentials
from app.node.parts.membership import LAST_WORDS_S, Membership, join, node_leaves
from app.node.parts.opening import Opening
from app.node.parts.processes import Processes, open_processes
from app.node.parts.records import Records, find_registered, open_records
from app.node.parts.routes import Routes, open_routes
from app.node.parts.sessions import Sessions, open_sessions
from app.node.parts.tracing import open_tracing
from app.node.readiness import (
    changes_words,
    database_words,
    nodes_words,
    overload_words,
    redis_words,
    routes_words,
    slow_words,
)
from app.sessions.routes import new_node_id
from app.sessions.sweeping import sweep_for_ever
from app.settings.settings import Settings
from app.storage.call_counts import CallCountRepository
from app.telemetry.metrics import Metrics
from app.telemetry.tracing.tracer import Tracer

if TYPE_CHECKING:
    from app.cluster.redis.connection import RedisConnection


@dataclass(frozen=True, slots=True)
class Gateway:
    """One node's long-lived objects; `open_gateway` owns them."""

    settings: Settings
    metrics: Metrics
    records: Records
    credentials: Credentials
    processes: Processes
    routes: Routes
    sessions: Sessions
    membership: Membership
    changes: Changes
    passing: Passing
    tracer: Tracer | None

    @property
    def routing(self) -> Routing:
        """What connects this node to the others."""
        return self.routes.routing

    async def check(self) -> dict[str, str]:
        """Whether this node can serve, part by part (fulfils `http.health.Readiness`)."""
        registry, problem = self.sessions.registry, self.records.watch.problem
        parts = {
            "sessions": "shutting down" if registry.is_stopping else "ok",
            "database": "ok" if problem is None else database_words(problem),
        }
        if not self.membership.is_known:  # later a node serves its own sessions without Redis
            parts["routes"] = routes_words()
        return parts

    def degraded(self) -> dict[str, str]:
        """What does not work although the node can serve, each with what to do."""
        redis, overload, nodes = self.routing.redis, self.sessions.overload, self.routing.peers.problems
        words, database = {}, self.records.watch
        if database.problem is None and database.refusal is not None:
            words["database"] = changes_words(database.refusal)
        elif database.problem is None and database.slowness is not None:
            words["database"] = slow_words(database.slowness)
        if redis is not None and redis.problem is not None:
            words["redis"] = redis_words(redis.problem, is_up=redis.is_up)
        if overload.sessions is not None:
            words["overload"] = overload_words(overload.problem or "", (overload.calls or overload.sessions).mark)
        if nodes:
            words["nodes"] = nodes_words(nodes)
        return words

    async def say_it_leaves(self) -> None:
        """Tells the other nodes, before anything else: from now on they open nothing here, keep no connections, and do
        not count this node as dead when it is gone. Its sessions are still here."""
        self.sessions.registry.leave()
        if self.routing.notices is not None:
            with anyio.move_on_after(LAST_WORDS_S):
                await self.membership.heartbeat.beat()
                await self.routing.notices.say_leaving()

    async def drain(self, seconds: float) -> int:
        """Ends this node's sessions, handing over those that can continue elsewhere, and leaves the other nodes.
        Streams of other nodes' sessions end meanwhile; their other requests are left to `passing.finish`.

        Returns:
            How many calls were cut off.
        """
        registry, ownership = self.sessions.registry, self.routes.ownership
        if self.routing.notices is None:
            return await registry.drain(seconds)
        ownership.release_callers()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.passing.end_streams, seconds)
            cut_off = await registry.drain(seconds)
            tasks.cancel_scope.cancel()
        await ownership.flush(LAST_WORDS_S)
        await self.routing.notices.say_leaving()
        await self.membership.heartbeat.leave()
        return cut_off


@asynccontextmanager
async def open_gateway(
    settings: Settings, node_id: str | None = None, certificate: CertificateFiles | None = None
) -> AsyncIterator[Gateway]:
    """Opens a node on a migrated database, under a new id unless there is a `node_id`. What is wrong with the
    `certificate` is among what is wrong with the node.

    Raises:
        GatewayError: something that is needed does not work; nothing stays open.
    """
    async with AsyncExitStack() as stack:
        node_id = node_id or new_node_id(settings.node_name)
        metrics = Metrics(__version__, settings.metrics_per_backend)
        tracer = open_tracing(stack, settings, metrics, node_id)  # closed last: what ends has spans too
        opening = Opening.of_node(stack, settings, metrics, node_id, tracer, certificate)
        records = await open_records(opening)
        credentials = await open_credentials(opening, records)
        processes = await open_processes(opening, records, credentials)
        routes = await open_routes(opening, credentials.sealer)
        sessions = await open_sessions(opening, records, credentials, processes, routes)
        membership = join(opening, credentials, routes, sessions)
        local = ChangeEffects(
            credentials.authenticator,
            records.directory,
            processes.pool,
            processes.upstreams,
            processes.toolsets,
            sessions.registry,
            sessions.sessionless,
            processes.budgets,
            processes.knowledge,
            sessions.history,
            sessions.inspecting,
            dict(records.tenants_off),
        )
        find = partial(find_registered, records.backends, records.toolsets)
        reconciler = Reconciler(
            local,
            find,
            records.backends,
            records.tenants,
            records.keys,
            records.issuers,
            records.switches,
            records.connections,
        )
        leaves = partial(node_leaves, routes=routes, membership=membership)
        changes = Changes(local, reconciler, records.trail, routes.routing.notices, leaves)
        records.database.after_commits(changes.committed)
        parts = (records, credentials, processes, routes, sessions, membership, changes)
        gateway = Gateway(settings, metrics, *parts, Passing(), tracer)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        opening.standstill.resolved(opening.standstill.now())  # nothing was owned while it opened
        _start_jobs(tasks, gateway)
        if gateway.routing.redis is not None:
            _start_jobs_of_several(tasks, gateway, gateway.routing.redis)
        for spec in records.warm:
            processes.pool.configure(spec)
        yield gateway


def _start_jobs(tasks: TaskGroup, gateway: Gateway) -> None:
    """The jobs of every node, alone or not."""
    sessions, membership, authenticator = gateway.sessions, gateway.membership, gateway.credentials.authenticator
    processes, watching = gateway.processes, sessions.watching
    sweep = partial(sweep_for_ever, sessions.registry.sweeping, membership.guard, sessions.sessionless.sweep)
    vital: dict[str, Job] = {
        "sweep sessions": sweep,
        "end what has expired": authenticator.run,
        "watch the database": gateway.records.watch.run,
        "heartbeat": membership.heartbeat.run,
        "follow changes": gateway.changes.run,
    }
    others: dict[str, Job] = {
        "save when keys were used": partial(flush_for_ever, authenticator),
        "count uses of credentials": authenticator.uses.run,
        "measure the load": sessions.overload.run,
        "look up limits": processes.budgets.run,
        "ask backends what they offer": processes.catalog.run,
        "keep what backends offer": processes.knowledge.run,
        "index what toolsets show": processes.toolsets.run,
        "measure memory": processes.memory.run,
        "remove packages": processes.packages.run,
        "note activity": watching.activity.run,
        "look for problems": watching.problems.run,
        "keep calls": sessions.kept_calls.run,
        "end inspections": sessions.inspecting.run,
    }
    redis = gateway.routing.redis
    counts = CallCountRepository(gateway.records.database) if redis is None else CallerCounts(redis)
    others["count calls of callers"] = partial(processes.caller_limits.run, counts)
    if processes.containers is not None:
        others["remove containers"] = processes.containers.run
    if sessions.latency is not None:
        others["measure latency"] = sessions.latency.run
    _start(tasks, gateway, vital, is_vital=True)
    _start(tasks, gateway, others)


def _start(tasks: TaskGroup, gateway: Gateway, jobs: Mapping[str, Job], *, is_vital: bool = False) -> None:
    for name, job in jobs.items():
        tasks.start_soon(partial(keep_running, name, job, gateway.metrics.job_failures, is_vital=is_vital), name=name)


def _start_jobs_of_several(tasks: TaskGroup, gateway: Gateway, redis: "RedisConnection") -> None:
    """The jobs of nodes with a Redis, even if there is only one of them."""
    from app.cluster.redis.connection import Script  # noqa: PLC0415 - a node without Redis needs nothing of redis-py

    routing, sessions, peers = gateway.routing, gateway.sessions, gateway.membership.heartbeat.peers
    gates, sealer = sessions.registry.gates, gateway.credentials.sealer
    budgets, pool = gateway.processes.budgets, gateway.processes.pool
    jobs: dict[str, Job] = {
        "keep journals": sessions.journals.run,
        "share rates": ClusterRates([gates, budgets], partial(redis.run, Script(RATES))).run,
        "share use": ClusterUse(gates, budgets, pool, redis, sealer, routing.node, lambda: tuple(peers)).run,
        "abandon dead nodes": partial(abandon_the_dead, peers, gateway.membership.probe, routing.peers.abandon),
        "stay acquainted with nodes": partial(stay_acquainted, peers, routing.peers.probe),
    }
    _start(tasks, gateway, jobs)
