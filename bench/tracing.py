"""What traces cost: the same gateway without them, with a hundredth and with all of the calls recorded, side by side.

    .venv/bin/python bench/tracing.py [--sessions 16] [--rounds 60] [--seconds 0.4] [--before DIRECTORY]

Every variant is a gateway of its own; each round loads them one after the other, in an order that changes. Prints the
CPU time of the gateway per call, the thread that sends spans included: the median of the rounds, and the lower quarter
with its ratio to that of `off`. What else the machine does only adds to a round, so the lower quarter is steadier.
With `--before`, a checkout of an older commit takes part, without traces. The collector is a process that reads what it
is sent and forgets it. `passed on` are clients that send a context which is not recorded.
"""

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from forwarded import Node, load, prepare
from mcp_clients import StreamableSession

COLLECTOR = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
CONTEXT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}


class ExactNode(Node):
    """Reads its CPU time in nanoseconds, not in ticks."""

    def cpu_s(self) -> float:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def variants(collector: str, before: Path | None) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """By name: the environment of the gateway, and headers of its clients."""
    on = {"TRUNKLINE_OTLP_ENDPOINT": collector}
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "off": ({}, {}),
        "off again": ({}, {}),
        "1 %": ({**on, "TRUNKLINE_TRACE_SAMPLE": "0.01"}, {}),
        "passed on": ({**on, "TRUNKLINE_TRACE_SAMPLE": "0.01"}, CONTEXT),
        "all": ({**on, "TRUNKLINE_TRACE_SAMPLE": "1"}, {}),
    }
    return found if before is None else {"before": ({"PYTHONPATH": str(before)}, {}), **found}


async def measure(nodes: dict[str, Node], headers: dict[str, dict[str, str]], options: argparse.Namespace) -> None:
    sessions: dict[str, list[StreamableSession]] = {}
    for name, node in nodes.items():
        path, key = prepare(node)
        sessions[name] = [StreamableSession(node.url + path, {**key, **headers[name]}) for _ in range(options.sessions)]
        for session in sessions[name]:
            await session.open()
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        names = list(nodes)
        turned = names[number % len(names) :] + names[: number % len(names)]
        found = {name: (await load(sessions[name], [nodes[name]], options.seconds))["cpu_us"] for name in turned}
        rounds.append(found)
        print(f"round {number + 1}  " + "  ".join(f"{name} {found[name]:.1f}" for name in names), flush=True)
    print(f"\n{options.sessions} sessions, medians of {options.rounds} rounds of {options.seconds:g} s")
    quarter = {name: statistics.quantiles((each[name] for each in rounds), n=4)[0] for name in nodes}
    for name, lower in quarter.items():
        median = statistics.median(each[name] for each in rounds)
        ratio = lower / quarter["off"]
        print(f"  {name:10} median {median:6.1f}   lower quarter {lower:6.1f} us/call   x off {ratio:5.3f}")
    for each in sessions.values():
        for session in each:
            await session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.4, help="of load per round and variant")
    parser.add_argument("--only", default="", help="these variants, comma-separated; `off` must be among them")
    parser.add_argument("--before", type=Path, help="a checkout of an older commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trunkline-tracing-") as name, ExitStack() as stack:
        collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
        stack.callback(collector.wait)
        stack.callback(collector.kill)
        assert collector.stdout is not None
        stack.callback(collector.stdout.close)
        url = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        nodes, headers = dict[str, Node](), dict[str, dict[str, str]]()
        for variant, (settings, of_clients) in variants(url, options.before).items():
            if options.only and variant not in options.only.split(","):
                continue
            directory = Path(name) / f"data-{len(nodes)}"
            directory.mkdir()
            environment = {
                **os.environ,
                "TRUNKLINE_DATA_DIR": str(directory / "data"),
                "TRUNKLINE_SECRET_KEY": secrets.token_hex(32),
                "TRUNKLINE_LOG_LEVEL": "warning",
                **settings,
            }
            nodes[variant], headers[variant] = ExactNode(directory, environment), of_clients
            stack.callback(nodes[variant].stop)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as in forwarded.py
        asyncio.run(measure(nodes, headers, options))


if __name__ == "__main__":
    main()
