"""Supervisor: owns every backend process of the node, from fork to reap."""

import errno
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self

import anyio
import anyio.abc
import anyio.to_thread

from app.concurrency.loop_share import UNLIMITED, Shares
from app.domain import BackendSpec
from app.errors import BackendExited, ShuttingDown
from app.jail.sandbox.composer import Confined, Place
from app.jail.sandbox.sandboxes import SandboxUnavailable, Unconfined
from app.jail.sandbox.tiers import Profile
from app.jail.spawner.client import SpawnerClient, SpawnerLost, SpawnFailed
from app.processes._disk import DiskWatch
from app.processes._meter import Meter
from app.processes._start_failures import full, homeless, not_started, unprotected, without_secrets
from app.processes._stopping import names_of, stop
from app.processes.denials import said_of
from app.processes.forking.forking import Forking, ForkingOptions
from app.processes.forking.start import EXEC, NoFork, Start, fork_deadline
from app.processes.freezer import Freezer
from app.processes.homes import Home, Homes
from app.processes.own_homes import HomeFull
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess, Origin, ProcessState
from app.telemetry.metrics import TIERS, Metrics

logger = logging.getLogger(__name__)

EOF_GRACE_S = 2.0  # for a server to end by itself after EOF on its stdin

# `Exit.limit`, as `trunkline_limits_hit_total` says it
_LIMITS_HIT = {"memory": "memory", "tenant_memory": "memory_mb", "disk": "disk", "files": "files"}


class Confiner(Protocol):
    """What the Supervisor needs of Sandboxes."""

    def profile(self, spec: BackendSpec) -> Profile: ...

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        """Raises SandboxUnavailable, SpawnFailed, OSError."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What a process has outside of itself."""

    homes: Homes
    home: Home
    confined: Confined

    def close(self) -> None:
        self.confined.close()
        self.homes.close(self.home)


async def _as_it_is(spec: BackendSpec) -> BackendSpec:
    return spec


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How processes are started and stopped. `install`: of a backend that has a package, the one with a program of
    that, which is there then (raises BackendExited)."""

    homes: Homes
    confiner: Confiner = field(default_factory=Unconfined)
    limits: PipeLimits = field(default_factory=PipeLimits)
    sched_batch: bool = False
    eof_grace_s: float = EOF_GRACE_S
    term_grace_s: float = 2.0  # for a server to clean up after SIGTERM
    kill_wait_s: float = 5.0  # the kernel may hold a process longer (disk, NFS): it stays ours, but we stop waiting
    sweep_s: float = 0.25  # how late a stalled or flooding process may be noticed
    forking: ForkingOptions = field(default_factory=ForkingOptions)
    shares: Shares = UNLIMITED
    install: Callable[[BackendSpec], Awaitable[BackendSpec]] = _as_it_is


class Supervisor:
    """Starts, watches and stops processes, and reports how each ended.

    Used as `async with Supervisor(...)`: leaving the block stops everything.
    """

    def __init__(self, metrics: Metrics, options: SupervisorOptions) -> None:
        self._metrics = metrics
        self._options = options
        self._spawner = SpawnerClient(metrics.spawner_restarts.inc)
        self._processes: dict[BackendProcess, _Held] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()
        self.meter = Meter(metrics)
        self._disks, self._freezer = DiskWatch(), Freezer()
        self.forking = Forking(metrics, options.forking, self, options.confiner.profile)
        for tier in TIERS:
            metrics.processes_by_tier.labels(tier).set_function(partial(self._count_tier, tier))
        for state in ProcessState:
            if state is not ProcessState.GONE:
                metrics.processes.labels(state.value).set_function(partial(self.count, state))

    async def __aenter__(self) -> Self:
        """Raises SpawnFailed if no process can be started on this machine."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._options.homes.aclose)
            stack.push_async_callback(self._close_spawner)
            await self._spawner.start()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self.forking.open(self._tasks)
            self._tasks.start_soon(self._sweep, name="sweep backends")
            self._tasks.start_soon(self._sweep_disks, name="measure what backends have written")
            self._tasks.start_soon(self._freezer.run, name="freeze and thaw backends")
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.forking.close()
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
        """Without templates, which serve nobody."""
        return sum(process.state is state and not process.is_template for process in list(self._processes))

    def _count_tier(self, tier: str) -> int:
        return sum(process.origin.tier == tier for process in list(self._processes))

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
        if spec.package is not None and not spec.is_image:
            spec = await self._options.install(spec)
        start = EXEC if spec.start == "exec" else await self.forking.start_of(spec)
        try:
            return await self.spawn_as(spec, start, on_gone, on_exit)
        except NoFork as error:
            self.forking.fork_failed(spec, start, str(error))
            return await self.spawn_as(spec, Start(reason=f"the template did not fork: {error}"), on_gone, on_exit)

    async def spawn_as(
        self,
        spec: BackendSpec,
        start: Start,
        on_gone: Callable[[BackendProcess], None] = lambda process: None,
        on_exit: Callable[[BackendProcess], None] = lambda process: None,
    ) -> BackendProcess:
        """Starts one process in this way; closes `start`. Where the spawner dies meanwhile, the next one starts it:
        what the first one has started ends with it.

        Raises:
            BackendExited: it could not be started; NoFork: the template makes none.
        """
        try:
            return await self._spawn_once(spec, start, on_gone, on_exit)
        except SpawnerLost as error:
            if start.kind != "exec":
                raise not_started(spec, error) from error
        finally:
            if start.kind == "fork":
                start.close()
        try:
            return await self._spawn_once(spec, start, on_gone, on_exit)
        except SpawnerLost as error:
            raise not_started(spec, error) from error

    async def _spawn_once(
        self,
        spec: BackendSpec,
        start: Start,
        on_gone: Callable[[BackendProcess], None],
        on_exit: Callable[[BackendProcess], None],
    ) -> BackendProcess:
        """Raises SpawnerLost, and as `spawn_as`."""
        try:
            if spec.lacks_secrets:
                raise without_secrets(spec)
            held = await self._hold(spec, start)
        except BackendExited:
            self._metrics.process_spawns.labels("failed").inc()
            raise
        origin = Origin(held.confined.profile.tier.name.lower(), start.kind, start.reason, start.template)
        gone, limits, freezer = partial(self._on_gone, on_gone), self._options.limits, self._freezer
        shares = self._options.shares
        process = BackendProcess(
            spec, self._spawner, limits, gone, on_exit, origin=origin, freezer=freezer, shares=shares
        )
        try:
            if self._tasks is None:  # closed while the home was being opened
                raise ShuttingDown
            self._processes[process] = held
            async with nullcontext() if start.kind != "fork" else fork_deadline():
                await process.start(held.confined)
        except BaseException as error:
            self._processes.pop(process, None)
            held.close()
            if isinstance(error, SpawnFailed):
                self._metrics.process_spawns.labels("failed").inc()
                if not isinstance(error, SpawnerLost):
                    raise not_started(spec, error) from error
            raise
        self._metrics.process_spawns.labels("started").inc()
        self._metrics.process_starts.labels(start.kind).inc()
        self._metrics.process_spawn_seconds.observe(process.spawn_seconds)
        for phase, seconds in process.phases.items():
            self._metrics.process_spawn_phase_seconds.labels(phase).observe(seconds)
        return process

    def has_forks(self, template: BackendProcess) -> bool:
        return any(process.origin.template == template.id for process in self._processes)

    def home_of(self, process: BackendProcess) -> Home | None:
        return held.home if (held := self._processes.get(process)) is not None else None

    async def _hold(self, spec: BackendSpec, start: Start) -> _Held:
        """Raises BackendExited."""
        homes, confiner = self._options.homes, self._options.confiner
        try:
            tier, is_template = confiner.profile(spec).tier, start.kind == "template"
            home = await homes.open_for(spec, tier, start.home, has_forks=is_template)
        except HomeFull as error:
            self._metrics.limits_hit.labels("disk").inc()
            raise full(spec, error) from error
        except OSError as error:
            raise homeless(spec, error) from error
        try:
            place = Place(home.path, home.tmpdir, home.is_kept, home.forks if is_template else None, is_template)
            confined = await confiner.confine(spec, place)
            confined = replace(confined, command=replace(confined.command, sched_batch=self._options.sched_batch))
            return _Held(homes, home, confined if start.kind == "exec" else start.applied(confined))
        except BaseException as error:
            homes.close(home)
            if isinstance(error, SandboxUnavailable):
                raise unprotected(spec, error) from error
            if isinstance(error, SpawnFailed):
                raise not_started(spec, error) from error
            if isinstance(error, OSError):
                raise not_started(spec, SpawnFailed(error.errno or errno.EIO, "sandbox", str(error))) from error
            raise

    def _on_gone(self, on_gone: Callable[[BackendProcess], None], process: BackendProcess) -> None:
        self._processes.pop(process).close()
        assert process.exit is not None
        reason = process.exit.reason
        self._metrics.process_exits.labels(reason).inc()
        self.meter.count(process)
        if process.exit.limit in _LIMITS_HIT:  # the meter counts refused forks
            self._metrics.limits_hit.labels(_LIMITS_HIT[process.exit.limit]).inc()
        if reason != "stopped":
            logger.warning(
                "Backend process ended: %s",
                process.exit.description,
                extra=names_of(process)
                | {"reason": reason, "limit": process.exit.limit, "hint": process.exit.advice}
                | {"stderr": process.exit.stderr, "denied": said_of(process.denials.last)},
            )
        try:
            on_gone(process)
        except Exception:
            logger.exception("Could not handle the end of a backend process", extra=names_of(process))

    # --- stopping

    def stop_soon(self, process: BackendProcess, why: str = "") -> None:
        """Begins to stop the process and returns: EOF, then SIGTERM, then SIGKILL of its tree. Idempotent. `why`: see
        `BackendProcess.begin_stop`."""
        if self._tasks is not None and not process.is_stopping():
            process.begin_stop(why)
            options = self._options
            graces = options.eof_grace_s, options.term_grace_s, options.kill_wait_s
            self._tasks.start_soon(stop, process, *graces, name="stop a backend")

    async def _stop_all(self) -> None:
        """Stops all processes at once, and waits no longer than stopping one takes."""
        processes = self.processes
        for process in processes:
            self.stop_soon(process)
        options = self._options
        with anyio.move_on_after(options.eof_grace_s + options.term_grace_s + options.kill_wait_s):
            for process in processes:
                await process.wait_gone()

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
                self.forking.sweep()
            except Exception:
                logger.exception("Could not check the backend processes; will retry")

    async def _sweep_disks(self) -> None:
        """Apart from the others: a disk may be slow."""
        while True:
            await anyio.sleep(self._options.sweep_s)
            try:
                await self._disks.sweep({process: held.home.limited for process, held in self._processes.items()})
            except Exception:
                logger.exception("Could not measure what backend processes have written; will retry")
