"""SharedProcesses: which sessions share which process. As few processes as are needed, the least busy first."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import anyio
import anyio.abc

from app.backends.plan import Key
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy, BackendUnavailable, GatewayError, ShuttingDown
from app.links.shared_process import SharedLink, SharedProcess
from app.metrics import Metrics
from app.processes.process import BackendProcess

ENOUGH_SESSIONS = 100  # of one process: from then on another is started, if there may be one
ENOUGH_CALLS = 64  # the same for calls that run or wait
LINGER_S = 60.0  # a process without sessions waits so long for another; starting one may take seconds
SWEEP_S = 3.0

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """The process to join, by its place (None: wait for the one that is started), and whether to start another."""

    place: int | None
    starts: bool


def choose(busyness: Sequence[tuple[int, int]], max_processes: int) -> Choice:
    """Three cases: 1. there is no process: start one and wait; 2. the least busy one has room: join it; 3. it has
    none: join it all the same, and start another for those to come if there may be one more."""
    if not busyness:
        return Choice(None, True)
    place = min(range(len(busyness)), key=busyness.__getitem__)
    calls, sessions = busyness[place]
    has_room = calls < ENOUGH_CALLS and sessions < ENOUGH_SESSIONS
    return Choice(place, not has_room and len(busyness) < max_processes)


@dataclass(eq=False, slots=True)
class _Start:
    """A process on its way; whoever needs it waits for the same one."""

    is_over: anyio.Event = field(default_factory=anyio.Event)
    error: GatewayError | None = None


@dataclass(eq=False, slots=True)
class _Group:
    """One backend's processes."""

    processes: list[SharedProcess] = field(default_factory=list)
    start: _Start | None = None


class SharedProcesses:
    """Fulfils LinkSource for `isolation: shared`. Used as `async with`, inside the pool's own block.

    The pool starts, counts and stops the processes, and holds those warm that have no session yet.
    """

    def __init__(self, pool: ProcessPool, metrics: Metrics) -> None:
        self._pool, self._metrics = pool, metrics
        self._groups: dict[Key, _Group] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        pool.prepare = self._prepare

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._sweep_for_ever, name="sweep shared processes")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        for group in self._groups.values():
            for process in group.processes:
                process.release("shutdown")
        self._groups.clear()

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> SharedLink:
        """A link for this principal to a process that others use too. Waits only if there is none.

        Raises:
            GatewayError: as ProcessPool.lease.
        """
        while True:
            if self._tasks is None:
                raise ShuttingDown
            group = self._groups.setdefault(spec.key, _Group())
            candidates = [process for process in group.processes if process.may_be_joined]
            choice = choose([process.busyness for process in candidates], spec.max_processes)
            if choice.starts and group.start is None:
                group.start = _Start()
                self._tasks.start_soon(self._start, group, group.start, spec, limits, name="start a shared backend")
            if choice.place is not None:
                return candidates[choice.place].join(principal)
            assert group.start is not None
            start = group.start
            await start.is_over.wait()
            if start.error is not None:
                raise start.error

    async def _start(self, group: _Group, start: _Start, spec: BackendSpec, limits: Limits) -> None:
        try:
            lease = await self._pool.lease(spec, limits)
            process = lease.prepared
            if isinstance(process, SharedProcess):
                process.adopt(lease)
                process.on_gone = group.processes.remove
                group.processes.append(process)
            else:  # the backend was changed, and shares nothing any more
                lease.release("not_shared")
                start.error = BackendBusy("the backend has just been changed")
        except GatewayError as error:
            start.error = error
        except Exception:
            log.exception("a shared backend could not be started")
            start.error = BackendUnavailable()
        finally:
            group.start = None
            start.is_over.set()

    async def _prepare(self, process: BackendProcess) -> SharedProcess:
        """Called by the pool for each process that it has started for a shared backend.

        Raises:
            BackendError: it cannot be initialised.
        """
        shared = SharedProcess(process, self._metrics)
        await shared.greet(process.spec.timeouts.initialize_s)
        return shared

    # --- time

    async def _sweep_for_ever(self) -> None:
        while True:
            await anyio.sleep(SWEEP_S)
            try:
                self.sweep(time.monotonic())
            except Exception:
                log.exception("a sweep over the shared processes failed")

    def sweep(self, now: float) -> None:
        """Stops processes that have no session: at once if they may get none any more, else after a while."""
        for key, group in list(self._groups.items()):
            for process in list(group.processes):
                process.tick()
                has_sessions = process.busyness[1] > 0
                if not has_sessions and (not process.may_be_joined or now - process.empty_since > LINGER_S):
                    group.processes.remove(process)
                    process.release("idle")
            if not group.processes and group.start is None:
                del self._groups[key]

    def __repr__(self) -> str:
        processes = [process for group in self._groups.values() for process in group.processes]
        return f"<SharedProcesses [{len(processes)} processes, {sum(p.busyness[1] for p in processes)} sessions]>"
