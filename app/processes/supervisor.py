"""Supervisor: owns every backend process of the node, from fork to reap."""

import logging
import os
import time
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
from app.metrics import TIERS, Metrics
from app.processes.homes import Home, Homes
from app.processes.meter import Meter
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from app.processes.states import ProcessState
from app.spawner.client import Command, SpawnerClient, SpawnFailed

logger = logging.getLogger(__name__)

EOF_GRACE_S = 2.0  # for a server to end by itself after EOF on its stdin

_LIMITS_HIT = {
    "memory": "memory",
    "tenant_memory": "memory_mb",
}  # `Exit.limit`, as `trunkline_limits_hit_total` says it
_HINTS = {
    "No such file or directory": "Is the command installed, and on the gateway's PATH?",
    "Permission denied": "Is the command executable by the gateway's user?",
    "Exec format error": "Is it a program, or a script with a `#!` line?",
}
_CWD_HINT = (
    "Is the directory there, on this node, and may the gateway's user enter it? A relative one is below the tenant's "
    "home, which `trunkline homes` shows."
)


def environment_of(home: Home, declared: Mapping[str, str]) -> dict[str, str]:
    """The environment of one process: of the gateway's own only PATH. The spawner adds its marker."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": home.path, "TMPDIR": home.tmpdir, "LANG": "C.UTF-8", **declared}


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How processes are started and stopped."""

    homes: Homes
    limits: PipeLimits = field(default_factory=PipeLimits)
    sched_batch: bool = False
    eof_grace_s: float = EOF_GRACE_S
    term_grace_s: float = 2.0  # for a server to clean up after SIGTERM
    kill_wait_s: float = 5.0  # the kernel may hold a process longer (disk, NFS): it stays ours, but we stop waiting
    sweep_s: float = 0.25  # how late a stalled or flooding process may be noticed


class Supervisor:
    """Starts, watches and stops processes, and reports how each ended.

    Used as `async with Supervisor(...)`: leaving the block stops everything.
    """

    def __init__(self, metrics: Metrics, options: SupervisorOptions) -> None:
        self._metrics = metrics
        self._options = options
        self._spawner = SpawnerClient(metrics.spawner_restarts.inc)
        self._processes: dict[BackendProcess, Home] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()
        self.meter = Meter(metrics)
        for tier in TIERS:
            metrics.processes_by_tier.labels(tier).set_function(partial(self._count_tier, tier))
        for state in ProcessState:
            if state is not ProcessState.GONE:
                metrics.processes.labels(state.value).set_function(partial(self.count, state))

    async def __aenter__(self) -> Self:
        """Raises SpawnFailed if no process can be started on this machine."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_spawner)
            await self._spawner.start()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._sweep, name="sweep backends")
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._stop_all()
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
        return next((process for process in self._processes if process.id == process_id), None)

    def count(self, state: ProcessState) -> int:
        return sum(process.state is state for process in list(self._processes))

    def _count_tier(self, tier: str) -> int:
        return sum(process.tier == tier for process in list(self._processes))

    # --- starting

    async def spawn(
        self,
        spec: BackendSpec,
        on_gone: Callable[[BackendProcess], None],
        on_exit: Callable[[BackendProcess], None] = lambda process: None,
    ) -> BackendProcess:
        """Starts one process of this backend. After its end `on_exit` is called once before its listener hears of it,
        and `on_gone` once after that.

        Raises:
            BackendExited: it could not be started (`started` is False).
        """
        if self._tasks is None:
            raise ShuttingDown
        options = self._options
        try:
            home = await options.homes.open(spec.home or spec.tenant)
        except OSError as error:
            self._metrics.process_spawns.labels("failed").inc()
            raise _homeless(spec, error) from error
        process = BackendProcess(spec, self._spawner, options.limits, partial(self._on_gone, on_gone), on_exit)
        command = Command(
            [spec.command, *spec.args],
            environment_of(home, spec.env),
            os.path.join(home.path, spec.cwd or ""),
            options.sched_batch,
        )
        try:
            if self._tasks is None:  # closed while the home was being opened
                raise ShuttingDown
            self._processes[process] = home
            await process.start(command)
        except BaseException as error:
            self._processes.pop(process, None)
            options.homes.close(home)
            if isinstance(error, SpawnFailed):
                self._metrics.process_spawns.labels("failed").inc()
                raise _not_started(spec, error) from error
            raise
        self._metrics.process_spawns.labels("started").inc()
        self._metrics.process_spawn_seconds.observe(process.spawn_seconds)
        for phase, seconds in process.phases.items():
            self._metrics.process_spawn_phase_seconds.labels(phase).observe(seconds)
        return process

    def _on_gone(self, on_gone: Callable[[BackendProcess], None], process: BackendProcess) -> None:
        self._options.homes.close(self._processes.pop(process))
        assert process.exit is not None
        reason = process.exit.reason
        self._metrics.process_exits.labels(reason).inc()
        self.meter.count(process)
        if process.exit.limit:
            self._metrics.limits_hit.labels(_LIMITS_HIT[process.exit.limit]).inc()
        if reason != "stopped":
            logger.warning(
                "Backend process ended: %s",
                process.exit.description,
                extra=_names(process) | {"reason": reason, "stderr": process.exit.stderr},
            )
        try:
            on_gone(process)
        except Exception:
            logger.exception("Could not handle the end of a backend process", extra=_names(process))

    # --- stopping

    def stop_soon(self, process: BackendProcess) -> None:
        """Begins to stop the process and returns: EOF, then SIGTERM, then SIGKILL of its tree. Idempotent."""
        if self._tasks is not None and not process.is_stopping():
            process.begin_stop()
            self._tasks.start_soon(self._finish_stop, process, name="stop a backend")

    async def _stop_all(self) -> None:
        """Stops all processes at once, and waits no longer than stopping one takes."""
        processes = self.processes
        for process in processes:
            self.stop_soon(process)
        options = self._options
        with anyio.move_on_after(options.eof_grace_s + options.term_grace_s + options.kill_wait_s):
            for process in processes:
                await process.wait_gone()

    async def _finish_stop(self, process: BackendProcess) -> None:
        with anyio.CancelScope(shield=True):  # each wait is bounded; cancelling would leave the process running
            if await _gone_within(process, self._options.eof_grace_s):
                return
            process.terminate()
            if await _gone_within(process, self._options.term_grace_s):
                return
            process.kill()
            if not await _gone_within(process, self._options.kill_wait_s):
                logger.error(
                    "Backend process survives SIGKILL: it hangs in the kernel (disk, NFS)", extra=_names(process)
                )

    # --- watching

    def watch(self) -> None:
        """Measures memory and CPU more often for a while: an administrator is looking at them."""
        self.meter.watch()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self._options.sweep_s)
            now = time.monotonic()
            try:
                for process in self.processes:
                    process.sweep(now)
                await self.meter.sweep(self.processes, now)
            except Exception:
                logger.exception("Could not check the backend processes; will retry")


async def _gone_within(process: BackendProcess, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await process.wait_gone()
        return True
    return False


def _not_started(spec: BackendSpec, error: SpawnFailed) -> BackendExited:
    logger.warning(
        "Could not start a backend process: %s",
        error.message,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "stage": error.stage},
    )
    if error.stage == "chdir":  # the answer names the registered cwd: clients must not learn paths of this node
        message = f"{os.strerror(error.errno)}: cwd {spec.cwd!r}" if spec.cwd else "the home of the tenant is gone"
        return BackendExited(message, started=False, hint=_CWD_HINT)
    hint = next((hint for beginning, hint in _HINTS.items() if error.message.startswith(beginning)), None)
    return BackendExited(error.message, started=False, hint=hint)


def _homeless(spec: BackendSpec, error: OSError) -> BackendExited:
    # Only the log says where the home is: clients must not learn paths of this node.
    logger.warning(
        "Could not open the home directory of a tenant: %s",
        error,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "home": spec.home},
    )
    problem = error.strerror or "it cannot be made"
    hint = "The node's log names the directory; `trunkline doctor`, run as the gateway's user, checks HOMES_DIR."
    return BackendExited(f"the home of the tenant cannot be used: {problem}", started=False, hint=hint)


def _names(process: BackendProcess) -> dict[str, object]:
    spec = process.spec
    return {"backend": spec.name, "backend_tenant": spec.tenant, "backend_process": process.id, "pid": process.pid}
