"""The node's side of the spawner: orders are sent without blocking, ends are reported to callbacks."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app.jail.spawner import syscalls, wire
from app.jail.spawner._clean_up import BackOff, CleanUp
from app.jail.spawner.cgroups import Group, Usage, groups_in

_READY_TIMEOUT_S = 10.0  # Python without site packages starts in 30 ms
_CLOSE_TIMEOUT_S = 5.0  # for the spawner to end every tree; then it is killed and the node does that
_SEND_AGAIN_S = 0.05
_GONE = (errno.ECHILD, "spawner", "the spawner is gone")
_REPORT_BYTES = 65536
MISSED_BYTES = wire.MISSED_BYTES
_MAIN = Path(__file__).with_name("__main__.py")
_ROOT = _MAIN.parents[3]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute. `argv[0]` is looked up in the PATH of `env`. `confinement`: what it must not do. `missed`: the
    descriptor of a file for what it asks for in vain (`wire.Missed`), if it is to be watched. `start`, `text`: as in
    `wire.Order`; `template` and `fork` take one more descriptor. `program_at`: before it `argv` is a wrapper's."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    sched_batch: bool = False
    confinement: wire.Confinement = field(default_factory=wire.Confinement)
    missed: int | None = None
    start: wire.Start = "exec"
    text: str = ""
    program_at: int = 0


@dataclass(frozen=True, slots=True)
class Spawned:
    """A running process. `seconds`: from the arrival of the order at the spawner until exec succeeded. `phases`: which
    part of them was `fork`, `sandbox` and `exec`."""

    id: str
    pid: int
    seconds: float
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended; `number` is its exit status or the signal. `limit`: at which limit the kernel killed it, or
    one that it had started: `memory`, its own, or `tenant_memory`. `usage`: of its control group."""

    reason: Literal["exited", "signaled", "spawner_lost"]
    number: int = 0
    limit: str = ""
    usage: Usage = field(default=Usage(), compare=False)


class SpawnFailed(Exception):
    """The process could not be started; `stage` names the step that failed."""

    def __init__(self, number: int, stage: str, message: str) -> None:
        super().__init__(message)
        self.errno, self.stage, self.message = number, stage, message


class SpawnerLost(SpawnFailed):
    """The spawner ended before it said whether the process runs; if so, that has ended too."""


@dataclass(slots=True, eq=False)
class _Packet:
    content: bytes
    descriptors: Sequence[int] = ()

    def add(self, descriptor: int) -> None:
        self.descriptors = [*self.descriptors, descriptor]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


@dataclass(slots=True, eq=False)
class _Process:
    on_end: Callable[[End], None]
    started: asyncio.Future[Spawned]
    pid: int | None = None

    def spawned(self, spawned: Spawned) -> None:
        self.pid = spawned.pid
        if not self.started.done():
            self.started.set_result(spawned)

    def abandoned(self) -> None:
        self.on_end = lambda end: None

    def ended(self, end: End) -> None:
        """Calls `on_end` in the next turn of the loop: whoever awaits the start must get the process first."""
        asyncio.get_running_loop().call_soon(lambda: self.on_end(end))


class SpawnerClient:
    """Starts a spawner and sends it orders. One that dies is replaced at once, later if that happens again and again:
    `on_restart` is called when another is ready.

    Makes this process adopt orphans, so that it can end and reap what a dead spawner leaves behind.
    Only for the event loop's thread.
    """

    def __init__(self, on_restart: Callable[[], None] = lambda: None) -> None:
        self._on_restart = on_restart
        self._restarting: asyncio.Task[None] | None = None
        self._back_off = BackOff()
        self._roots: dict[str, str] = {}  # of control groups
        self._prefix = secrets.token_hex(4)  # of the ids of its processes: a node has several clients
        self._socket: socket.socket | None = None
        self._spawner: subprocess.Popen[bytes] | None = None
        self._ready: asyncio.Future[int] | None = None
        self._starting = asyncio.Lock()
        self._outgoing: deque[_Packet] = deque()
        self._processes: dict[str, _Process] = {}
        self._clean_ups: set[CleanUp] = set()
        self._lost, self._closed = asyncio.Event(), False

    async def start(self) -> None:
        """Starts the spawner and waits until it is ready; does nothing while one runs.

        Raises:
            SpawnFailed: it could not be started.
        """
        async with self._starting:
            if self._socket is None:
                await asyncio.sleep(self._back_off.delay_s(time.monotonic()))
            if self._closed:
                raise SpawnFailed(errno.ESHUTDOWN, "spawner", "the spawner is closed")
            if self._socket is None:
                self._launch()
            assert self._ready is not None
            try:
                await asyncio.wait_for(asyncio.shield(self._ready), _READY_TIMEOUT_S)
            except TimeoutError:
                self._on_lost()
                raise SpawnFailed(errno.ETIMEDOUT, "spawner", "the spawner does not start") from None

    async def _restart(self) -> None:
        """Ends with a spawner, or when this is closed."""
        logger.error("The spawner has died; its processes are ended, and another spawner is started")
        while not self._closed:
            try:
                await self.start()
            except SpawnFailed as error:
                logger.error("Cannot start another spawner: %s; will retry", error.message)
            else:
                if self._socket is not None:  # else it has died since it was ready
                    self._restarting = None
                    self._on_restart()
                    return

    def _launch(self) -> None:
        try:
            syscalls.adopt_orphans()
            ours, theirs = wire.socket_pair()
            with theirs:
                try:
                    self._spawner = _popen(theirs.fileno())
                except BaseException:
                    ours.close()
                    raise
        except OSError as error:
            raise SpawnFailed(error.errno or errno.EIO, "spawner", f"cannot start the spawner: {error}") from error
        ours.setblocking(False)
        self._socket = ours
        self._lost.clear()
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        loop.add_reader(ours.fileno(), self._on_readable)

    async def spawn(self, command: Command, stdio: Sequence[int], on_end: Callable[[End], None]) -> Spawned:
        """Starts a process on these three descriptors, which are closed here in any case. With `proxy_port` in its
        confinement there is a fourth, through which the listener is sent before the process runs.

        `on_end` is called once, from the event loop, if and only if this returned. If the caller is cancelled, the
        process is killed.

        Raises:
            SpawnFailed: it could not be started.
        """
        process_id = self._new_id()
        if "cgroup" in command.confinement:
            self._roots |= command.confinement["cgroup"]["roots"]
        packet = _Packet(_spawn_order(process_id, command), stdio)
        process: _Process | None = None
        try:
            if command.missed is not None:
                packet.add(os.dup(command.missed))
            if self._socket is None:
                await self.start()
            if self._socket is None:
                raise SpawnerLost(*_GONE)
            if len(packet.content) > wire.MAX_PACKET_BYTES:
                raise SpawnFailed(errno.E2BIG, "send", os.strerror(errno.E2BIG))
            process = _Process(on_end, asyncio.get_running_loop().create_future())
            self._processes[process_id] = process
            self._send(packet)
            return await process.started
        except BaseException:
            self._abandon(process_id, process, packet)
            raise
        finally:
            if packet not in self._outgoing:
                packet.close()

    def _new_id(self) -> str:
        while (process_id := self._prefix + secrets.token_hex(4)) in self._processes:
            pass
        return process_id

    def _abandon(self, process_id: str, process: _Process | None, packet: _Packet) -> None:
        if process is not None:
            process.abandoned()
        if packet in self._outgoing:
            self._outgoing.remove(packet)
        elif process is not None and process_id in self._processes:
            self.kill(process_id)  # being started, or running
            return
        self._processes.pop(process_id, None)

    def signal(self, process_id: str, signum: int) -> None:
        """Signals the process's group; does nothing if it has ended."""
        if process_id in self._processes:
            self._send(_Packet(wire.encode({"do": "signal", "id": process_id, "signum": signum})))

    def kill(self, process_id: str) -> None:
        """Kills the process and everything it started; does nothing if it has ended."""
        if process_id in self._processes:
            self._send(_Packet(wire.encode({"do": "kill", "id": process_id})))

    async def aclose(self) -> None:
        """Ends every process and the spawner. Processes that still run are reported as `spawner_lost`."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        if self._socket is not None:
            # Not close(): the spawner's exit, after that of its last process, is seen as EOF.
            with contextlib.suppress(OSError, TimeoutError):
                self._socket.shutdown(socket.SHUT_WR)
                await asyncio.wait_for(self._lost.wait(), _CLOSE_TIMEOUT_S)
            self._on_lost()
        for clean_up in list(self._clean_ups):
            await asyncio.shield(clean_up.done)

    # --- sending

    def _send(self, packet: _Packet) -> None:
        if self._socket is None:
            packet.close()
            return
        self._outgoing.append(packet)
        if len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        """Sends what the socket takes; the rest when it becomes writable."""
        sender = self._socket
        if sender is None:
            return
        loop = asyncio.get_running_loop()
        while self._outgoing:
            packet = self._outgoing[0]
            try:
                socket.send_fds(sender, [packet.content], packet.descriptors)
            except BlockingIOError:
                loop.add_writer(sender.fileno(), self._flush)
                return
            except (BrokenPipeError, ConnectionResetError):
                self._on_lost()
                return
            except OSError as error:
                if not packet.descriptors:
                    # Out of kernel memory. A signal or a kill must not be lost.
                    loop.call_later(_SEND_AGAIN_S, self._flush)
                    return
                self._refuse(packet, error)
            self._outgoing.popleft().close()
        loop.remove_writer(sender.fileno())

    def _refuse(self, packet: _Packet, error: OSError) -> None:
        """The kernel does not take this spawn order: it is too large, or has too many descriptors in flight."""
        number = errno.E2BIG if error.errno == errno.EMSGSIZE else error.errno or errno.EIO
        process_id = json.loads(packet.content)["id"]
        self._on_report({
            "event": "failed", "id": process_id, "errno": number, "stage": "send", "message": os.strerror(number),
        })  # fmt: skip

    # --- receiving

    def _on_readable(self) -> None:
        while self._socket is not None:
            try:
                packet = self._socket.recv(_REPORT_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._on_lost()
                return
            self._on_report(json.loads(packet))

    def _on_report(self, report: wire.Report) -> None:
        event = report["event"]
        if event == "ready":
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(report["pid"])
            return
        process = self._processes.get(report["id"])
        if process is None:
            return
        if event == "spawned":
            process.spawned(Spawned(report["id"], report["pid"], report["seconds"], report["phases"]))
            return
        del self._processes[report["id"]]
        if event == "failed":
            if not process.started.done():
                process.started.set_exception(SpawnFailed(report["errno"], report["stage"], report["message"]))
        elif "signal" in report:
            process.ended(End("signaled", report["signal"], *_counted(report)))
        else:
            process.ended(End("exited", report["code"], *_counted(report)))

    def _on_lost(self) -> None:
        """The spawner is gone. The kernel kills the leaders; this process becomes the parent of their descendants."""
        if self._socket is None or self._spawner is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        self._socket.close()
        processes, self._processes = self._processes, {}
        pids = {process.pid for process in processes.values() if process.pid is not None}
        self._clean_ups.add(CleanUp(self._spawner, processes, pids, self._groups_left, self._clean_ups.discard))
        self._back_off.died(time.monotonic())
        self._socket = self._spawner = None
        self._lost.set()
        while self._outgoing:
            self._outgoing.popleft().close()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(SpawnerLost(*_GONE))
            self._ready.exception()  # mark as retrieved: the waiter may have been cancelled
        for process in processes.values():
            if process.started.done():
                process.ended(End("spawner_lost"))
            else:
                process.started.set_exception(SpawnerLost(*_GONE))
        if self._restarting is None and not self._closed:
            self._restarting = loop.create_task(self._restart(), name="restart the spawner")

    def _groups_left(self) -> Iterator[Group]:
        """Control groups of its own, of no process that runs, or is being started."""
        for tenant, process_id in groups_in(self._roots):
            if process_id.startswith(self._prefix) and process_id not in self._processes:
                yield Group({"roots": self._roots, "tenant": tenant}, process_id)


def _popen(descriptor: int) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a terminal's signals do not reach it, and without our environment."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_MAIN), str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=_ROOT,
        env={"LANG": "C.UTF-8"},
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _spawn_order(process_id: str, command: Command) -> bytes:
    return wire.encode({
        "do": "spawn", "id": process_id, "argv": list(command.argv), "env": dict(command.env),
        "cwd": command.cwd, "sched_batch": command.sched_batch, "confinement": command.confinement,
        "is_watched": command.missed is not None, "start": command.start, "text": command.text,
    })  # fmt: skip


def _counted(report: wire.Report) -> tuple[str, Usage]:
    return report.get("limit", ""), Usage(*report.get("usage", ()))
