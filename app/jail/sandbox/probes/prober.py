"""Runs the program of attempts inside a sandbox, against targets that this node puts up for it."""

import asyncio
import errno
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from app.domain import BackendSpec, Network, ProcessLimits, Sandbox
from app.domain.resources.backends import NetworkMode
from app.jail.sandbox.composer import Confined
from app.jail.sandbox.probes.range import DATAGRAM, Range, identity
from app.jail.sandbox.tiers import WEAKER, Tier, promised
from app.jail.spawner.client import End, SpawnerClient, SpawnFailed

PROBE_S = 60.0  # for one run on a very busy machine; it takes some tenths of a second
GONE_S = 1.0  # after its end, for a daemon that it left behind
MAX_REPORT_BYTES = 256 << 10
LIMITS = ProcessLimits(memory_mb=32, pids=16, cpu=None, files=64, disk_mb=2)
_ATTEMPTS = str(Path(__file__).with_name("attempts.py"))
_NEIGHBOUR = "another process"
_ESCAPE = "leave a daemon behind"
_LOOK_S = 0.05


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
    network: NetworkMode
    attempts: Sequence[Attempt] = ()
    error: str | None = None

    def holds(self, guarantee: str) -> bool:
        """Whether something was tried that this guarantee forbids, and all of it was denied."""
        tried = [each for each in self.attempts if each.guarantee == guarantee]
        return bool(tried) and all(each.was_denied for each in tried)

    def held(self) -> Sequence[str]:
        """What the tier promises with this network and was denied, without what would only be `WEAKER`."""
        kinds = promised(self.tier, self.network) - WEAKER.keys()
        return [] if self.error else [each for each in kinds if self.holds(each)]

    def holds_all(self) -> bool:
        """Whether the attempts could be made, and whatever the tier promises with this network was denied."""
        return self.error is None and all(self.holds(each) for each in promised(self.tier, self.network))

    def first_success(self, guarantee: str) -> str | None:
        """What a process could do in spite of the guarantee."""
        done = (each for each in self.attempts if each.guarantee == guarantee and not each.was_denied)
        return next((f"{each.name}: {each.detail}" if each.detail else each.name for each in done), None)

    def why_not(self, guarantee: str) -> str | None:
        """Why it cannot be claimed; None if it can."""
        if self.error is not None:
            return f"the probe could not run: {self.error}"
        done = self.first_success(guarantee)
        if done is not None:
            return f"the probe could {done}"
        return None if self.holds(guarantee) else "the probe tried nothing of it"


def best_tier(reports: Iterable[TierReport], network: Network = "none") -> Tier:
    """The highest tier in which everything held that it promises; if there is none, that in which most of it did.

    Linux before 6.12, for one, cannot keep signals inside without namespaces, but it can keep files from a process.
    """
    tried = [report for report in reports if report.network == network and report.held()]
    best = max(tried, key=lambda report: (len(report.held()), _broken(report), report.tier), default=None)
    return Tier.BASE if best is None else best.tier


def _broken(report: TierReport) -> int:
    """How much of its promise did not hold, as a number below zero."""
    return len(report.held()) - len(promised(report.tier, report.network) - WEAKER.keys())


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process of the same tenant, beside a probe. `home`: its directory outside."""

    pid: int
    home: str


def spec_of(network: NetworkMode) -> BackendSpec:
    """The probe as a backend."""
    return BackendSpec(
        tenant="trunkline-probe",
        name="probe",
        command=sys.executable,
        args=("-I", "-S", _ATTEMPTS),
        sandbox=Sandbox(network=network),
        limits=LIMITS,
    )


async def run(
    spawner: SpawnerClient, confined: Confined, neighbour: "asyncio.Future[Neighbour]", targets: Range
) -> list[Attempt]:
    """What the attempts came to in this sandbox (for `spec_of`).

    Raises:
        SpawnFailed: nothing could be started in it, or it ended before it had tried anything.
    """
    async with started(spawner, confined) as probe:
        probe.tell(_goal(confined, await neighbour, targets))
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


def _goal(confined: Confined, neighbour: Neighbour, targets: Range) -> Mapping[str, Any]:
    goals = targets.goals
    passed = {*confined.command.env, "PWD"}  # bubblewrap sets PWD
    goal = {
        **goals,
        "read": {**goals["read"], f"the home of {_NEIGHBOUR}": neighbour.home},
        "create": {**goals["create"], f"a file in the home of {_NEIGHBOUR}": f"{neighbour.home}/.trunkline-probe"},
        "processes": {**goals["processes"], f"{_NEIGHBOUR} of its tenant": identity(neighbour.pid)},
        "variables": [name for name in os.environ if name not in passed],
        "pids": LIMITS.pids,
        "files": LIMITS.files,
        "disk_bytes": (LIMITS.disk_mb or 0) << 20,
        "memory_bytes": (LIMITS.memory_mb or 0) << 20,
    }
    if confined.profile.network == "host":  # nothing is promised, and what is there need not be disturbed
        goal |= {"connect": {}, "datagram": {}, "unix": {}}
    if confined.line is not None:
        goal["proxy"] = ("127.0.0.1", confined.line.port)
    return goal


@dataclass(frozen=True, slots=True)
class Started:
    """The program of attempts: it waits until it is told its goal."""

    pid: int
    stdin: int
    stdout: int
    ended: "asyncio.Future[End]"

    def tell(self, goal: Mapping[str, Any]) -> None:
        """Fits into the pipe."""
        with suppress(BrokenPipeError):  # it has ended: its report says so
            os.write(self.stdin, json.dumps(goal).encode() + b"\n")


@asynccontextmanager
async def started(spawner: SpawnerClient, confined: Confined) -> AsyncIterator[Started]:
    """It is killed at the end of the block."""
    ended = asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        (stdin, to_child), (from_child, stdout) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        for descriptor in (to_child, from_child):
            stack.callback(os.close, descriptor)
        stack.callback(confined.close)
        stderr = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        given = (stdin, stdout, stderr, *confined.take_channels())
        spawned = await spawner.spawn(confined.command, given, _once(ended))
        try:
            confined.started(spawned.id)
            yield Started(spawned.pid, to_child, from_child, ended)
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
        with anyio.move_on_after(_LOOK_S):
            await anyio.wait_readable(read_end)
        with suppress(BlockingIOError):
            part = os.read(read_end, 65536)
            is_over = not part
            received += part
        if len(received) > MAX_REPORT_BYTES:
            break
        if ended.done():
            grace = GONE_S if grace is None else grace - _LOOK_S
    await ended
    return bytes(received).splitlines(), is_over


def _attempt(line: bytes, was_hit: bool) -> Attempt:
    told = json.loads(line)
    was_denied = told["outcome"] == "denied"
    if told["attempt"].endswith(DATAGRAM):  # the loopback of its own takes it as well
        was_denied = not was_hit
    return Attempt(told["attempt"], told["guarantee"], was_denied, told["detail"])
