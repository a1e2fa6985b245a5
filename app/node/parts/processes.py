"""Processes of backends: who starts them, who hands them out, and where they have their homes."""

import logging
from dataclasses import dataclass

import anyio.to_thread

from app.backends.failures import FailureLog
from app.backends.pool import PoolOptions, ProcessPool
from app.config.environment import PREFIX
from app.config.settings import Settings
from app.errors import SettingsError
from app.links.leasing import ProcessLeasing
from app.node.parts.opening import Opening
from app.processes import homes
from app.processes.pipes import PipeLimits
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.storage.backends import BackendRepository

_MOVE = "move what is still needed (docs/operations.md, Homes), then remove it"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processes:
    """The supervisor owns them, the pool leases them, the lender shares or restarts them."""

    supervisor: Supervisor
    failures: FailureLog
    pool: ProcessPool
    lender: ProcessLeasing


async def open_processes(opening: Opening, backends: BackendRepository) -> Processes:
    """None is started yet.

    Raises:
        SettingsError: there is no place for homes.
    """
    settings, metrics, stack = opening.settings, opening.metrics, opening.stack
    options = SupervisorOptions(
        homes=await _open_homes(settings, backends),
        limits=PipeLimits(line_bytes=settings.max_line_bytes),
        sched_batch=True,
    )
    supervisor = await stack.enter_async_context(Supervisor(metrics, options))
    failures = FailureLog(opening.node_id)
    limits = PoolOptions(max_processes=settings.max_processes, deadline_s=settings.pool_wait_s)
    pool = await stack.enter_async_context(ProcessPool(supervisor, metrics, limits, failures=failures))
    lender = await stack.enter_async_context(ProcessLeasing(pool, metrics))
    return Processes(supervisor, failures, pool, lender)


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
