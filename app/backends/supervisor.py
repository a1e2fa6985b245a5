"""Supervisor: owns every backend process of the node, from fork to reap."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread
import psutil

from app.backends.pipes import PipeLimits
from app.backends.process import BackendProcess
from app.backends.states import ProcessState
from app.domain import BackendSpec
from app.errors import BackendExited, ShuttingDown
from app.metrics import Metrics
from app.spawner.client import Command, SpawnerClient, SpawnFailed

logger = logging.getLogger(__name__)

EOF_GRACE_S = 2.0  # a server that reads its stdin ends by itself
TERM_GRACE_S = 2.0  # a server that handles SIGTERM cleans up
KILL_WAIT_S = 5.0  # a process in the kernel's hands (disk, NFS) may take longer; then we stop waiting, not owning
SWEEP_S = 0.25  # how late a stalled or a flooding process may be noticed
MEMORY_SWEEPS = 40  # resident memory is read once in so many sweeps

_HINTS = {
    "No such file or directory": "Is the command installed, and on the gateway's PATH?",
    "Permission denied": "Is the command executable, and by the gateway's user?",
    "Exec format error": "Is it a program, or a script with a `#!` line?",
}


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """What every backend gets before what it declares itself. Nothing of the gateway's own environment."""

    path: str
    home: str
    tmpdir: str

    @classmethod
    def of_this_process(cls, home: str, tmpdir: str) -> Self:
        """The gateway's PATH, and the given directories."""
        return cls(os.environ.get("PATH", os.defpath), home, tmpdir)

    def build(self, declared: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of one process; the spawner adds its marker."""
        return {"PATH": self.path, "HOME": self.home, "TMPDIR": self.tmpdir, "LANG": "C.UTF-8", **declared}


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How processes are started and stopped."""

    environment: ProcessEnvironment
    limits: PipeLimits = field(default_factory=PipeLimits)
    sched_batch: bool = False
    eof_grace_s: float = EOF_GRACE_S
    term_grace_s: float = TERM_GRACE_S
    kill_wait_s: float = KILL_WAIT_S
    sweep_s: float = SWEEP_S


class Supervisor:
    """Starts and stops processes, looks after them meanwhile, and tells how each ended.

    Used as `async with Supervisor(...)`: leaving the block stops everything.
    """

    def __init__(self, metrics: Metrics, options: SupervisorOptions) -> None:
        self._metrics = metrics
        self._options = options
        self._spawner = SpawnerClient()
        self._processes: dict[BackendProcess, Callable[[BackendProcess], None]] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()
        for state in ProcessState:
            if state is not ProcessState.GONE:
                metrics.processes.labels(state.value).set_function(partial(self.count, state))

    def __repr__(self) -> str:
        counts = Counter(process.state.value for process in self._processes)
        return f"<Supervisor [{', '.join(f'{count} {state}' for state, count in sorted(counts.items())) or 'idle'}]>"

    async def __aenter__(self) -> Self:
        """Raises SpawnFailed if no process can be started here at all."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_spawner)
            await self._spawner.start()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._sweep, name="sweep backends")
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop_all()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            self._tasks = None
        await self._resources.aclose()

    async def _close_spawner(self) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the client's own time-out
            await self._spawner.aclose()

    @property
    def processes(self) -> list[BackendProcess]:
        """All that have not been reaped."""
        return list(self._processes)

    def count(self, state: ProcessState) -> int:
        """How many processes are in this state."""
        return sum(process.state is state for process in list(self._processes))

    # --- starting

    async def spawn(self, spec: BackendSpec, on_gone: Callable[[BackendProcess], None]) -> BackendProcess:
        """Starts one process of this backend; `on_gone` is called once when it has ended.

        Raises:
            BackendExited: it could not be started (`started` is False).
        """
        if self._tasks is None:
            raise ShuttingDown
        options = self._options
        process = BackendProcess(spec, self._spawner, options.limits, self._on_gone)
        command = Command(
            [spec.command, *spec.args],
            options.environment.build(spec.env),
            options.environment.home,
            options.sched_batch,
        )
        self._processes[process] = on_gone
        try:
            await process.start(command)
        except BaseException as error:
            del self._processes[process]
            if isinstance(error, SpawnFailed):
                self._metrics.process_spawns.labels("failed").inc()
                raise _not_started(spec, error) from error
            raise
        self._metrics.process_spawns.labels("started").inc()
        self._metrics.process_spawn_seconds.observe(process.spawn_seconds)
        return process

    def _on_gone(self, process: BackendProcess) -> None:
        on_gone = self._processes.pop(process)
        assert process.exit is not None
        reason = process.exit.reason
        self._metrics.process_exits.labels(reason).inc()
        if reason != "stopped":
            logger.warning(
                "a backend's process ended: %s",
                process.exit.description,
                extra=_names(process) | {"reason": reason, "stderr": process.exit.stderr},
            )
        try:
            on_gone(process)
        except Exception:
            logger.exception("the end of a backend's process was not handled")

    # --- stopping

    def stop_soon(self, process: BackendProcess) -> None:
        """Starts the ladder and returns; it goes on whatever happens to the caller. Idempotent."""
        if self._tasks is not None and not process.is_stopping():
            process.begin_stop()
            self._tasks.start_soon(self._descend, process, name="stop a backend")

    async def stop(self, process: BackendProcess) -> None:
        """Stops a process and waits until it has been reaped. A caller that is cancelled only stops waiting."""
        self.stop_soon(process)
        await process.wait_gone()

    async def stop_all(self) -> None:
        """Stops everything at once and waits for it, no longer than the ladder takes."""
        processes = self.processes
        for process in processes:
            self.stop_soon(process)
        options = self._options
        with anyio.move_on_after(options.eof_grace_s + options.term_grace_s + options.kill_wait_s):
            for process in processes:
                await process.wait_gone()

    async def _descend(self, process: BackendProcess) -> None:
        """The ladder below its first rung (begin_stop): SIGTERM, SIGKILL of the tree, and patience."""
        with anyio.CancelScope(shield=True):  # each wait is bounded; half a ladder would leave the process
            if await _gone_within(process, self._options.eof_grace_s):
                return
            process.terminate()
            if await _gone_within(process, self._options.term_grace_s):
                return
            process.kill()
            if not await _gone_within(process, self._options.kill_wait_s):
                logger.error("a backend's process survives SIGKILL", extra=_names(process))

    # --- looking after

    async def _sweep(self) -> None:
        sweeps = 0
        while True:
            await anyio.sleep(self._options.sweep_s)
            now = time.monotonic()
            try:
                for process in self.processes:
                    process.sweep(now)
                sweeps += 1
                if sweeps % MEMORY_SWEEPS == 0:
                    await self._measure_memory()
            except Exception:
                logger.exception("a sweep over the backends failed")

    async def _measure_memory(self) -> None:
        leaders = {process.pid: process for process in self._processes if process.pid}
        resident = await anyio.to_thread.run_sync(_resident_bytes, frozenset(leaders))
        for pid, process in leaders.items():
            process.resident_bytes = resident.get(pid, 0)
        self._metrics.process_resident_bytes.set(sum(resident.values()))


async def _gone_within(process: BackendProcess, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await process.wait_gone()
        return True
    return False


def _resident_bytes(leaders: frozenset[int]) -> dict[int, int]:
    """Resident memory by leader, everything in its session included. Slow: for a thread."""
    total: Counter[int] = Counter()
    for pid in psutil.pids() if leaders else ():
        try:
            session = os.getsid(pid)
            if session in leaders:
                total[session] += psutil.Process(pid).memory_info().rss
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return dict(total)


def _not_started(spec: BackendSpec, error: SpawnFailed) -> BackendExited:
    logger.warning(
        "a backend's process could not be started: %s",
        error.message,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "stage": error.stage},
    )
    hint = next((hint for beginning, hint in _HINTS.items() if error.message.startswith(beginning)), None)
    return BackendExited(error.message, started=False, hint=hint)


def _names(process: BackendProcess) -> dict[str, object]:
    spec = process.spec
    return {"backend": spec.name, "backend_tenant": spec.tenant, "backend_process": process.id, "pid": process.pid}
