"""What a fork costs beside a process that is executed: the first answer, CPU, and memory of its own; alternating.

    .venv/bin/python bench/forking.py [--rounds 11 | --trials] [--tier N] PROGRAM [PROGRAM ...]

PROGRAM is the script of an MCP server in Python, for instance `.venv/bin/mcp-server-time`; with arguments, in quotes.
Every process is started by a Supervisor, as for a session that finds no warm one, and measured after its answer to
`tools/list`, with all that keeps it in its sandbox. CPU is that of its control group, of the spawner, and of the
template's group meanwhile; where there are no control groups, of its living processes only. The template's memory is
shown by itself.

`--trials` measures nothing: it says which programs are forked with `start: auto`, and why the others are not.
"""

import argparse
import asyncio
import os
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.domain import BackendSpec, Timeouts
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.sandbox.composer import Composer, Confined, Place, group_name
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner import tree
from app.jail.spawner.cgroups import Group
from app.processes.forking._dialogue import transcript
from app.processes.homes import Homes
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.telemetry.metrics import Metrics


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


def tree_of(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        found += tree.children(each)
    return found


def running_ms(pid: int) -> float:
    """To the nanosecond; /proc/PID/stat counts hundredths of a second."""
    tasks = os.listdir(f"/proc/{pid}/task")
    return sum(int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e6 for task in tasks)


def private_mib(pid: int, kind: str = "Private_") -> float:
    """`Private_Dirty`: what it has written; without pages of libraries that no other process maps at the moment."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


class Bench(NamedTuple):
    supervisor: Supervisor
    cgroups: CgroupRoots

    def group_ms(self, process: BackendProcess) -> float:
        roots = {name: str(path) for name, path in self.cgroups.directories.items()}
        tenant = group_name(process.spec)
        return Group({"roots": roots, "tenant": tenant}, process.id).usage().cpu_us / 1000

    def others_ms(self) -> float:
        """Of the spawner, its helper, and the templates."""
        (spawner,) = [pid for pid in tree.children(os.getpid()) if b"spawner" in tree.arguments(pid)]
        helpers = [pid for pid in tree.children(spawner) if b"rooms" in tree.arguments(pid)]
        templates = self.supervisor.forking.templates
        return sum(map(running_ms, [spawner, *helpers])) + sum(self.group_ms(each.process) for each in templates)

    async def measured(self, spec: BackendSpec) -> tuple[Measured, BackendProcess]:
        before_ms, began_at = self.others_ms(), time.perf_counter()
        process = await self.supervisor.spawn(spec, lambda process: None)
        task = asyncio.create_task(transcript(process, Timeouts()))
        while process.received_bytes == 0 and not task.done():
            await asyncio.sleep(0.0005)
        first_answer_ms = (time.perf_counter() - began_at) * 1000
        await task
        pids = tree_of(process.pid)
        cpu = self.group_ms(process) or sum(map(running_ms, pids))
        found = Measured(first_answer_ms, cpu + self.others_ms() - before_ms, sum(map(private_mib, pids)))
        self.supervisor.stop_soon(process)
        await process.wait_gone()
        return found, process


def spec_of(program: str, start: Literal["fork", "auto"]) -> BackendSpec:
    command, *args = shlex.split(program)
    return BackendSpec("bench", "server", os.path.abspath(command), tuple(args), start=start)


async def compare(bench: Bench, program: str, rounds: int) -> None:
    supervisor = bench.supervisor
    fork = spec_of(program, "fork")
    execute = replace(fork, name="executed", start="exec")
    why = await supervisor.forking.settled(fork)
    if why:
        print(f"{Path(program).name}: {why}")
        return
    (template,) = supervisor.forking.templates
    found: dict[str, list[Measured]] = {"exec": [], "fork": []}
    for _ in range(rounds):
        for spec in (execute, fork):
            numbers, process = await bench.measured(spec)
            found[process.origin.start].append(numbers)
    mib = sum(map(private_mib, tree_of(template.process.pid)))
    print(f"{Path(program).name}: a template of {template.loaded} modules, {mib:.0f} MiB")
    medians = {kind: [statistics.median(row) for row in zip(*rows, strict=True)] for kind, rows in found.items()}
    for name, executed, forked in zip(Measured._fields, *medians.values(), strict=True):
        print(f"  {name:16} {executed:8.1f} {forked:8.1f}  x {forked / executed:.3f}")
    supervisor.forking.forget(fork.key)


async def is_forked(bench: Bench, program: str) -> bool:
    spec = spec_of(program, "auto")
    why = await bench.supervisor.forking.settled(spec)
    print(f"{Path(program).name}: {why or 'forked'}", flush=True)
    bench.supervisor.forking.forget(spec.key)
    return not why


async def run(programs: list[str], rounds: int, wanted: int | None, *, only_trials: bool) -> None:
    metrics = Metrics("bench")
    async with AsyncExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-bench-"))
        cgroups = open_roots()
        stack.callback(cgroups.close)
        egress = await stack.enter_async_context(Egress(metrics))
        machine = examine(cgroups, lambda name: OF_PROBES)
        tier = machine.tiers[0] if wanted is None else Tier(wanted)
        print(f"tier {tier.value}, load {os.getloadavg()[0]:.1f}")
        composer = Composer(machine, NeedsFinder([place]), egress)
        options = SupervisorOptions(Homes(Path(place)), InTier(tier, composer), sched_batch=True)
        supervisor = await stack.enter_async_context(Supervisor(metrics, options))
        bench = Bench(supervisor, cgroups)
        if only_trials:
            forked = [await is_forked(bench, program) for program in programs]
            print(f"{sum(forked)} of {len(forked)} are forked")
            return
        for program in programs:
            await compare(bench, program, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--trials", action="store_true", help="only say which are forked with `start: auto`")
    parser.add_argument("--tier", type=int, choices=(0, 1, 2, 3), help="default: the highest of this machine")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.programs, arguments.rounds, arguments.tier, only_trials=arguments.trials))


if __name__ == "__main__":
    main()
