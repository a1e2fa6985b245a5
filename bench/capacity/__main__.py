"""Sessions per GB and per core, measured: `scripts/bench --capacity`.

    scripts/bench --capacity --quick --out /tmp/capacity.json     two servers, shorter
    scripts/bench --capacity --keep                               half an hour: what the documents show

Real servers from the registries behind trunkline (a process for each session, forked, parked, shared), behind a bare
bridge and behind supergateway: memory, CPU and times of sessions that are idle, chat and burst, and of opening them.
Then calls to an echo server by more and more sessions. The result is JSON; its pictures are drawn beside it. With
--keep it becomes what the documents show (bench/README.md).
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from capacity import report
from capacity.costs import machine
from capacity.gateways import PEERS, peer, trunkline
from capacity.phases import FULL, QUICK, Load, Plan, Report
from capacity.rows import curve, measure, modes_of
from capacity.servers import ECHO, SERVERS, Installed, install, supergateway
from tests.clients.environments import Unavailable

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "bench/capacity.json"
QUICK_SERVERS, PEERS_OF = ("time", "everything"), ("time", "everything")
ECHO_CALL = ("echo", {"text": "hello"})
LIMIT_S = {True: 600.0, False: 2400.0}  # what has not begun by then is left out
ROW_S = 420.0


class Run:
    """One run: what it has found, and what it left out."""

    def __init__(self, plan: Plan, limit_s: float) -> None:
        self.plan, self.ends = plan, time.monotonic() + limit_s
        self.rows, self.curves, self.left_out = list[Report](), list[Report](), dict[str, str]()
        self.loads = [os.getloadavg()[0]]

    async def row(self, server: Installed, mode: str, program: Path | None) -> None:
        await self._one(f"{server.server.name}, {mode}", self._measured(server, mode, program))

    async def _measured(self, server: Installed, mode: str, program: Path | None) -> None:
        self.rows.append(await measure(server, mode, self.plan, program))

    async def curve(self, name: str, program: Path | None) -> None:
        await self._one(f"calls, {name}", self._curve(name, program))

    async def _curve(self, name: str, program: Path | None) -> None:
        def load_of(endpoint: Any) -> Load:
            return Load(endpoint, ECHO_CALL[0], dict(ECHO_CALL[1]))

        if name in PEERS:
            with peer(name, ECHO, program) as endpoint:
                self.curves += await curve(name, load_of, endpoint, self.plan)
        else:
            fields = {"isolation": "shared"} if name == "trunkline, shared" else {}
            with trunkline(ECHO, fields) as node:
                self.curves += await curve(name, load_of, node, self.plan)

    async def _one(self, name: str, work: Any) -> None:
        """Says what is done; what fails or comes too late is left out, with the reason."""
        began = time.monotonic()
        if began > self.ends:
            work.close()
            self.left_out[name] = "no time was left"
        else:
            try:
                async with asyncio.timeout(ROW_S):
                    await work
            except Exception as error:
                self.left_out[name] = f"{type(error).__name__}: {error}"[:500]
        self.loads.append(os.getloadavg()[0])
        took, why = time.monotonic() - began, self.left_out.get(name, "")
        print(f"{name}: {took:.0f} s, load {self.loads[-1]:.1f} {why}", file=sys.stderr, flush=True)


def installed(names: tuple[str, ...]) -> tuple[list[Installed], dict[str, str]]:
    """The servers, and why others are missing."""
    there, missing = list[Installed](), dict[str, str]()
    for server in SERVERS:
        if server.name in names:
            made = install(server)
            if isinstance(made, Unavailable):
                missing[server.name] = made.reason
            else:
                there.append(made)
    return there, missing


async def run(*, quick: bool) -> Report:
    plan = QUICK if quick else FULL
    servers, missing = installed(QUICK_SERVERS if quick else tuple(each.name for each in SERVERS))
    program = supergateway()
    peers = {"bridge": None} | ({} if isinstance(program, Unavailable) else {"supergateway": program})
    done, began = Run(plan, LIMIT_S[quick]), time.monotonic()
    if isinstance(program, Unavailable):
        done.left_out["supergateway"] = program.reason
    done.left_out |= missing
    for name, its in {"trunkline": None, "trunkline, shared": None, **peers}.items():
        await done.curve(name, its)
    for server in servers:
        for mode in modes_of(server):
            await done.row(server, mode, None)
    for server in servers:
        if server.server.name in PEERS_OF[: 1 if quick else None]:
            for name, its in peers.items():
                await done.row(server, name, its)
    done.rows.sort(key=lambda row: [each.server.name for each in servers].index(row["server"]))
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": quick,
        "seconds": round(time.monotonic() - began),
        "machine": machine() | {"python": platform.python_version(), "node": _version("node")},
        "load": {"least": round(min(done.loads), 1), "most": round(max(done.loads), 1)},
        "chat_every_s": list(plan.chat_every_s),
        "servers": {each.server.name: {"language": each.server.language, "version": each.version} for each in servers},
        "rows": done.rows,
        "curves": done.curves,
        "left_out": done.left_out,
    }


def _version(program: str) -> str:
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench --capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two servers, fewer sessions, shorter")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON; pictures beside it; default: JSON on stdout")
    parser.add_argument("--keep", action="store_true", help="as the figures of the repository: JSON, pictures, tables")
    parser.add_argument("--draw", action="store_true", help="with --keep: from the JSON that is kept, nothing is run")
    options = parser.parse_args()
    if options.keep and options.quick:
        parser.error("a quick run is not kept")
    for number in (signal.SIGTERM, signal.SIGHUP):  # what was started ends as after Ctrl-C
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    found = json.loads(KEPT.read_text()) if options.draw else asyncio.run(run(quick=options.quick))
    text = report.as_json(found)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
        report.draw(found, options.out.parent)
    if options.keep:
        KEPT.write_text(text)
        report.keep(found, ROOT)
    if not options.out and not options.keep:
        print(text, end="")
    print(report.table(found), file=sys.stderr)
    if not found["rows"]:
        raise SystemExit(f"nothing was measured: {found['left_out']}")


if __name__ == "__main__":
    main()
