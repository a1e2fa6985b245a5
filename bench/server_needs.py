"""What servers need of `limits`: the most that each has used from its start until its answer to a call.

    .venv/bin/python bench/server_needs.py [--tier N] [--limits pids=512,memory_mb=1024] SERVERS.json [NAME ...]

SERVERS.json is a list of `{"name", "argv", "env", "call": [TOOL, ARGUMENTS]}`, all but the first two optional. With
`--tier -1` they run outside of any sandbox and limit, and reach whatever they dial: begin with `unshare --net`.
Processes with threads, memory of their own (without what is shared with others, with what is in their files in memory),
open files of the process with most of them, and MiB in home and temporary files are looked at 20 times a second.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyio
from forking import InTier

from app.domain import BackendSpec, ProcessLimits, Sandbox
from app.errors import BackendError
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.sandbox.composer import Composer
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Tier
from app.jail.sandbox.uids import OF_PROBES
from app.processes.conversation import Conversation, result_of
from app.processes.directories import size
from app.processes.homes import Homes
from app.processes.measuring import measure
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.telemetry.metrics import Metrics

EVERY_S = 0.05
ANSWER_S = 240.0
IDLE_S = 1.0  # after an answer: what a server does behind it
HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Used(NamedTuple):
    """At one moment, or the most of each."""

    threads: int = 0
    processes: int = 0
    private_mib: float = 0.0
    files: int = 0
    disk_mib: float = 0.0

    def most(self, other: "Used") -> "Used":
        return Used(
            max(self.threads, other.threads),
            max(self.processes, other.processes),
            max(self.private_mib, other.private_mib),
            max(self.files, other.files),
            max(self.disk_mib, other.disk_mib),
        )


def used_by(process: BackendProcess, homes: list[Path]) -> Used:
    """Blocks. What ends meanwhile counts as nothing."""
    found = measure({process.pid: process.id}).get(process.pid)
    pids = () if found is None else found.pids
    threads = files = private = 0
    for pid in pids:
        with suppress(OSError):
            threads += len(os.listdir(f"/proc/{pid}/task"))
            files = max(files, len(os.listdir(f"/proc/{pid}/fd")))
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Clean", "Private_Dirty")):
                    private += int(line.split()[1]) << 10
    disk = sum(map(size, homes))
    if not homes and pids:  # in namespaces of its own they are one file system
        with suppress(OSError):
            own = os.statvfs(f"/proc/{max(pids)}/root/tmp")
            disk = (own.f_blocks - own.f_bfree) * own.f_frsize
    return Used(threads, len(pids), private / (1 << 20), files, disk / (1 << 20))


async def watched(process: BackendProcess, homes: list[Path], most: list[Used]) -> None:
    while True:
        most[0] = most[0].most(await anyio.to_thread.run_sync(used_by, process, homes))
        await anyio.sleep(EVERY_S)


async def talk(process: BackendProcess, call: tuple[str, dict[str, Any]] | None) -> str:
    """Raises BackendError, TimeoutError."""
    conversation = Conversation(process)
    process.attach(conversation)
    with anyio.fail_after(ANSWER_S):
        result_of(await conversation.answer_to("initialize", HANDSHAKE))
        conversation.send({"method": "notifications/initialized"})
        tools = (await conversation.ask("tools/list", {}))["tools"]
        if call is None:
            return f"{len(tools)} tools"
        answer = await conversation.ask("tools/call", {"name": call[0], "arguments": call[1]})
    text = json.dumps(answer.get("content", answer), ensure_ascii=False)[:90]
    return f"{len(tools)} tools, {'FAILED ' if answer.get('isError') else ''}{text}"


async def tried(supervisor: Supervisor, spec: BackendSpec, call: tuple[str, dict[str, Any]] | None) -> tuple[Used, str]:
    most = [Used()]
    try:
        process = await supervisor.spawn(spec, lambda gone: None)
    except BackendError as error:
        return most[0], f"DEAD {error}"
    homes = homes_of(supervisor, process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched, process, homes, most)
        try:
            said = await talk(process, call)
            await anyio.sleep(IDLE_S)
            await process.measure()
            limit = process.limit_reached()
            said = f"AT {limit} {said}" if limit else said
        except (BackendError, TimeoutError) as error:
            said = f"DEAD {error!r} {' | '.join(process.stderr.last_lines(4))[-300:]}"
        tasks.cancel_scope.cancel()
    supervisor.stop_soon(process)
    await process.wait_gone()
    return most[0], said


def homes_of(supervisor: Supervisor, process: BackendProcess) -> list[Path]:
    home = supervisor.home_of(process)
    is_inside = home is None or process.origin.tier in ("namespaces", "assisted")
    return [] if is_inside or home is None else [Path(home.path), Path(home.tmpdir)]


async def main(options: argparse.Namespace) -> None:
    servers = json.loads(Path(options.servers).read_text())
    servers = [each for each in servers if not options.names or each["name"] in options.names]
    limits = ProcessLimits(**json.loads(options.limits))
    tier, metrics = Tier(options.tier), Metrics("bench")
    cgroups = open_roots() if tier is not Tier.NONE else CgroupRoots()
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
        stack.callback(cgroups.close)
        egress = await stack.enter_async_context(Egress(metrics))
        confiner = InTier(tier, Composer(examine(cgroups, lambda name: OF_PROBES), NeedsFinder([]), egress))
        supervisor_options = SupervisorOptions(Homes(Path(directory)), confiner=confiner)
        supervisor = await stack.enter_async_context(Supervisor(metrics, supervisor_options))
        print("| server | threads | processes | private MiB | files | disk MiB | said |")
        print("|---|---:|---:|---:|---:|---:|---|")
        for each in servers:
            command, *args = each["argv"]
            sandbox = Sandbox(read=tuple(each.get("read", ())), write=tuple(each.get("write", ())))
            env = each.get("env", {})
            spec = BackendSpec("bench", "bench", command, tuple(args), env=env, sandbox=sandbox, limits=limits)
            call = (each["call"][0], each["call"][1]) if "call" in each else None
            used, said = await tried(supervisor, spec, call)
            row = (used.threads, used.processes, round(used.private_mib), used.files, round(used.disk_mib, 1))
            print("|", " | ".join([each["name"], *map(str, row), said.replace("|", "/")]), "|", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("servers")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tier", type=int, default=3)
    parser.add_argument("--limits", default="{}", help="JSON, of ProcessLimits")
    asyncio.run(main(parser.parse_args()))
