"""Sessions and sessionless requests of this node, their journals, and the refusals under overload."""

from dataclasses import dataclass
from functools import partial

from app import __version__
from app.backends.pool import ProcessPool
from app.backends.upstreams.upstream_secrets import SecretOpener
from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.watching import Watching
from app.cluster.redis.latency import Latency
from app.cluster.session_takeover import SessionTakeover
from app.domain import BackendSpec
from app.jail.sandbox.report import view_of
from app.limits.descriptors import due_to_clients
from app.limits.overload import Marks, Overload
from app.limits.tenant_limits import Tallies
from app.limits.use_metrics import show_use
from app.node.parts.credentials import Credentials
from app.node.parts.kept_calls import KeptCalls, keep_calls
from app.node.parts.opening import Opening
from app.node.parts.processes import Processes
from app.node.parts.records import Records
from app.node.parts.routes import Routes
from app.node.parts.watching import Watched, watch
from app.sessions.call_observers import Watchers
from app.sessions.open_sessions import note_failed, note_timeout
from app.sessions.registry import SessionRegistry
from app.sessions.routes import caller_key
from app.sessions.sessionless.pooled_session import CallerHomes
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.sessionless.suspended_calls import Place
from app.storage.audit_queries import AuditLog
from app.telemetry.call_history.history import CallHistory
from app.telemetry.metrics import value_of


@dataclass(frozen=True, slots=True)
class Sessions:
    """Where there are several nodes, `journals` are written, and `take_over` reads those of other nodes."""

    overload: Overload
    journals: JournalWriter
    registry: SessionRegistry
    sessionless: SessionlessRequests
    take_over: SessionTakeover
    overview: NodeOverview
    watching: Watching
    latency: Latency | None
    history: CallHistory
    inspecting: Inspecting
    kept_calls: KeptCalls


async def open_sessions(
    opening: Opening, records: Records, credentials: Credentials, processes: Processes, routes: Routes
) -> Sessions:
    settings, metrics = opening.settings, opening.metrics
    routing, ownership, pool = routes.routing, routes.ownership, processes.pool
    overload = _overload(opening, pool)
    journals = JournalWriter(routing.journals, credentials.sealer, on_fenced=ownership.doubt)
    durability = Durability(journals, processes.leasing.restore, adopt=opening.parking.adopt)
    inspecting = _inspecting(opening, records, credentials, processes)
    failed = partial(note_failed, processes.failures, processes.supervisor.find)
    history = CallHistory(settings.calls_per_tenant, settings.calls_memory_mb << 20)
    registry = await opening.stack.enter_async_context(
        SessionRegistry(
            records.directory,
            processes.leasing,
            metrics,
            ownership,
            max_sessions=settings.max_sessions,
            stream_after_s=settings.stream_after_s,
            overload=overload,
            sessions=opening.sessions,
            standstill=opening.standstill,
            parking=opening.parking,
            durability=None if routing.is_alone else durability,
            on_timeout=partial(note_timeout, processes.failures, processes.supervisor.find),
            tallies=(tallies := Tallies()),
            watchers=Watchers(history, opening.tracer, failed),
        )
    )
    _show_use(opening, registry, processes)
    homes = CallerHomes(ownership.may_have_pooled_session, lambda caller: ownership.release(caller_key(*caller)))
    here = Place(opening.node_id, routing.url)
    sessionless = SessionlessRequests(registry, credentials.sealer, here=here, homes=homes)
    take_over = SessionTakeover(ownership, records.directory, partial(durability.restore, registry.restored), metrics)
    pooled = sessionless.pooled_sessions
    routes.caller_lost.listen(lambda route: pooled.lost((route.identity, route.tenant, route.backend)))
    redis, sandbox = routing.redis, view_of(opening.node_id, processes.sandboxes)
    latency = None if redis is None else Latency(partial(redis.execute, "PING"))
    parts = (records, credentials, processes, routes, registry, overload, sandbox, latency, inspecting)
    watching = watch(Watched(opening.node_id, *parts, opening.certificate), tallies)
    overview = NodeOverview(
        opening.node_id,
        __version__,
        registry,
        pool,
        processes.supervisor,
        processes.budgets,
        sandbox,
        partial(value_of, metrics.connections),
        credentials.authenticator.uses,
        processes.upstreams,
        watching,
        history,
        inspecting,
        processes.caller_limits,
    )
    kept = keep_calls(opening, records, history)
    return Sessions(
        overload, journals, registry, sessionless, take_over, overview, watching, latency, history, inspecting, kept
    )


def _overload(opening: Opening, pool: ProcessPool) -> Overload:
    settings = opening.settings
    marks = Marks(settings.shed_lag_s, settings.shed_sessions_percent / 100, settings.shed_calls_percent / 100)
    return Overload(opening.metrics, marks, due=lambda: due_to_clients(opening.metrics, sum(pool.used().values())))


def _inspecting(opening: Opening, records: Records, credentials: Credentials, processes: Processes) -> Inspecting:
    pool, upstreams, opener = processes.pool, processes.upstreams, SecretOpener(credentials.sealer)

    def specs_of(key: tuple[str, str]) -> list[BackendSpec]:
        running = [each.spec for each in processes.supervisor.processes if each.spec.key == key]
        return [*running, *(each for each in (pool.spec_of(key), upstreams.spec_of(key)) if each is not None)]

    def headers_of(spec: BackendSpec) -> list[str]:
        return [] if spec.url is None else list(opener(spec).headers.values())

    memory = opening.settings.inspection_memory_mb << 20
    write = AuditLog(records.database).append
    return Inspecting(
        opening.node_id, opening.sessions, specs_of, headers_of, write, opening.metrics, memory, opening.shares.charge
    )


def _show_use(opening: Opening, registry: SessionRegistry, processes: Processes) -> None:
    of_node = {
        "node_sessions": registry.sessions_of_node,
        "node_processes": processes.pool.processes_of_node,
        "node_waiting": processes.pool.waiting_of_node,
    }
    show_use(opening.metrics, registry.gates, processes.pool.used_of, of_node)
