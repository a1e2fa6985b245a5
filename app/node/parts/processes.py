"""Backend processes: what starts them, what leases them, and where their homes are."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from app.backends.catalog.catalog import Catalog
from app.backends.catalog.knowledge import Knowledge
from app.backends.connections.leasing import ProcessLeasing
from app.backends.connections.shared_processes import initialized
from app.backends.connections.toolsets import Toolsets
from app.backends.failures import FailureLog
from app.backends.loop_use import LoopUse
from app.backends.openapi.apis import Apis
from app.backends.openapi.documents import Documents
from app.backends.packages.packages import Packages
from app.backends.pool import PoolOptions, ProcessPool
from app.backends.upstreams.upstreams import Upstreams
from app.domain import Limits
from app.domain.resources.guides import GUIDES
from app.domain.resources.recipes import RECIPES
from app.errors import SettingsError
from app.jail.sandbox.sandboxes import Sandboxes
from app.limits.caller_limits import CallerLimits
from app.limits.descriptors import ProcessRoom, due_to_clients
from app.limits.loop_shares import LoopShares
from app.limits.tenant_budgets import TenantBudgets
from app.limits.tenant_memory import TenantMemory
from app.node.parts.credentials import Credentials
from app.node.parts.opening import Opening
from app.node.parts.packages import open_containers, open_packages
from app.node.parts.records import Records
from app.node.parts.sandboxing import open_sandboxes, proxy_of_processes
from app.node.parts.upstreams import open_upstreams
from app.processes import homes, own_homes
from app.processes.forking.forking import ForkingOptions
from app.processes.pipes import PipeLimits
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.protocol.openapi.document import MAX_DOCUMENT_BYTES
from app.sessions.call_observers import waiting_for_a_process
from app.sessions.reclaiming import Reclaiming
from app.settings.environment import PREFIX
from app.settings.settings import Settings
from app.storage.backends import BackendRepository
from app.storage.tenants import TenantRepository

if TYPE_CHECKING:
    from app.backends.images.containers import Containers

_MOVE = "move what is still needed (docs/operations.md, Homes), then remove it"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processes:
    """`supervisor` owns them, `pool` hands them out, `leasing` shares or restarts them for sessions; `upstreams` has
    the sessions with servers elsewhere. `packages` installs what commands name, `containers` starts images. `catalog`
    knows what all of them offer, `knowledge` what administrators have written for their users, `toolsets` who uses
    several of them. `budgets`: how many processes a tenant may start; `memory` ends those that are too much. `shares`:
    of the event loop. `caller_limits`: how often callers have called."""

    sandboxes: Sandboxes
    packages: Packages
    containers: "Containers | None"
    supervisor: Supervisor
    budgets: TenantBudgets
    memory: TenantMemory
    failures: FailureLog
    pool: ProcessPool
    upstreams: Upstreams
    documents: Documents
    leasing: ProcessLeasing
    catalog: Catalog
    knowledge: Knowledge
    toolsets: Toolsets
    shares: LoopShares
    caller_limits: CallerLimits


async def open_processes(opening: Opening, records: Records, credentials: Credentials) -> Processes:
    """Starts no process yet. Raises SettingsError: the directory of homes cannot be made."""
    settings, metrics, stack = opening.settings, opening.metrics, opening.stack
    budgets = TenantBudgets(metrics, partial(_limits_of, records.tenants))
    proxy, containers = proxy_of_processes(settings), await open_containers(opening)
    sandboxes = await open_sandboxes(opening, budgets.memory_mb_of, proxy, containers)
    packages = await open_packages(opening, records, sandboxes, lambda: _folders_in_use(supervisor), proxy)
    options = SupervisorOptions(
        confiner=sandboxes,
        homes=await _open_homes(settings, records.backends),
        limits=PipeLimits(line_bytes=settings.max_line_bytes),
        sched_batch=True,
        forking=ForkingOptions(settings.fork_templates, settings.fork_template_idle_s),
        shares=opening.shares,
        install=packages.ready,
    )
    supervisor = await stack.enter_async_context(Supervisor(metrics, options))
    failures = FailureLog(opening.node_id, users_of=opening.sessions.users_of)
    limits = PoolOptions(
        max_processes=settings.max_processes, deadline_s=settings.pool_wait_s, warm_bytes=settings.warm_memory_mb << 20
    )
    memory = TenantMemory(budgets, lambda: supervisor.processes, sandboxes)
    supervisor.meter.measured.listen(memory.measured)
    pool = ProcessPool(
        supervisor,
        metrics,
        limits,
        budgets=budgets,
        failures=failures,
        prepare=partial(initialized, metrics),
        reclaim=Reclaiming(opening.sessions, opening.standstill, opening.parking).reclaim,
        waits=None if opening.tracer is None else partial(waiting_for_a_process, opening.tracer),
        is_busy=LoopUse().is_busy,
        room=ProcessRoom(settings.shed_sessions_percent / 100, due=partial(due_to_clients, metrics)).left,
    )
    await stack.enter_async_context(pool)
    apis = Apis(records.backends.api)
    upstreams = await open_upstreams(opening, credentials, apis, failures)
    documents = Documents(partial(upstreams.fetch, limit_bytes=MAX_DOCUMENT_BYTES), apis)
    catalog = Catalog(records.catalog, records.approvals, records.directory.find, pool, upstreams, metrics)
    knowledge = Knowledge(records.stored.of(GUIDES), records.stored.of(RECIPES))
    caller_limits = CallerLimits(metrics.rate_limited)
    toolsets = Toolsets(records.directory.find, catalog, knowledge, metrics, caller_limits, opening.shares)
    catalog.changed.listen(toolsets.offer_changed)
    knowledge.changed.listen(toolsets.writings_changed)
    leasing = await stack.enter_async_context(ProcessLeasing(pool, toolsets, upstreams, find=records.directory.find))
    return Processes(
        sandboxes, packages, containers, supervisor, budgets, memory, failures, pool, upstreams, documents, leasing,
        catalog, knowledge, toolsets, opening.shares, caller_limits,
    )  # fmt: skip


def _folders_in_use(supervisor: Supervisor) -> set[str]:
    return {process.spec.installed for process in supervisor.processes if process.spec.installed}


async def _limits_of(tenants: TenantRepository, tenant: str) -> Limits:
    return (await tenants.get(tenant)).limits


async def _open_homes(settings: Settings, backends: BackendRepository) -> homes.Homes:
    """Older versions had one home for all backends: it goes to the only tenant that has backends. If there are several,
    it stays, as nobody knows whose files are in it."""
    root, old = settings.homes, settings.data_dir / "backends" / "home"
    try:
        await anyio.to_thread.run_sync(homes.make_root, root)
    except OSError as error:
        raise SettingsError(f"{PREFIX}HOMES_DIR: cannot make {str(root)!r}: {error.strerror}") from None
    if left := await anyio.to_thread.run_sync(own_homes.remove_leftovers, root):
        log.info("removed the private homes of %d processes whose node had died", left)
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
