"""SharedProcesses: which sessions share which process. As few processes as needed; new sessions join the least busy."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import anyio.abc

from app.backends._plan import Key
from app.backends.connections._shared_process import SharedConnection, SharedProcess
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy, BackendUnavailable, GatewayError, ShuttingDown
from app.processes.process import BackendProcess
from app.telemetry.metrics import Metrics

ENOUGH_SESSIONS = 100  # of one process; then another is started, if `max_processes` allows
ENOUGH_CALLS = 64  # the same for calls that run or wait
LINGER_S = 60.0  # how long a process without sessions is kept; starting one may take seconds
SWEEP_S = 3.0

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """The index of the process to join (None: wait for the one that is started), and whether to start another."""

    place: int | None
    starts: bool


def choose(busyness: Sequence[tuple[int, int]], max_processes: int) -> Choice:
    """`busyness` is that of each process: its calls and sessions. Three cases: 1. there is no process: start one and
    wait; 2. the least busy one has room: join it; 3. it has none: join it, and start another for later sessions."""
    if not busyness:
        return Choice(None, True)
    place = min(range(len(busyness)), key=busyness.__getitem__)
    calls, sessions = busyness[place]
    has_room = calls < ENOUGH_CALLS and sessions < ENOUGH_SESSIONS
    return Choice(place, not has_room and len(busyness) < max_processes)


@dataclass(eq=False, slots=True)
class _Group:
    """One backend's processes, and the start of one more, for which all new sessions wait."""

    processes: list[SharedProcess] = field(default_factory=list)
    start: asyncio.Future[None] | None = None

    def start_begun(self) -> None:
        self.start = asyncio.get_running_loop().create_future()

    def start_ended(self, error: GatewayError | None) -> None:
        start, self.start = self.start, None
        assert start is not None
        if error is None:
            start.set_result(None)
        else:
            start.set_exception(error)
            start.exception()  # perhaps nobody waits: asyncio would log it


async def initialized(metrics: Metrics, process: BackendProcess) -> SharedProcess:
    """The pool calls this for each process that it has started for a shared backend.

    Raises:
        BackendError: it cannot be initialized.
    """
    shared = SharedProcess(process, metrics)
    await shared.greet(process.spec.timeouts.initialize_s)
    return shared


class SharedProcesses:
    """The processes of `isolation: shared`. ProcessLeasing runs `sweep_for_ever`, and calls `release` at the end.

    The pool starts (see `initialized`), counts and stops them, and keeps those warm that have no session yet.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._groups: dict[Key, _Group] = {}

    def release(self) -> None:
        """Stops all of them."""
        for group in self._groups.values():
            for process in group.processes:
                process.release("shutdown")
        self._groups.clear()

    async def lease(
        self, spec: BackendSpec, limits: Limits, principal: Principal, tasks: anyio.abc.TaskGroup
    ) -> SharedConnection:
        """A connection for this principal to a process that others use too. Waits only if there is none.

        Raises:
            GatewayError: as ProcessPool.lease.
        """
        while True:
            group = self._groups.setdefault(spec.key, _Group())
            candidates = [process for process in group.processes if process.may_be_joined]
            choice = choose([process.busyness for process in candidates], spec.max_processes)
            if choice.starts and group.start is None:
                group.start_begun()
                tasks.start_soon(self._start, group, spec, limits, name="start a shared backend")
            if choice.place is not None:
                return candidates[choice.place].join(principal)
            assert group.start is not None
            await self._wait_for(group.start, spec.key)

    async def _wait_for(self, start: asyncio.Future[None], key: Key) -> None:
        """For a place no longer than any other caller of the pool, and then until the process is initialized. If this
        caller leaves, others still wait."""
        await asyncio.wait([start], timeout=self._pool.joined(key))
        if not start.done():
            self._pool.require_start(key)
        await asyncio.shield(start)

    async def _start(self, group: _Group, spec: BackendSpec, limits: Limits) -> None:
        failure: GatewayError | None = ShuttingDown()  # if this is cancelled
        try:
            lease = await self._pool.lease(spec, limits)
            process = lease.prepared
            if isinstance(process, SharedProcess):
                process.adopt(lease, group.processes.remove)
                group.processes.append(process)
                failure = None
            else:  # the backend was changed, and its processes are not shared any more
                lease.release("not_shared")
                failure = BackendBusy("the backend has just been changed")
        except GatewayError as error:
            failure = error
        except Exception:
            log.exception("Could not start a process of shared backend %s", spec.name)
            failure = BackendUnavailable()
        finally:
            group.start_ended(failure)

    # --- time

    async def sweep_for_ever(self) -> None:
        while True:
            await anyio.sleep(SWEEP_S)
            try:
                self.sweep(time.monotonic())
            except Exception:
                log.exception("Could not sweep the shared processes; will retry in %.0f s", SWEEP_S)

    def sweep(self, now: float) -> None:
        """Stops processes without sessions: at once if new ones may not join, else after LINGER_S."""
        for key, group in list(self._groups.items()):
            for process in list(group.processes):
                process.tick()
                has_sessions = process.busyness[1] > 0
                if not has_sessions and (not process.may_be_joined or now - process.empty_since > LINGER_S):
                    group.processes.remove(process)
                    process.release("idle")
            if not group.processes and group.start is None:
                del self._groups[key]
