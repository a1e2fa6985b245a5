"""Fleet: several nodes on this machine, as child processes that share one port. Starts them, restarts those that die
or hang, and passes signals on.

It serves nothing itself and knows nothing of sessions: what the nodes share is in Redis and in the database.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import Process

import app
from app.errors import GatewayError, SettingsError
from app.jail.spawner.syscalls import refuse_inspection
from app.node import fates
from app.node.certificate_files import read_certificate
from app.node.hangup import Hangup
from app.node.listeners import reserve_port
from app.node.stopping import StopProgress, drain_words
from app.settings.data_directory import say_where_data_is
from app.settings.environment import PREFIX
from app.settings.settings import Settings
from app.storage import migrate
from app.telemetry import logs
from app.text.terminal.progress import Progress
from app.text.terminal.stdout import announce

START_S = 60.0  # a node that is not ready by then is killed, and counts as an early death
STOP_LADDER_S = 20.0  # for responses, processes and last writes after the drain; then a node is killed
MAX_LINE_BYTES = 64 << 10  # of a node's stdout, before it is ready

# Not `-m app`: that would import an `app` in the working directory first.
_CHILD = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "from app.cli import main; sys.exit(main())"
)
_STOPPED = (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)  # the last is that of `app.cli`
_READY, _QUESTION = b"listening on ", b"?"  # a node sends the question back, or how many calls it has once it stops
_RARELY = "Node %d died (%s), %d times right after its start; trying again in %.0f s, as others run"
_HUNG = "Node %d (pid %d) has not answered for %.0f s: its event loop hangs. Killing and restarting it"

log = logging.getLogger(__name__)


def serve_nodes(settings: Settings, count: int, *, demo: bool = False) -> int:
    """Runs `count` nodes until told to stop; returns 0 if all of them have ended cleanly, else 1.

    Raises:
        SettingsError: Redis is not set, NODE_URL is, the certificate cannot be used, or the port is taken.
        GatewayError: the database cannot be used; or a node failed to start, and has logged why.
    """
    _check(settings)
    refuse_inspection()
    logs.configure(settings.log_level)
    with Progress() as progress:
        migrate.prepare(settings.database_url, progress.begin)
    with reserve_port(settings) as port:
        say_where_data_is(settings.data_dir)
        return anyio.run(_Fleet(settings, port, count, demo=demo).run)


def _check(settings: Settings) -> None:
    if settings.redis_url is None:
        raise SettingsError(
            f"{PREFIX}REDIS_URL: must be set for --nodes: the nodes find each other's sessions through Redis, "
            "like redis://127.0.0.1:6379/0"
        )
    if settings.node_url is not None:
        raise SettingsError(
            f"{PREFIX}NODE_URL: must not be set for --nodes, where each node has an address of its own on 127.0.0.1; "
            "on several machines run `trunkline serve` with a NODE_URL for each node"
        )
    read_certificate(settings, "")  # else the first node would say what is wrong with it


class _Fleet:
    """One run of several nodes."""

    def __init__(self, settings: Settings, port: socket.socket, count: int, *, demo: bool) -> None:
        self._settings, self._demo = settings, demo
        self._host, self._port = port.getsockname()[:2]
        self._members = [_Member(number, self) for number in range(1, count + 1)]
        self._failure: GatewayError | None = None
        self._announced, self.stopping = anyio.Event(), anyio.Event()
        self.environment = _environment(settings, count)
        self.progress, self._stop_at = StopProgress(self._stop_words), float("inf")

    async def run(self) -> int:
        """Starts all nodes and waits for them; returns the exit status."""
        with self.progress:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_signals_on)
                async with anyio.create_task_group() as members:
                    for member in self._members:
                        members.start_soon(member.keep)
                tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return 0 if all(member.is_well for member in self._members) else 1

    async def _pass_signals_on(self) -> None:
        hangup = Hangup(read_again=self._read_again if self._settings.tls_cert else None, stop=self.stop)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    hangup.take()
                else:
                    self.stop(number)

    def _read_again(self) -> None:
        for member in self._members:
            member.read_certificate_again()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Passes the signal to every node, and starts none any more. A second one makes them stop at once."""
        if not self.stopping.is_set():
            self._stop_at = time.monotonic()
            self.progress.begin()
        self.stopping.set()
        for member in self._members:
            member.send(number)

    def _stop_words(self) -> str:
        left = [member for member in self._members if member.is_alive]
        who = f"stopping {len(left)} of {len(self._members)} nodes"
        ends_at = self._stop_at + self._settings.drain_delay_s + self._settings.drain_s
        return drain_words(who, sum(member.calls for member in left), ends_at)

    def command(self, number: int) -> list[str]:
        settings, root = self._settings, str(Path(app.__file__).parents[1])
        where = ["--host", settings.host, "--port", str(self._port), "--data-dir", str(settings.data_dir)]
        demo = ["--demo"] if self._demo and number == 1 and not self._announced.is_set() else []
        return [sys.executable, "-P", "-c", _CHILD, root, "serve", *where, "--member", str(number), *demo]

    @property
    def stop_within_s(self) -> float:
        return self._settings.drain_delay_s + self._settings.drain_s + STOP_LADDER_S

    def became_ready(self) -> None:
        """A node listens. Once all do, prints the address."""
        if self._announced.is_set() or not all(member.has_been_ready for member in self._members):
            return
        host = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "http" if self._settings.tls_cert is None else "https"
        announce(f"listening on {scheme}://{host}:{self._port}")
        self._announced.set()

    async def relay(self, text: bytes) -> None:
        """Prints the output of a ready node, the texts of the demo, after the address."""
        await self._announced.wait()
        announce(text.decode("utf-8", "replace"), end="")

    @property
    def has_a_node(self) -> bool:
        """One runs, or is about to be started again."""
        return any(member.is_alive or member.is_well for member in self._members)

    def could_not_start(self, number: int) -> bool:
        """Stops all nodes if one ends before all were ready: the others would fail for the same reason."""
        if self._announced.is_set() or self.stopping.is_set():
            return False
        self._failure = GatewayError(f"node {number} could not be started", hint="see its error message above")
        self.stop()
        return True


class _Member:
    """One node of the fleet: its number and its current process."""

    def __init__(self, number: int, fleet: _Fleet) -> None:
        self._number, self._fleet, self._fate = number, fleet, fates.Fate()
        self._process: Process | None = None
        self._ready_at: float | None = None
        self._heard_at: float | None = None  # its last sign of life
        self.has_been_ready = False
        self.is_well = True
        self.calls = 0  # in flight, once the node stops and a terminal shows it

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    async def keep(self) -> None:
        """Keeps a process running until the fleet stops, or the node dies too often and no other one runs."""
        while not self._fleet.stopping.is_set():
            status = await self._run_one()
            if self._fleet.stopping.is_set():
                self.is_well = self.is_well and self._ended_well(status)
            elif (status > 0 and self._fleet.could_not_start(self._number)) or not await self._may_start_again(status):
                return

    async def _may_start_again(self, status: int) -> bool:
        delay_s = self._fate.died(self._lived_s())
        self.is_well = not self._fate.is_hopeless
        if self.is_well:
            log.error("Node %d died (%s); restarting it in %.1f s", self._number, _describe(status), delay_s)
        elif self._fleet.has_a_node:
            log.error(_RARELY, self._number, _describe(status), self._fate.deaths, delay_s)
        else:
            log.error("Node %d died %d times right after its start; no node is left", self._number, self._fate.deaths)
            return False
        with anyio.move_on_after(delay_s):
            await self._fleet.stopping.wait()
        return True

    def _lived_s(self) -> float | None:
        """From being ready to its last sign of life: time in which it hung does not count."""
        if self._ready_at is None or self._heard_at is None:
            return None
        return self._heard_at - self._ready_at

    async def _run_one(self) -> int:
        """Runs one process to its end; returns its exit status."""
        # Its stdin: on it the node answers the parent, and stops at its end, which is also that of the parent.
        ours, lifeline = socket.socketpair()
        with ours:
            with lifeline:
                process = await self._open(lifeline)
            return await self._watch(process, ours)

    async def _open(self, lifeline: socket.socket) -> Process:
        self._ready_at = self._heard_at = None
        return await anyio.open_process(
            self._fleet.command(self._number),
            stdin=lifeline.fileno(),
            stderr=None,
            env=self._fleet.environment,
            start_new_session=True,  # Ctrl-C in a terminal goes to the parent only, which passes it on
        )

    async def _watch(self, process: Process, lifeline: socket.socket) -> int:
        self._process = process
        try:
            if self._fleet.stopping.is_set():
                self.send(signal.SIGTERM)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_when_stuck)
                tasks.start_soon(self._ask, process, lifeline)
                tasks.start_soon(self._read, process)
                status = await process.wait()
                tasks.cancel_scope.cancel()
            return status
        finally:
            self._process = None
            if process.returncode is None:  # something here went wrong
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        output = b""
        async for chunk in process.stdout:
            output += chunk
            if self._ready_at is None and b"\n" in output and output.startswith(_READY):
                self._ready_at = self._heard_at = time.monotonic()
                self.has_been_ready = self.is_well = True
                output = output.partition(b"\n")[2]
                self._fleet.became_ready()
            if self._ready_at is not None and output:
                await self._fleet.relay(output)
                output = b""
            output = output[-MAX_LINE_BYTES:]

    async def _kill_when_stuck(self) -> None:
        """Kills a process that takes too long to start, or to stop."""
        with anyio.move_on_after(START_S):
            await self._fleet.stopping.wait()
        if self._ready_at is None and not self._fleet.stopping.is_set():
            log.error("Node %d is not ready after %.0f s; killing it", self._number, START_S)
            self.send(signal.SIGKILL)
        await self._fleet.stopping.wait()
        await anyio.sleep(self._fleet.stop_within_s)
        log.error("Node %d does not stop; killing it", self._number)
        self.send(signal.SIGKILL)

    async def _ask(self, process: Process, lifeline: socket.socket) -> None:
        """Asks a ready process for signs of life, and while it stops for its calls."""
        while self._ready_at is None:  # noqa: ASYNC110 - it is once, and START_S bounds it
            await anyio.sleep(fates.ASK_EVERY_S)
        lifeline.setblocking(False)
        with suppress(OSError):  # it has closed its end of the socket: it is ending
            lifeline.send(_QUESTION)
            await self._kill_when_hung(process, lifeline)
            if self._fleet.progress.is_possible:
                await self._count_calls(lifeline)

    async def _kill_when_hung(self, process: Process, lifeline: socket.socket) -> None:
        """Kills a process whose event loop hangs: the kernel still gives it connections, which would wait."""
        silence, waited_s = fates.Silence(), _processor_wait_s(process.pid)
        while not self._fleet.stopping.is_set():
            due = time.monotonic() + fates.ASK_EVERY_S
            await anyio.sleep(fates.ASK_EVERY_S)
            late_s = time.monotonic() - due
            before_s, waited_s = waited_s, _processor_wait_s(process.pid)
            answered = bool(_answer(lifeline))
            if answered:
                self._heard_at = time.monotonic()
                lifeline.send(_QUESTION)
            if silence.looked(answered=answered, starved_s=max(late_s, waited_s - before_s)):
                log.error(_HUNG, self._number, process.pid, silence.looks * fates.ASK_EVERY_S)
                self.send(signal.SIGKILL)
                return

    async def _count_calls(self, lifeline: socket.socket) -> None:
        while True:
            if said := _answer(lifeline):
                self.calls = next((int(each) for each in reversed(said.split()) if each.isdigit()), self.calls)
                lifeline.send(_QUESTION)
            await anyio.sleep(fates.ASK_EVERY_S)

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def read_certificate_again(self) -> None:
        if self._ready_at is not None:  # else the signal would end it, and it reads the files anyway
            self.send(signal.SIGHUP)

    def _ended_well(self, status: int) -> bool:
        """Also true of a node that was stopped by a signal before it was ready: it had nothing to drain."""
        return status == 0 or (self._ready_at is None and status in _STOPPED)


def _environment(settings: Settings, count: int) -> Mapping[str, str]:
    """The environment of a node. By default each may start an equal part of MAX_PROCESSES."""
    part = {PREFIX + "MAX_PROCESSES": str(max(1, settings.max_processes // count))}
    return {**part, **{name: value for name, value in os.environ.items() if value}}


def _answer(lifeline: socket.socket) -> bytes:
    """What the process has said since the last look, if it has said anything."""
    try:
        return lifeline.recv(64)
    except BlockingIOError:
        return b""


def _processor_wait_s(pid: int) -> float:
    """How long the main thread of a process has waited for the CPU so far; 0 where the kernel does not count it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
