"""BackendProcess: one OS process from fork to reap, as a session, the pool and the supervisor see it.

Its end is reported by the spawner and never concluded from a pipe's EOF: a grandchild may hold the pipe, and a process
may close its pipes and live on.
"""

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import anyio
import anyio.to_thread

from app.concurrency.loop_share import UNLIMITED, LoopShare, Shares
from app.domain import BackendSpec
from app.errors import BackendBusy, BackendExited
from app.jail.sandbox.composer import Confined
from app.jail.spawner.cgroups import Group
from app.jail.spawner.client import End, SpawnerClient, SpawnFailed
from app.jail.spawner.wire import WRAPPER_STAGE, Start
from app.processes._stderr import StderrLog, StderrRing, StdoutNoise, secrets_of
from app.processes.connection import BackendListener
from app.processes.denials import SAID_BYTES, Denial, Denials, Kind
from app.processes.endings import Exit, Killed, at_limit, exit_of, met, needed_memory, raising, reached
from app.processes.freezer import Freezable, Freezer, Told
from app.processes.measuring import Target, Use, look
from app.processes.pipes import Pause, PipeEnd, PipeLimits, Stderr, Stdin, Stdout, open_pipes
from app.protocol import tolerant


class ProcessState(StrEnum):
    """Where a process is between fork and reap; also the label of `trunkline_processes`."""

    STARTING = "starting"
    WARM = "warm"
    LEASED = "leased"
    STOPPING = "stopping"
    GONE = "gone"


NEXT: Mapping[ProcessState, frozenset[ProcessState]] = {
    ProcessState.STARTING: frozenset({ProcessState.WARM, ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.WARM: frozenset({ProcessState.LEASED, ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.LEASED: frozenset({ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.STOPPING: frozenset({ProcessState.GONE}),
    ProcessState.GONE: frozenset(),
}


class ImpossibleTransition(Exception):
    """A process cannot get from its state into this one: a bug of the gateway."""


def check_transition(old: ProcessState, new: ProcessState) -> None:
    """Raises ImpossibleTransition where the table has no such step."""
    if new not in NEXT[old]:
        raise ImpossibleTransition(f"from {old} to {new}")


logger = logging.getLogger(__name__)

_MUTE_GRACE_S = 1.0  # from a closed pipe to the exit, which normally follows at once
_AT_LIMIT = ", at the limit of "
_TIERS_WITH_OWN_DISK = ("namespaces", "assisted")
_STDERR_LINES = 20  # how many go into an Exit
_DENIED_EVERY_S = 1.0  # of the calls that fail one in so long is looked at
_FRESH_S = 1.0  # a process that is leased later was warm: its first output says nothing about its start


@dataclass(frozen=True, slots=True)
class Origin:
    """`tier`: what confines a process (`metrics.TIERS`). `start`: how it is started; `reason`: why it is executed,
    although its backend is to be forked; `template`: the id of the one whose fork it is."""

    tier: str = "none"
    start: Start = "exec"
    reason: str = ""
    template: str = ""


class BackendProcess:
    """Fulfils BackendConnection. The Supervisor starts it, stops it and looks after it.

    After its end `on_exit` is called before the listener hears of it, `on_gone` after that. `origin`: how it comes
    to be.
    """

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        spec: BackendSpec,
        spawner: SpawnerClient,
        limits: PipeLimits,
        on_gone: Callable[["BackendProcess"], None],
        on_exit: Callable[["BackendProcess"], None] = lambda process: None,
        *,
        origin: Origin | None = None,
        freezer: Freezer | None = None,
        shares: Shares = UNLIMITED,
    ) -> None:
        self.spec, self.origin = spec, origin or Origin()
        self._freezer = freezer or Freezer()
        self._freezable: Freezable | None = None  # until it is to be frozen
        self.id, self.pid = "", 0
        self.started_at = time.time()
        self.spawn_seconds = 0.0
        self.phases: Mapping[str, float] = {}
        self.is_limited_by_kernel = False  # in its memory, by a control group
        self.stderr = StderrRing(partial(secrets_of, spec))
        self._denials: Denials | None = None
        self._denied_at = -_DENIED_EVERY_S
        self.use = Use()
        self.cpu_percent: float | None = None  # of one core, between the last two measurements, or since its start
        self._measured_at = time.monotonic()
        self.exit: Exit | None = None
        self._spawner = spawner
        self._limits = limits
        self._on_gone, self._on_exit = on_gone, on_exit
        self.state = ProcessState.STARTING
        self._stdin = Stdin()
        self._written_bytes = 0
        self._stdout = Stdout(limits, self.kill, LoopShare(shares, spec.tenant))
        self._noise = StdoutNoise(limits.noise_lines_per_minute, self.stderr.printable, self._kill_and_mute)
        self._stderr_log = StderrLog(self.stderr.printable)
        self._stderr = Stderr(self._complained, LoopShare(shares, spec.tenant))
        self._listener: BackendListener | None = None
        self._killed: Killed | None = None
        self._limits_met = set[str]()  # that were logged
        self._group: Group | None = None
        self._was_mute = False  # it had closed a pipe before it was asked to stop: then it ended by itself
        self._swept_at = time.monotonic()
        self._bad_looks = 0
        self._started_at = self._swept_at
        self._leased_at: float | None = None
        self.confined: Confined | None = None
        self._gone = anyio.Event()

    async def start(self, confined: Confined) -> None:
        """Starts the process; call once. Leaves nothing behind if it fails or is cancelled. Does not close `confined`.

        Raises:
            SpawnFailed: it could not be started.
        """
        try:
            theirs, ours = open_pipes()
        except OSError as error:
            self._become(ProcessState.GONE)
            raise SpawnFailed(error.errno or errno.EIO, "pipe", error.strerror or "") from error
        try:
            await self._connect(ours, theirs)
            command = replace(confined.command, missed=self.spec.missed_log)
            spawned = await self._spawner.spawn(command, [*theirs, *confined.take_channels()], self._on_end)
        except BaseException as error:
            if isinstance(error, SpawnFailed) and error.stage == WRAPPER_STAGE:
                self._stderr.drain()  # the wrapper has said why
                why = ": ".join([error.message, *self.stderr.last_lines(1)])
                error = SpawnFailed(error.errno, error.stage, why)
            self._close_pipes()
            self._become(ProcessState.GONE)
            self._gone.set()
            raise error
        self.confined = confined
        self.id, self.pid, self.spawn_seconds = spawned.id, spawned.pid, spawned.seconds
        self.phases, self._started_at = spawned.phases, time.monotonic()
        cgroup = confined.command.confinement.get("cgroup")
        if cgroup and cgroup["roots"]:
            self._group = Group(cgroup, spawned.id)
            self.is_limited_by_kernel = "memory" in cgroup["roots"] and "memory_bytes" in cgroup
        confined.started(self.id, self._refused)
        if self.is_stopping():
            self.kill()  # stop was called before the process had an id
        else:
            self._become(ProcessState.WARM)

    async def _connect(self, ours: list[int], theirs: list[int]) -> None:
        """Hands our ends to the loop, which closes them, even if this fails or is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_write_pipe(lambda: self._stdin, PipeEnd(ours.pop(0), loop))
            await loop.connect_read_pipe(lambda: self._stdout, PipeEnd(ours.pop(0), loop))
            await loop.connect_read_pipe(lambda: self._stderr, PipeEnd(ours.pop(0), loop))
        except BaseException:
            for descriptor in [*ours, *theirs]:
                os.close(descriptor)
            raise

    # --- BackendConnection

    def attach(self, listener: BackendListener) -> None:
        self._listener = listener
        self._stdout.listen(listener)
        if self.exit is not None:
            asyncio.get_running_loop().call_soon(self._tell, self.exit)

    def send(self, line: bytes) -> None:
        writer = self._stdin.writer
        if writer is None:
            if self.exit is None and not self.is_stopping() and not self.received_bytes:
                return  # it dies at its start: whoever asks hears of its end, which says why, or of its being killed
            raise self._has_ended()
        waiting = writer.get_write_buffer_size()
        # A single message may be larger than the limit, but not while others wait to be read.
        if waiting and waiting + len(line) > self._limits.write_bytes:
            raise BackendBusy("the backend does not read its input")
        writer.write(line + b"\n")
        self._written_bytes += len(line) + 1

    def pause_reading(self) -> None:
        self._stdout.pause(Pause.SESSION)

    def resume_reading(self) -> None:
        self._stdout.resume(Pause.SESSION)

    def asked_for(self, size: int) -> None:
        self._stdout.grant(size)

    def heard_noise(self, line: bytes) -> None:
        self._noise.heard(line, self.id, time.monotonic())

    def answering(self) -> bytes | None:
        return tolerant.begins_answer(self._stdout.beginning)

    def _has_ended(self) -> BackendExited:
        if self.exit is not None:
            return self.exit.error("the backend has ended")
        return BackendExited("the backend has closed its input", stderr=self.stderr.last_lines(_STDERR_LINES))

    def _complained(self, data: bytes) -> None:
        self.stderr.feed(data)
        self._stderr_log.feed(data, self.id)

    # --- for the pool and the supervisor

    def lease(self) -> None:
        self._become(ProcessState.LEASED)
        self._leased_at = time.monotonic()

    def is_stopping(self) -> bool:
        return self.state in (ProcessState.STOPPING, ProcessState.GONE)

    def detach(self) -> None:
        """The listener is called no more, not even for the end."""
        self._listener = None
        self._stdout.mute()

    @property
    def is_frozen(self) -> bool:
        return self._freezable is not None and self._freezable.is_frozen

    def freeze(self, told: Told) -> bool:
        """As Freezable.freeze; also False while something waits to be read by the process."""
        writer = self._stdin.writer
        has_read = writer is not None and not writer.get_write_buffer_size()
        if self.state is not ProcessState.LEASED or not has_read:
            return False
        if self._freezable is None:
            self._freezable = Freezable(self._freezer, self._group)
        return self._freezable.freeze(told)

    def thaw(self, told: Told = lambda error: None) -> None:
        """As Freezable.thaw."""
        if self._freezable is not None:
            self._freezable.thaw(told)

    def begin_stop(self, why: str = "") -> None:
        """First step of stopping: the process reads what was sent, then EOF. Its output is read until it ends. With
        `why` its listener hears now that the process is gone, for this reason, and nothing more: no call waits for a
        process that does not read."""
        self.thaw()
        self._was_mute = self._mute_since() is not None
        self._become(ProcessState.STOPPING)
        if why or self._listener is None:
            self._stdout.mute()
        self._stdout.resume(Pause.SESSION)
        self._stdin.close()
        if why:
            self._tell(Exit("stopped", why, self.stderr.last_lines(_STDERR_LINES)))

    def terminate(self) -> None:
        """Second step: SIGTERM to its process group."""
        self._stdin.abort()
        self._spawner.signal(self.id, signal.SIGTERM)

    def kill(self, cause: str | None = None, *, limit: str = "") -> None:
        """Last step: SIGKILL to the process and all it started. A `cause`, and the limit that it was over, go into the
        log and the `Exit`."""
        if self._killed is None and cause is not None and not self.is_stopping():
            self._killed = Killed(cause, limit)
            logger.warning(
                "Killing a backend process: it %s", cause, extra={"backend_process": self.id, "cause": cause}
            )
        self._spawner.kill(self.id)

    def _kill_and_mute(self, cause: str) -> None:
        """Without what it still has to say: that would take the loop as long as what it has said."""
        self._stdout.mute()
        self.kill(cause)

    @property
    def resident_bytes(self) -> int:
        return self.use.resident_bytes

    @property
    def cpu_s(self) -> float:
        return self.use.cpu_s

    @property
    def sent_bytes(self) -> int:
        return self._written_bytes

    @property
    def received_bytes(self) -> int:
        return self._stdout.received_bytes

    def take_dropped(self) -> int:
        return self._stdout.take_dropped()

    @property
    def is_template(self) -> bool:
        """Whether it serves nobody, and others are its forks; or says what a template has to import."""
        return self.origin.start == "template"

    @property
    def is_being_killed(self) -> bool:
        return self._killed is not None

    def target(self) -> Target:
        """What is to be measured."""
        return Target(self.pid, self.id, self._group, None if self.is_limited_by_kernel else self._most_bytes)

    @property
    def _most_bytes(self) -> int | None:
        most = None if self.spec.is_image else self.spec.limits.memory_mb  # seen here is the engine's client
        return None if most is None else most << 20

    async def measure(self) -> None:
        """Now, for what its limits have counted; if it lives."""
        uses, _ = await anyio.to_thread.run_sync(look, [self.target()])
        if self.exit is None:
            self.used(uses[0], time.monotonic())

    def used(self, use: Use, now: float) -> None:
        """Records a measurement; ends the process if it is over its memory where no control group limits that."""
        cpu_s = max(self.cpu_s, use.cpu_s)  # the use of a child that is not waited for is lost with it
        if now > self._measured_at:
            self.cpu_percent = 100 * (cpu_s - self.cpu_s) / (now - self._measured_at)
        self._note_limits(use)
        self.use, self._measured_at = use._replace(cpu_s=cpu_s), now
        self._count_denials(use.refused_forks, use.oom_kills)
        most = self._most_bytes
        if most is not None and use.resident_bytes > most and not self.is_limited_by_kernel:
            self.kill(needed_memory(self.spec), limit="memory")

    def _note_limits(self, use: Use) -> None:
        """Logs each limit that the process has met and lives on, once: elsewhere it is counted how often."""
        for each in met(self.use, use, self.spec):
            if each.limit not in self._limits_met:
                self._limits_met.add(each.limit)
                names = {"backend": self.spec.name, "backend_tenant": self.spec.tenant, "backend_process": self.id}
                advice = {"limit": each.limit, "hint": raising(each.limit, self.spec)}
                logger.warning("A backend process is at a limit: it %s", each.words, extra=names | advice)

    def first_byte_s(self) -> float | None:
        """From its start to its first output; None if there was none, or if it had nothing to do for a while."""
        at, leased_at = self._stdout.first_byte_at, self._leased_at
        if at is None or (leased_at is not None and self._started_at + _FRESH_S < leased_at < at):
            return None
        return at - self._started_at

    async def wait_gone(self) -> None:
        await self._gone.wait()

    def sweep(self, now: float) -> None:
        """Checks for floods, stalls and closed pipes; to be called a few times a second."""
        self._stdout.note_flood(self.id)
        self._stdout.refill(now - self._swept_at)
        self._swept_at = now
        if self.is_stopping():
            return
        is_stalled = self._stdin.stalled_s(self._written_bytes, now) >= self._limits.stdin_stall_s
        is_mute = now - (self._mute_since() or now) >= _MUTE_GRACE_S
        self._bad_looks = self._bad_looks + 1 if is_stalled or is_mute else 0
        if self._bad_looks > 1:  # at the first after a standstill of this node it may be the node that is behind
            self.kill("does not read its input" if is_stalled else "closed its input or output and lived on")

    def _mute_since(self) -> float | None:
        """When it closed its input or output; normally it ends at once."""
        return self._stdout.lost_at or self._stdin.lost_at

    # --- its end

    def _become(self, state: ProcessState) -> None:
        check_transition(self.state, state)
        self.state = state

    def _on_end(self, end: End) -> None:
        self._stdout.drain()
        self._stderr.drain()
        self.exit = self._describe(end)
        self.use = self.use.at_the_end(end.usage)
        self._count_denials(self.use.refused_forks, self.use.oom_kills)
        self._close_pipes()
        self._become(ProcessState.GONE)
        self._gone.set()
        try:
            self._on_exit(self)
        except Exception:
            logger.exception("Could not record the end of a backend process")
        self._tell(self.exit)
        self._on_gone(self)

    def _describe(self, end: End) -> Exit:
        was_stopped = self.state is ProcessState.STOPPING and not self._was_mute
        lines, has_own_disk = self.stderr.last_lines(_STDERR_LINES), self._has_own_disk
        return exit_of(end, self.spec, lines, self._killed, was_stopped=was_stopped, has_own_disk=has_own_disk)

    @property
    def denials(self) -> Denials:
        """Made when it is needed: most processes are denied nothing."""
        if self._denials is None:
            self._denials = Denials(self.stderr.printable)
        return self._denials

    def take_denied(self) -> Mapping[Kind, int]:
        """Those that nobody has counted yet, by kind."""
        return {} if self._denials is None else self._denials.take_new()

    def _refused(self, destination: str) -> None:
        self.denials.note("address", destination)

    def denied(self, said: bytes, now: float) -> Sequence[Denial]:
        """What was denied since it was asked for last, as a call of it has failed with these words. At most once a
        second: two files of the kernel and the end of stderr are read."""
        if now - self._denied_at < _DENIED_EVERY_S:
            return ()
        self._denied_at = now
        if self._group is not None and self.exit is None:
            self._count_denials(*self._group.denials())
        for text in (said, self.stderr.take_fresh(SAID_BYTES)):
            self.denials.said(text, self._reached)
        return self.denials.take_last()

    def _count_denials(self, refused_forks: int, oom_kills: int) -> None:
        counts: tuple[tuple[Kind, int], ...] = (("pids", refused_forks), ("memory", oom_kills))
        for limit, count in counts:
            if count:
                self.denials.counted(limit, at_limit(limit, self.spec).removeprefix(_AT_LIMIT), count)

    @property
    def _reached(self) -> Sequence[str] | None:
        """Addresses that nothing keeps from it; None: all."""
        has_all = self.spec.sandbox.network_kind == "host" or self.origin.tier in ("none", "base")
        return None if has_all else self.spec.sandbox.allow

    def limit_reached(self, *, is_late: bool = False) -> str:
        """At which limit it seems to be, by the last measurement; empty if at none."""
        if is_late and self._stdout.has_flooded:
            return "output"
        return reached(self.use, self.spec, self.stderr.last_lines(), has_own_disk=self._has_own_disk, is_late=is_late)

    @property
    def _has_own_disk(self) -> bool:
        return self.origin.tier in _TIERS_WITH_OWN_DISK

    def _tell(self, exit: Exit) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            try:
                listener.backend_exited(exit)
            except Exception:
                logger.exception("Could not handle the end of a backend process")

    def _close_pipes(self) -> None:
        self._stdin.abort()
        self._stdout.close()
        self._stderr.close()
