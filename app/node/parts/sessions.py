"""Sessions of this node, requests that name none, and what limits and outlives them."""

from dataclasses import dataclass
from functools import partial

from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.cluster.takeover import TakeOver
from app.limits.overload import Marks, Overload
from app.limits.use_metrics import TenantsUse, show_use
from app.node.parts.credentials import Credentials
from app.node.parts.opening import Opening
from app.node.parts.processes import Processes
from app.node.parts.records import Records
from app.node.parts.routes import Routes
from app.routing.routes import caller_key
from app.sessionless.pooled_session import CallerHomes
from app.sessionless.requests import SessionlessRequests
from app.sessionless.suspended_calls import Place
from app.sessions.affected import note_timeout, users_of
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.standstill import Fence
from app.this_node.overview import NodeOverview


@dataclass(frozen=True, slots=True)
class Sessions:
    """`journals` are written, and `take_over` reads those of others, where there are several nodes."""

    directory: BackendDirectory
    overload: Overload
    fence: Fence
    journals: JournalWriter
    registry: SessionRegistry
    implicit: SessionlessRequests
    take_over: TakeOver
    overview: NodeOverview


async def open_sessions(
    opening: Opening, records: Records, credentials: Credentials, processes: Processes, routes: Routes
) -> Sessions:
    """There are none yet."""
    settings, metrics = opening.settings, opening.metrics
    routing, ownership, pool = routes.routing, routes.ownership, processes.pool
    overload = Overload(
        metrics,
        Marks(settings.shed_lag_s, settings.shed_sessions_percent / 100, settings.shed_calls_percent / 100),
    )
    directory = BackendDirectory(records.backends, records.tenants)
    journals = JournalWriter(routing.journals, credentials.sealer, on_fenced=ownership.doubt)
    durability, fence = Durability(journals, processes.lender), Fence()
    registry = await opening.stack.enter_async_context(
        SessionRegistry(
            directory,
            processes.lender,
            metrics,
            ownership,
            max_sessions=settings.max_sessions,
            stream_after_s=settings.stream_after_s,
            overload=overload,
            fence=fence,
            durability=None if routing.is_alone else durability,
            on_timeout=partial(note_timeout, processes.failures, processes.supervisor.find),
        )
    )
    processes.failures.users_of = partial(users_of, registry)
    pool.reclaim = registry.reclaiming.reclaim
    _show_use(opening, registry, processes)
    homes = CallerHomes(ownership.may_have_line, lambda caller: ownership.release(caller_key(*caller)))
    here = Place(opening.node_id, routing.url)
    implicit = SessionlessRequests(registry, credentials.sealer, here=here, homes=homes)
    take_over = TakeOver(ownership, directory, partial(durability.restore, registry), metrics)
    ownership.on_session_lost = registry.lost
    ownership.on_caller_lost = lambda route: implicit.lines.lost((route.identity, route.tenant, route.backend))
    uses = credentials.authenticator.uses
    overview = NodeOverview(
        opening.node_id, opening.version, registry, pool, processes.supervisor, metrics.connections_open, uses
    )
    return Sessions(directory, overload, fence, journals, registry, implicit, take_over, overview)


def _show_use(opening: Opening, registry: SessionRegistry, processes: Processes) -> None:
    of_node = {
        "node_sessions": registry.sessions_of_node,
        "node_processes": processes.pool.processes_of_node,
        "node_waiting": processes.pool.waiting_of_node,
    }
    show_use(opening.metrics, TenantsUse(registry.gates, processes.pool.used_of), of_node)
