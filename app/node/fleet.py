"""Fleet: several nodes on this machine, as child processes that share one port. Starts them, starts again what dies
or hangs, and passes signals on.

Serves nothing itself, and knows nothing of sessions: what the nodes have in common is in Redis and in the database.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

import app
from app import logs
from app.config.data_directory import say_where_data_is
from app.config.environment import PREFIX
from app.config.settings import Settings
from app.errors import GatewayError, SettingsError
from app.spawner.syscalls import refuse_inspection
from app.storage import migrate

START_S = 60.0  # a node that is not ready by then is stuck: it is killed, and counts as one that died at once
AT_ONCE_S = 10.0  # who dies so soon after being ready would do so again
GIVE_UP_AFTER = 5  # such deaths in a row
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 8.0
ASK_EVERY_S = 1.0  # how often each node is asked whether its event loop runs
HUNG_AFTER = 10  # unanswered looks in a row that count: longer than a garbage collection or a large message takes
SILENT_FOR = 60  # looks in a row, whether they count or not: a node that spins wants a processor as well
STARVED = 0.5  # a look does not count if the parent came so much of ASK_EVERY_S late, or the node waited so long to run
STOP_LADDER_S = 20.0  # after the drain: responses, processes, the last writes; then a node is killed
MAX_LINE_BYTES = 64 << 10  # of a node's stdout, before it is ready

# Not `-m app`: that would look in the working directory first, where anybody's `app` may lie.
_CHILD = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "from app.cli import main; sys.exit(main())"
)
_READY = b"listening on "
_QUESTION = b"?"  # a node sends it back
_HUNG = "Node %d (pid %d) has not answered for %.0f s: its event loop hangs. Killing the process; it is started again"

log = logging.getLogger(__name__)


def serve_nodes(settings: Settings, count: int, *, demo: bool = False) -> int:
    """Runs `count` nodes until told to stop; returns 0 if each of them has come to a clean end.

    Raises:
        SettingsError: Redis is not set, NODE_URL is, or the port is taken.
        GatewayError: the database cannot be used; or a node could not be started, and has said why.
    """
    _check(settings)
    refuse_inspection()
    logs.configure(settings.log_level)
    migrate.prepare(settings.database_url)
    with _reserve_port(settings) as port:
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


def _reserve_port(settings: Settings) -> socket.socket:
    """A socket that never listens: it keeps the port while no node has it, and says which one port 0 has become."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    reserved = socket.socket(family)
    try:
        if settings.port:  # with SO_REUSEPORT we would silently join whoever listens there
            socket.create_server((settings.host, settings.port), family=family).close()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((settings.host, settings.port))
    except OSError as error:
        reserved.close()
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port"
        ) from None
    return reserved


@dataclass(slots=True)
class Fate:
    """What the deaths of one node so far mean for the next. Pure."""

    deaths: int = 0  # at once, in a row

    def died(self, lived_s: float | None) -> float | None:
        """How long to wait before the next start; None to give up. `lived_s`: since it was ready, if it ever was."""
        at_once = lived_s is None or lived_s < AT_ONCE_S
        self.deaths = self.deaths + 1 if at_once else 0
        if self.deaths >= GIVE_UP_AFTER:
            return None
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** max(0, self.deaths - 1))


@dataclass(slots=True)
class Silence:
    """Whether a node that does not answer hangs. Pure."""

    looks: int = 0  # without an answer, in a row
    misses: int = 0  # those of them that count

    def looked(self, *, answered: bool, starved_s: float) -> bool:
        """Counts one look; True once the node hangs.

        `starved_s`: how late the parent itself looked, or how long the node waited for a processor since the last
        look, whichever is longer. On a machine that is too busy a node is slow, and killing it would make it worse.
        """
        if answered:
            self.looks = self.misses = 0
            return False
        self.looks += 1
        if starved_s < STARVED * ASK_EVERY_S:
            self.misses += 1
        return self.misses >= HUNG_AFTER or self.looks >= SILENT_FOR


class _Fleet:
    """One run."""

    def __init__(self, settings: Settings, port: socket.socket, count: int, *, demo: bool) -> None:
        self._settings, self._demo = settings, demo
        self._host, self._port = port.getsockname()[:2]
        self._members = [_Member(number, self) for number in range(1, count + 1)]
        self._failure: GatewayError | None = None
        self._announced, self.stopping = anyio.Event(), anyio.Event()
        self.environment = _environment(settings, count)

    async def run(self) -> int:
        """Starts all, waits for all."""
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
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                self.stop(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Tells every node, and starts none any more; a second time they hurry."""
        self.stopping.set()
        for member in self._members:
            member.send(number)

    def command(self, number: int) -> list[str]:
        """How this node is started."""
        settings, root = self._settings, str(Path(app.__file__).parents[1])
        where = ["--host", settings.host, "--port", str(self._port), "--data-dir", str(settings.data_dir)]
        demo = ["--demo"] if self._demo and number == 1 and not self._announced.is_set() else []
        return [sys.executable, "-P", "-c", _CHILD, root, "serve", *where, "--member", str(number), *demo]

    @property
    def stop_within_s(self) -> float:
        """How long a node may take to stop."""
        return self._settings.drain_delay_s + self._settings.drain_s + STOP_LADDER_S

    def became_ready(self) -> None:
        """A node listens; once all do, the world is told."""
        if self._announced.is_set() or not all(member.has_been_ready for member in self._members):
            return
        host = f"[{self._host}]" if ":" in self._host else self._host
        print(f"listening on http://{host}:{self._port}", flush=True)
        self._announced.set()

    async def relay(self, text: bytes) -> None:
        """What a node prints once it is ready: the demonstration."""
        await self._announced.wait()
        print(text.decode("utf-8", "replace"), end="", flush=True)

    def could_not_start(self, number: int) -> bool:
        """Before all are ready, a node that ends by itself has said why on stderr: the others would say the same."""
        if self._announced.is_set() or self.stopping.is_set():
            return False
        self._failure = GatewayError(f"node {number} could not be started", hint="its own message is above")
        self.stop()
        return True


class _Member:
    """One place in the fleet, and the process that has it."""

    def __init__(self, number: int, fleet: _Fleet) -> None:
        self._number, self._fleet, self._fate = number, fleet, Fate()
        self._process: Process | None = None
        self._ready_at: float | None = None
        self._heard_at: float | None = None  # its last sign of life
        self.has_been_ready = False
        self.is_well = True

    async def keep(self) -> None:
        """Keeps a process here until the fleet stops, or until there is no sense in it."""
        while not self._fleet.stopping.is_set():
            status = await self._run_one()
            if self._fleet.stopping.is_set():
                self.is_well = self.is_well and self._ended_well(status)
            elif status > 0 and self._fleet.could_not_start(self._number):
                return
            elif not await self._may_start_again(status):
                self.is_well = False
                return

    async def _may_start_again(self, status: int) -> bool:
        delay_s = self._fate.died(self._lived_s())
        if delay_s is None:
            log.error("Node %d died %d times right after its start; not starting it again", self._number, GIVE_UP_AFTER)
            return False
        log.error("Node %d died (%s); starting it again in %.1f s", self._number, _describe(status), delay_s)
        with anyio.move_on_after(delay_s):
            await self._fleet.stopping.wait()
        return True

    def _lived_s(self) -> float | None:
        """From being ready to its last sign of life: to hang is no life."""
        if self._ready_at is None or self._heard_at is None:
            return None
        return self._heard_at - self._ready_at

    async def _run_one(self) -> int:
        """From the start of a process to its end."""
        # Its stdin: the node answers what it is asked there, and stops when it ends, as it does with this process.
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
            start_new_session=True,  # Ctrl-C in a terminal is for the parent, which passes it on
        )

    async def _watch(self, process: Process, lifeline: socket.socket) -> int:
        self._process = process
        try:
            if self._fleet.stopping.is_set():
                self.send(signal.SIGTERM)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_when_stuck, process)
                tasks.start_soon(self._kill_when_hung, process, lifeline)
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
                self.has_been_ready = True
                output = output.partition(b"\n")[2]
                self._fleet.became_ready()
            if self._ready_at is not None and output:
                await self._fleet.relay(output)
                output = b""
            output = output[-MAX_LINE_BYTES:]

    async def _kill_when_stuck(self, process: Process) -> None:
        """In the start, and in the end."""
        with anyio.move_on_after(START_S):
            await self._fleet.stopping.wait()
        if self._ready_at is None and not self._fleet.stopping.is_set():
            log.error("Node %d is not ready after %.0f s; killing it", self._number, START_S)
            process.kill()
        await self._fleet.stopping.wait()
        await anyio.sleep(self._fleet.stop_within_s)
        log.error("Node %d does not stop; killing it", self._number)
        process.kill()

    async def _kill_when_hung(self, process: Process, lifeline: socket.socket) -> None:
        """Between the start and the end: it listens still, and every connection that the kernel gives it waits."""
        while self._ready_at is None:  # noqa: ASYNC110 - it is once, and START_S bounds it
            await anyio.sleep(ASK_EVERY_S)
        lifeline.setblocking(False)
        silence, waited_s = Silence(), _processor_wait_s(process.pid)
        with suppress(OSError):  # it has closed its end: it ends, or is not a node
            lifeline.send(_QUESTION)
            while not self._fleet.stopping.is_set():
                due = time.monotonic() + ASK_EVERY_S
                await anyio.sleep(ASK_EVERY_S)
                late_s = time.monotonic() - due
                before_s, waited_s = waited_s, _processor_wait_s(process.pid)
                answered = _has_answered(lifeline)
                if answered:
                    self._heard_at = time.monotonic()
                    lifeline.send(_QUESTION)
                if silence.looked(answered=answered, starved_s=max(late_s, waited_s - before_s)):
                    log.error(_HUNG, self._number, process.pid, silence.looks * ASK_EVERY_S)
                    process.kill()
                    return

    def send(self, number: signal.Signals) -> None:
        """Signals the process, if there is one."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _ended_well(self, status: int) -> bool:
        """A node that was told to stop before it was ready had nothing to drain."""
        return status == 0 or (self._ready_at is None and status in (-signal.SIGTERM, -signal.SIGINT))


def _environment(settings: Settings, count: int) -> Mapping[str, str]:
    """The nodes share the machine: what each may start by default is a part of it."""
    part = {PREFIX + "MAX_PROCESSES": str(max(1, settings.max_processes // count))}
    return {**part, **{name: value for name, value in os.environ.items() if value}}


def _has_answered(lifeline: socket.socket) -> bool:
    try:
        return bool(lifeline.recv(64))
    except BlockingIOError:
        return False


def _processor_wait_s(pid: int) -> float:
    """How long the main thread of a process has been ready to run without a processor; 0 where nobody counts it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
