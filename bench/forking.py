"""What a fork costs beside a process that is executed: the first answer, CPU, and memory of its own; alternating.

    .venv/bin/python bench/forking.py [--rounds 11] [--tier 1] PROGRAM [PROGRAM ...]

PROGRAM is the script of an MCP server in Python, for instance `.venv/bin/mcp-server-time`. Every process is started by
a Supervisor, as for a session that finds no warm one, and measured after its answer to `tools/list`. CPU is that of the
process alone; a fork's share of its template is not, nor the template's memory, which is shown by itself.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.domain import BackendSpec, Timeouts
from app.egress.egress import Egress
from app.metrics import Metrics
from app.processes.forking.dialogue import Dialogue
from app.processes.homes import Homes
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.sandbox.cgroup_roots import open_roots
from app.sandbox.composer import Composer, Confined, Place
from app.sandbox.machine import examine
from app.sandbox.needs import NeedsFinder
from app.sandbox.tiers import Profile, Tier


class InTier(NamedTuple):
    """Fulfils Confiner."""

    tier: Tier
    composer: Composer

    def profile(self, spec: BackendSpec) -> Profile:
        return Profile(self.tier, "none")

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        return await self.composer.compose(spec, place, self.profile(spec))


class Measured(NamedTuple):
    """Of one process, in milliseconds and MiB."""

    first_answer_ms: float
    cpu_ms: float
    private_mib: float


def cpu_ms(pid: int) -> float:
    """To the nanosecond; /proc/PID/stat counts hundredths of a second."""
    return sum(int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e6 for task in tasks(pid))


def tasks(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def measured(supervisor: Supervisor, spec: BackendSpec) -> tuple[Measured, BackendProcess]:
    began_at = time.perf_counter()
    process = await supervisor.spawn(spec, lambda process: None)
    listened: list[float] = []
    dialogue = Dialogue(process)
    task = asyncio.create_task(dialogue.transcript(Timeouts()))
    while process.received_bytes == 0 and not task.done():
        await asyncio.sleep(0.0005)
    listened.append(time.perf_counter() - began_at)
    await task
    found = Measured(listened[0] * 1000, cpu_ms(process.pid), private_mib(process.pid))
    supervisor.stop_soon(process)
    await process.wait_gone()
    return found, process


async def compare(supervisor: Supervisor, program: str, rounds: int) -> None:
    fork = BackendSpec("bench", "server", program, start="fork")
    execute = replace(fork, name="executed", start="exec")
    why = await supervisor.forking.settled(fork)
    if why:
        print(f"{Path(program).name}: {why}")
        return
    (template,) = supervisor.forking.templates
    found: dict[str, list[Measured]] = {"exec": [], "fork": []}
    for _ in range(rounds):
        for spec in (execute, fork):
            numbers, process = await measured(supervisor, spec)
            found[process.origin.start].append(numbers)
    mib = private_mib(template.process.pid)
    print(f"{Path(program).name}: a template of {template.loaded} modules, {mib:.0f} MiB")
    medians = {kind: [statistics.median(row) for row in zip(*rows, strict=True)] for kind, rows in found.items()}
    for name, executed, forked in zip(Measured._fields, *medians.values(), strict=True):
        print(f"  {name:16} {executed:8.1f} {forked:8.1f}  x {forked / executed:.3f}")
    supervisor.forking.forget(fork.key)


async def run(programs: list[str], rounds: int, tier: Tier) -> None:
    metrics = Metrics("bench")
    async with AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-bench-"))
        cgroups = open_roots()
        stack.callback(cgroups.close)
        egress = await stack.enter_async_context(Egress(metrics))
        composer = Composer(examine(cgroups, None), NeedsFinder([place]), egress)
        options = SupervisorOptions(Homes(Path(place)), InTier(tier, composer), sched_batch=True)
        supervisor = await stack.enter_async_context(Supervisor(metrics, options))
        for program in programs:
            await compare(supervisor, os.path.abspath(program), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tier", type=int, default=1, choices=(0, 1))
    arguments = parser.parse_args()
    asyncio.run(run(arguments.programs, arguments.rounds, Tier(arguments.tier)))


if __name__ == "__main__":
    main()
