"""What a call costs that arrives at the wrong node: two nodes, one Redis; every session lives on the first.

    .venv/bin/python bench/forwarded.py --sessions 16 --rounds 5

Alternates rounds of calls to the node that has the sessions with rounds of calls to the other one, and prints medians:
CPU of both nodes together per call (backends, Redis and this program left out), calls per second, latencies, and their
ratios. Starts everything itself on loopback ports and stops it. TRUNKLINE_BIN names another build's command.
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
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tests.redis_servers, wherever this is started

from mcp_clients import StreamableSession

from tests.redis_servers import RedisServer

NOTHING = dict.fromkeys(
    ("sessions", "processes", "in_flight", "requests_per_second", "burst", "memory_mb", "spawns_per_minute")
)
START_S, STOP_S = 60.0, 30.0


class Node:
    """One `trunkline serve`."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        command = os.environ.get("TRUNKLINE_BIN", str(Path(sys.executable).parent / "trunkline"))
        self.environment, self.command = environment, command
        with (directory / f"node-{secrets.token_hex(4)}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [command, "serve", "--host", "127.0.0.1", "--port", "0"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"a node did not start; see {log.name}")
        self.url = line.removeprefix("listening on ").strip()
        self.cpu = psutil.Process(self.process.pid)

    def cpu_s(self) -> float:
        times = self.cpu.cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def ask(node: Node, key: str, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        node.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


def prepare(node: Node) -> tuple[str, dict[str, str]]:
    """A tenant without limits and a backend in it; the endpoint's path, and a client's headers."""
    made = subprocess.run(
        [node.command, "keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"],
        env=node.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    key = json.loads(made.stdout)["key"]
    ask(node, key, "POST", "/api/v1/tenants", {"name": "bench", "limits": NOTHING})
    backend = [sys.executable, "-I", "-S", str(ROOT / "bench/echo_backend.py")]
    ask(
        node,
        key,
        "POST",
        "/api/v1/tenants/bench/backends",
        {"name": "echo", "command": backend[0], "args": backend[1:], "max_processes": 1000},
    )
    client = ask(node, key, "POST", "/api/v1/tenants/bench/keys", {"name": "bench", "scopes": ["mcp:connect"]})
    return "/t/bench/echo/mcp", {"Authorization": f"Bearer {client['key']}"}


def move(sessions: list[StreamableSession], node: Node) -> None:
    """From now on the sessions' requests go to this node."""
    parts = urlsplit(node.url)
    for session in sessions:
        session.abort()
        session.host, session.port = parts.hostname or "", parts.port or 80
        session._build_head()


async def load(sessions: list[StreamableSession], nodes: list[Node], seconds: float) -> dict[str, float]:
    """All sessions call as fast as they are answered."""
    latencies: list[float] = []

    async def converse(session: StreamableSession) -> None:
        while time.perf_counter() < ends_at:
            began_at = time.perf_counter()
            answer = await session.call_tool("echo", {"text": "hello"})
            latencies.append(time.perf_counter() - began_at)
            assert answer == "hello"

    ends_at = time.perf_counter() + 0.3
    await asyncio.gather(*map(converse, sessions))  # connections, caches
    latencies.clear()
    cpu_before, began_at = sum(node.cpu_s() for node in nodes), time.perf_counter()
    ends_at = began_at + seconds
    await asyncio.gather(*map(converse, sessions))
    cpu_s, took_s = sum(node.cpu_s() for node in nodes) - cpu_before, time.perf_counter() - began_at
    latencies.sort()
    return {
        "cpu_us": cpu_s / len(latencies) * 1e6,
        "calls_s": len(latencies) / took_s,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


async def measure(nodes: list[Node], path: str, headers: dict[str, str], options: argparse.Namespace) -> None:
    sessions = [StreamableSession(nodes[0].url + path, headers) for _ in range(options.sessions)]
    for session in sessions:
        await session.open()
    rounds: dict[str, list[dict[str, float]]] = {"local": [], "forwarded": []}
    for number in range(options.rounds):
        for name, node in zip(rounds, nodes, strict=True):
            move(sessions, node)
            rounds[name].append(await load(sessions, nodes, options.seconds))
            figures = "  ".join(f"{key} {value:.1f}" for key, value in rounds[name][-1].items())
            print(f"round {number + 1} {name:9} {figures}", flush=True)
    median = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }
    print(f"\n{options.sessions} sessions, medians of {options.rounds} rounds of {options.seconds:g} s")
    for key in median["local"]:
        local, forwarded = median["local"][key], median["forwarded"][key]
        print(f"  {key:8} local {local:9.1f}   forwarded {forwarded:9.1f}   ratio {forwarded / local:5.2f}")
    for session in sessions:
        await session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load per round and node")
    options = parser.parse_args()
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory(prefix="trunkline-forwarded-") as name, RedisServer() as redis:
        directory = Path(name)
        environment = {
            **os.environ,
            "TRUNKLINE_DATA_DIR": str(directory / "data"),
            "TRUNKLINE_REDIS_URL": redis.url,
            "TRUNKLINE_SECRET_KEY": secrets.token_hex(32),
            "TRUNKLINE_LOG_LEVEL": "warning",
        }
        try:
            for _ in range(2):
                nodes.append(Node(directory, environment))  # noqa: PERF401, each is ended though the next fails
            path, headers = prepare(nodes[0])
            time.sleep(2.5)  # two beats: each node has heard of the other
            # Clients are on other machines and interrupt nobody; here an answer would wake this program on the node's
            # own processor, and it would run before the node goes on.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            asyncio.run(measure(nodes, path, headers, options))
        finally:
            for node in nodes:
                node.stop()


if __name__ == "__main__":
    main()
