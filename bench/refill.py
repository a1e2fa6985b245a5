"""What it costs calls that warm processes are replaced meanwhile.

    .venv/bin/python bench/refill.py [--before CHECKOUT] [--sessions 16] [--rounds 7]

Sessions call as fast as they are answered, in rounds in which another backend has all its warm processes (`filled`) and
in rounds just before which all of them were taken (`short`), in turn. Prints how many processes were started in the
rounds, and the ratio of both kinds: CPU of the node per call, calls per second. With `--before`, also of the node of an
older checkout, in the same run. The server that is warm imports as much
as a small real one.
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forwarded import Node, ask, load, prepare
from mcp_clients import StreamableSession
from tracing import ExactNode

WARM = 12
SDK = "import asyncio, email.mime, http.client, json, ssl, xml.dom.minidom, unittest.mock, runpy, sys\n"
SDK += "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"


class Warmed:
    """A node, with a backend that is called and another that is kept warm."""

    def __init__(self, node: Node) -> None:
        self.node = node
        path, self.headers = prepare(node)
        words = ["keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"]
        made = subprocess.run([node.command, *words], env=node.environment, capture_output=True, check=True)
        self.key = json.loads(made.stdout)["key"]
        echo = str(ROOT / "bench/echo_backend.py")
        warmed = {
            "name": "warmed",
            "command": sys.executable,
            "args": ["-c", SDK, echo],
            "warm": WARM,
            "max_processes": 100,
        }
        ask(node, self.key, "POST", "/api/v1/tenants/bench/backends", warmed)
        self.called, self.warmed = node.url + path, node.url + path.replace("echo", "warmed")

    def number(self, sample: str) -> float:
        request = urllib.request.Request(self.node.url + "/metrics", headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))

    async def has_all(self) -> None:
        async with asyncio.timeout(120):
            while self.number('trunkline_processes{state="warm"}') < WARM:
                await asyncio.sleep(0.1)
            while self.number('trunkline_processes{state="stopping"}'):
                await asyncio.sleep(0.1)

    async def take_all(self) -> list[StreamableSession]:
        sessions = [StreamableSession(self.warmed, self.headers) for _ in range(WARM)]
        await asyncio.gather(*(session.open() for session in sessions))
        return sessions


async def one_round(warmed: Warmed, callers: list[StreamableSession], kind: str, seconds: float) -> dict[str, float]:
    await warmed.has_all()
    taken = await warmed.take_all() if kind == "short" else []
    started = warmed.number('trunkline_process_spawns_total{result="started"}')
    found = await load(callers, [warmed.node], seconds)
    found["started"] = warmed.number('trunkline_process_spawns_total{result="started"}') - started
    for session in taken:
        await session.close()
    return found


async def measure(nodes: dict[str, Warmed], options: argparse.Namespace) -> None:
    callers = {
        name: [StreamableSession(each.called, each.headers) for _ in range(options.sessions)]
        for name, each in nodes.items()
    }
    for sessions in callers.values():
        for session in sessions:
            await session.open()
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for name, warmed in nodes.items():
            for kind in ("filled", "short"):
                found = await one_round(warmed, callers[name], kind, options.seconds)
                rounds.setdefault((name, kind), []).append(found)
                words = "  ".join(f"{key} {found[key]:.1f}" for key in ("cpu_us", "calls_s", "p99_ms", "started"))
                print(f"round {number + 1}  {name:7} {kind:7} {words}", flush=True)
    print(f"\n{options.sessions} sessions, {options.rounds} rounds of {options.seconds:g} s, {WARM} processes missing")
    for name in nodes:
        pairs = list(zip(rounds[name, "short"], rounds[name, "filled"], strict=True))
        ratios = (
            f"{key} x {statistics.median(a[key] / b[key] for a, b in pairs):.2f}" for key in ("cpu_us", "calls_s")
        )
        starts = statistics.mean(short["started"] for short, _ in pairs)
        print(f"  {name:7} short to filled, medians of the ratios: {'  '.join(ratios)}; {starts:.1f} starts a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in each round")
    parser.add_argument("--before", type=Path, help="a checkout of an older commit")
    options = parser.parse_args()
    variants = {"now": ROOT} if options.before is None else {"before": options.before, "now": ROOT}
    with tempfile.TemporaryDirectory(prefix="trunkline-refill-") as directory, ExitStack() as stack:
        nodes = {}
        for name, checkout in variants.items():
            data = Path(directory) / name
            data.mkdir()
            environment = {
                **os.environ,
                "PYTHONPATH": str(checkout.resolve()),
                "TRUNKLINE_DATA_DIR": str(data / "data"),
                "TRUNKLINE_SECRET_KEY": secrets.token_hex(32),
                "TRUNKLINE_LOG_LEVEL": "warning",
            }
            node = ExactNode(data, environment)
            stack.callback(node.stop)
            nodes[name] = Warmed(node)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as in forwarded.py
        asyncio.run(measure(nodes, options))


if __name__ == "__main__":
    main()
