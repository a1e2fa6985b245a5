"""Runs the program of attempts inside a sandbox, against targets that this node puts up for it."""

import asyncio
import errno
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from app.domain import BackendSpec, Network, ProcessLimits, Sandbox
from app.sandbox.composer import Confined
from app.sandbox.tiers import PROMISES, Tier
from app.spawner.client import End, SpawnerClient, SpawnFailed

PROBE_S = 20.0  # for one run on a busy machine; it takes a tenth of a second
REACH_S = 0.5  # for an address to be found reachable from here
GONE_S = 1.0  # after its end, for a daemon that it left behind
MAX_REPORT_BYTES = 256 << 10
LIMITS = ProcessLimits(memory_mb=64, pids=16, cpu=None, files=64, disk_mb=8)
METADATA = ("169.254.169.254", 80)
_ATTEMPTS = str(Path(__file__).with_name("attempts.py"))
_DATAGRAM = "a port of others"
_ESCAPE = "leave a daemon behind"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that was tried inside a sandbox; `detail`: the error, or what was reached."""

    name: str
    guarantee: str
    was_denied: bool
    detail: str


@dataclass(frozen=True, slots=True)
class TierReport:
    """What was tried in a tier. `error`: why nothing could be tried."""

    tier: Tier
    network: Network
    attempts: Sequence[Attempt] = ()
    error: str | None = None

    def holds(self, guarantee: str) -> bool:
        """Whether something was tried that this guarantee forbids, and all of it was denied."""
        tried = [each for each in self.attempts if each.guarantee == guarantee]
        return bool(tried) and all(each.was_denied for each in tried)

    def held(self) -> Collection[str]:
        """What the tier promises and was denied."""
        return [] if self.error else [each for each in PROMISES[self.tier] if self.holds(each)]

    def holds_all(self) -> bool:
        """Whether the attempts could be made, and whatever the tier promises was denied."""
        return self.error is None and len(self.held()) == len(PROMISES[self.tier])

    def first_success(self, guarantee: str) -> str | None:
        """What a process could do in spite of the guarantee."""
        done = (each for each in self.attempts if each.guarantee == guarantee and not each.was_denied)
        return next((f"{each.name}: {each.detail}" if each.detail else each.name for each in done), None)


def best_tier(reports: Iterable[TierReport]) -> Tier:
    """The highest tier in which everything held that it promises; if there is none, that in which most of it did.

    Linux before 6.12, for one, cannot keep signals inside without namespaces, but it can keep files from a process.
    """
    tried = [report for report in reports if report.network == "none" and report.held()]
    best = max(tried, key=lambda report: (len(report.held()), report.tier), default=None)
    return Tier.BASE if best is None else best.tier


@dataclass(frozen=True, slots=True)
class Targets:
    """What no backend may reach on this node: files by name, and addresses by name."""

    files: Mapping[str, str]
    addresses: Mapping[str, tuple[str, int]]


def spec_of(network: Network) -> BackendSpec:
    """The probe as a backend; its last argument is still missing."""
    return BackendSpec(
        tenant="trunkline-probe",
        name="probe",
        command=sys.executable,
        args=("-I", "-S", _ATTEMPTS),
        sandbox=Sandbox(network=network),
        limits=LIMITS,
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Targets that surely can be hit from outside a sandbox. `datagrams`: where they arrive."""

    goals: Mapping[str, Any]
    datagrams: socket.socket

    def was_hit(self) -> bool:
        """Whether a datagram has arrived."""
        try:
            return bool(self.datagrams.recv(1))
        except BlockingIOError:
            return False


@contextmanager
def shooting_range(targets: Targets) -> Iterator[Range]:
    """Sockets that listen, and files; of the given addresses those that can be reached from here."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-probe-")))
        directory.chmod(0o755)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        path, name = str(directory / "socket"), f"@trunkline-probe-{secrets.token_hex(8)}"
        for address in (path, "\0" + name[1:]):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        os.chmod(path, 0o777)  # noqa: S103 - the sandbox has to refuse it, not the file's mode
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.setblocking(False)
        udp.bind(("127.0.0.1", 0))
        file = directory / "file"
        file.write_text("readable by all")
        port = tcp.getsockname()[1]
        goals = {
            "read": {
                "a file of others": str(file), "the gateway's environment": f"/proc/{os.getpid()}/environ",
                **targets.files,
            },
            "write": {"a file of others": str(directory / "new"), "a system file": "/usr/.trunkline-probe"},
            "connect": {
                "another backend": ("127.0.0.1", port), "another backend by name": ("localhost", port),
                "cloud metadata": METADATA,
                **{name: address for name, address in targets.addresses.items() if _listens(address)},
            },
            "datagram": {_DATAGRAM: udp.getsockname(), "cloud metadata": METADATA},
            "unix": {"a socket of others": path, "an abstract socket of others": name},
        }  # fmt: skip
        yield Range(goals, udp)


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, REACH_S).close()
    except OSError:
        return False
    return True


async def run(spawner: SpawnerClient, confined: Confined, neighbour: Confined, targets: Range) -> list[Attempt]:
    """What the attempts came to in this sandbox (for `spec_of`), with another process of the same
    tenant beside it.

    Raises:
        SpawnFailed: nothing could be started in it, or it ended before it had tried anything.
    """
    async with _started(spawner, neighbour, {"sleep": 2 * PROBE_S}) as victim:
        limits = {"pids": LIMITS.pids, "files": LIMITS.files, "disk_bytes": (LIMITS.disk_mb or 0) << 20}
        goal = {**targets.goals, **limits, "memory_bytes": (LIMITS.memory_mb or 0) << 20, "victim": victim.pid}
        if confined.line is not None:
            goal["proxy"] = ("127.0.0.1", confined.line.port)
        async with _started(spawner, confined, goal) as probe:
            try:
                with anyio.fail_after(PROBE_S):
                    lines, is_over = await _report(probe.stdout, probe.ended)
            except TimeoutError:
                message = f"the probe did not end within {PROBE_S:.0f} s"
                raise SpawnFailed(errno.ETIMEDOUT, "probe", message) from None
            end = probe.ended.result()
    was_hit = targets.was_hit()
    attempts = [_attempt(line, was_hit) for line in lines]
    if not attempts:
        raise SpawnFailed(errno.EIO, "probe", f"the probe {end.reason} with {end.number} before it tried anything")
    attempts.append(Attempt(_ESCAPE, "processes", is_over, "" if is_over else "it still runs"))
    if not any(each.guarantee == "memory" for each in attempts):
        attempts.append(Attempt("allocate past the limit", "memory", True, f"{end.reason} {end.number}"))
    return attempts


@dataclass(frozen=True, slots=True)
class _Started:
    pid: int
    stdout: int
    ended: "asyncio.Future[End]"


@asynccontextmanager
async def _started(spawner: SpawnerClient, confined: Confined, goal: Mapping[str, Any]) -> AsyncIterator[_Started]:
    """The program of attempts in this sandbox. It is killed at the end of the block."""
    whole = replace(confined.command, argv=[*confined.command.argv, json.dumps(goal)])
    ended = asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, read_end)
        stack.callback(confined.close)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        spawned = await spawner.spawn(whole, (null, write_end, os.dup(null), *confined.take_channels()), _once(ended))
        try:
            confined.started(spawned.id)
            yield _Started(spawned.pid, read_end, ended)
        finally:
            spawner.kill(spawned.id)


def _once(ended: "asyncio.Future[End]") -> Callable[[End], None]:
    def on_end(end: End) -> None:
        if not ended.done():
            ended.set_result(end)

    return on_end


async def _report(read_end: int, ended: "asyncio.Future[End]") -> tuple[list[bytes], bool]:
    """The lines of a probe, and whether nothing of it is left soon after its end: who is left holds the pipe open."""
    os.set_blocking(read_end, False)
    received, is_over = bytearray(), False
    grace: float | None = None
    while not is_over and (grace is None or grace > 0):
        with anyio.move_on_after(0.05):
            await anyio.wait_readable(read_end)
        with suppress(BlockingIOError):
            part = os.read(read_end, 65536)
            is_over = not part
            received += part
        if len(received) > MAX_REPORT_BYTES:
            break
        if ended.done():
            grace = GONE_S if grace is None else grace - 0.05
    await ended
    return bytes(received).splitlines(), is_over


def _attempt(line: bytes, was_hit: bool) -> Attempt:
    told = json.loads(line)
    was_denied = told["outcome"] == "denied"
    if told["attempt"].endswith(_DATAGRAM):  # the loopback of its own takes it as well
        was_denied = not was_hit
    return Attempt(told["attempt"], told["guarantee"], was_denied, told["detail"])
