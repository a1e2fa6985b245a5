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

from app.domain import BackendSpec
from app.errors import BackendExited, ShuttingDown
from app.metrics import Metrics
from app.processes.homes import Home, Homes
from app.processes.measuring import Measured, measure
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from app.processes.states import ProcessState
from app.spawner.client import Command, SpawnerClient, SpawnFailed

logger = logging.getLogger(__name__)

EOF_GRACE_S = 2.0  # a server that reads its stdin ends by itself
TERM_GRACE_S = 2.0  # a server that handles SIGTERM cleans up
KILL_WAIT_S = 5.0  # a process in the kernel's hands (disk, NFS) may take longer; then we stop waiting, not owning
SWEEP_S = 0.25  # how late a stalled or a flooding process may be noticed
MEASURE_SWEEPS = 40  # memory and processor time are read once in so many sweeps
WATCHED_SWEEPS = 8  # the same while somebody looks at them
WATCHED_S = 15.0  # for so long after the last look

_HINTS = {
    "No such file or directory": "Is the command installed, and on the gateway's PATH?",
    "Permission denied": "Is the command executable, and by the gateway's user?",
    "Exec format error": "Is it a program, or a script with a `#!` line?",
}
_CWD_HINT = (
    "Is the directory there, on this node, and may the gateway's user enter it? A relative one is below the tenant's "
    "home, which `trunkline homes` shows."
)


def environment_of(path: str, home: Home, declared: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of one process, nothing of the gateway's own but PATH; the spawner adds its marker."""
    return {"PATH": path, "HOME": home.path, "TMPDIR": home.tmpdir, "LANG": "C.UTF-8", **declared}


def _own_path() -> str:
    return os.environ.get("PATH", os.defpath)


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How processes are started and stopped."""

    homes: Homes
    path: str = field(default_factory=_own_path)
    limits: PipeLimits = field(default_factory=PipeLimits)
    sched_batch: bool = False
    eof_grace_s: float = EOF_GRACE_S
    term_grace_s: float = TERM_GRACE_S
    kill_wait_s: float = KILL_WAIT_S
    sweep_s: float = SWEEP_S


@dataclass(frozen=True, slots=True)
class _Owned:
    home: Home
    on_gone: Callable[[BackendProcess], None]


class Supervisor:
    """Starts and stops processes, looks after them meanwhile, and tells how each ended.

    Used as `async with Supervisor(...)`: leaving the block stops everything.
    """

    def __init__(self, metrics: Metrics, options: SupervisorOptions) -> None:
        self._metrics = metrics
        self._options = options
        self._spawner = SpawnerClient()
        self._processes: dict[BackendProcess, _Owned] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()
        self._watched_until = 0.0
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

    def find(self, process_id: str) -> BackendProcess | None:
        """The process with this id, until it has been reaped."""
        return next((process for process in self._processes if process.id == process_id), None)

    def count(self, state: ProcessState) -> int:
        """How many processes are in this state."""
        return sum(process.state is state for process in list(self._processes))

    # --- starting

    async def spawn(
        self,
        spec: BackendSpec,
        on_gone: Callable[[BackendProcess], None],
        on_exit: Callable[[BackendProcess], None] = lambda process: None,
    ) -> BackendProcess:
        """Starts one process of this backend; when it has ended `on_exit` is called once before its listener hears of
        it, and `on_gone` once after.

        Raises:
            BackendExited: it could not be started (`started` is False).
        """
        if self._tasks is None:
            raise ShuttingDown
        try:
            home = await self._options.homes.open(spec.home or spec.tenant)
        except OSError as error:
            self._metrics.process_spawns.labels("failed").inc()
            raise _homeless(spec, error) from error
        process = BackendProcess(spec, self._spawner, self._options.limits, self._on_gone, on_exit)
        try:
            await self._start(process, _Owned(home, on_gone))
        except BaseException as error:
            self._options.homes.close(home)
            if isinstance(error, SpawnFailed):
                self._metrics.process_spawns.labels("failed").inc()
                raise _not_started(spec, error) from error
            raise
        self._metrics.process_spawns.labels("started").inc()
        self._metrics.process_spawn_seconds.observe(process.spawn_seconds)
        return process

    async def _start(self, process: BackendProcess, owned: _Owned) -> None:
        """Starts it; from then on the home is closed when it has ended."""
        if self._tasks is None:  # since the home was asked for
            raise ShuttingDown
        spec, home, options = process.spec, owned.home, self._options
        command = Command(
            [spec.command, *spec.args],
            environment_of(options.path, home, spec.env),
            os.path.join(home.path, spec.cwd or ""),
            options.sched_batch,
        )
        self._processes[process] = owned
        try:
            await process.start(command)
        except BaseException:
            del self._processes[process]
            raise

    def _on_gone(self, process: BackendProcess) -> None:
        owned = self._processes.pop(process)
        self._options.homes.close(owned.home)
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
            owned.on_gone(process)
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

    def watch(self) -> None:
        """Somebody looks at what the processes use: it is measured more often for a while."""
        self._watched_until = time.monotonic() + WATCHED_S

    async def _sweep(self) -> None:
        since = 0
        while True:
            await anyio.sleep(self._options.sweep_s)
            now = time.monotonic()
            try:
                for process in self.processes:
                    process.sweep(now)
                since += 1
                if since >= (WATCHED_SWEEPS if now < self._watched_until else MEASURE_SWEEPS):
                    since = 0
                    await self._measure()
            except Exception:
                logger.exception("a sweep over the backends failed")

    async def _measure(self) -> None:
        leaders = {process.pid: process for process in self._processes if process.pid}
        used = await anyio.to_thread.run_sync(measure, frozenset(leaders))
        now = time.monotonic()
        for pid, process in leaders.items():
            process.used(used.get(pid, Measured()), now)
        self._metrics.process_resident_bytes.set(sum(each.resident_bytes for each in used.values()))


async def _gone_within(process: BackendProcess, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await process.wait_gone()
        return True
    return False


def _not_started(spec: BackendSpec, error: SpawnFailed) -> BackendExited:
    logger.warning(
        "a backend's process could not be started: %s",
        error.message,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "stage": error.stage},
    )
    if error.stage == "chdir":  # what was registered rather than what it is here: that is nobody's who uses it
        message = f"{os.strerror(error.errno)}: cwd {spec.cwd!r}" if spec.cwd else "the home of the tenant is gone"
        return BackendExited(message, started=False, hint=_CWD_HINT)
    hint = next((hint for beginning, hint in _HINTS.items() if error.message.startswith(beginning)), None)
    return BackendExited(error.message, started=False, hint=hint)


def _homeless(spec: BackendSpec, error: OSError) -> BackendExited:
    # Where it is says the log; who uses a backend need not know.
    logger.warning(
        "a tenant's home cannot be used: %s",
        error,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "home": spec.home},
    )
    problem = error.strerror or "it cannot be made"
    hint = "The node's log names the directory; `trunkline doctor`, run as the gateway's user, looks at HOMES_DIR."
    return BackendExited(f"the home of the tenant cannot be used: {problem}", started=False, hint=hint)


def _names(process: BackendProcess) -> dict[str, object]:
    spec = process.spec
    return {"backend": spec.name, "backend_tenant": spec.tenant, "backend_process": process.id, "pid": process.pid}
