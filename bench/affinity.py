"""What a balancer saves that knows whose session it is: two nodes behind a real HAProxy, with and without affinity.

    .venv/bin/python bench/affinity.py --sessions 16 --rounds 5

The same sessions call in turn through deploy/haproxy as it is, and through the same without its lines of affinity.
Prints medians: CPU of both nodes together per call (HAProxy, backends, Redis and this program left out), calls per
second, latencies, and how many of the calls were passed on. Starts everything itself on loopback ports and stops it.
"""

import argparse
import asyncio
import os
import re
import secrets
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tests.haproxy and tests.redis_servers, wherever this is started

from forwarded import Node, load, move, prepare
from mcp_clients import StreamableSession

from tests import haproxy
from tests.redis_servers import RedisServer

AFFINITY = re.compile(r"^    (use-server|stick-table|stick on) .*\n", re.MULTILINE)


@dataclass
class Balancer:
    """Where clients connect."""

    url: str


def forwards(nodes: list[Node]) -> float:
    """How many requests the nodes have passed on."""
    total = 0.0
    for node in nodes:
        with urllib.request.urlopen(node.url + "/metrics", timeout=30) as response:
            found = re.findall(rb"^trunkline_forwards_total\{.*\} (\S+)$", response.read(), re.MULTILINE)
        total += sum(map(float, found))
    return total


async def measure(
    nodes: list[Node], ways: dict[str, Balancer], path: str, headers: dict[str, str], options: argparse.Namespace
) -> None:
    sessions = [StreamableSession(ways["affinity"].url + path, headers) for _ in range(options.sessions)]
    for session in sessions:
        await session.open()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name, way in ways.items():
            move(sessions, cast("Node", way))
            before = forwards(nodes)
            figures = await load(sessions, nodes, options.seconds)
            figures["passed_on_s"] = (forwards(nodes) - before) / (options.seconds + 0.3)
            rounds[name].append(figures)
            print(
                f"round {number + 1} {name:9} " + "  ".join(f"{key} {value:.1f}" for key, value in figures.items()),
                flush=True,
            )
    median = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }
    print(f"\n{options.sessions} sessions, medians of {options.rounds} rounds of {options.seconds:g} s")
    for key in median["affinity"]:
        with_it, without = median["affinity"][key], median["without"][key]
        print(f"  {key:11} affinity {with_it:9.1f}   without {without:9.1f}")
    for session in sessions:
        await session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load per round and balancer")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-affinity-")))
        redis = stack.enter_context(RedisServer())
        environment = {
            **os.environ,
            "TRUNKLINE_DATA_DIR": str(directory / "data"),
            "TRUNKLINE_REDIS_URL": redis.url,
            "TRUNKLINE_SECRET_KEY": secrets.token_hex(32),
            "TRUNKLINE_LOG_LEVEL": "warning",
        }
        nodes: list[Node] = []
        for number in (1, 2):
            nodes.append(Node(directory, {**environment, "TRUNKLINE_NODE_NAME": f"gateway-{number}"}))
            stack.callback(nodes[-1].stop)
        path, headers = prepare(nodes[0])
        time.sleep(2.5)  # two beats: each node has heard of the other
        ports = [int(node.url.rpartition(":")[2]) for node in nodes]
        ways: dict[str, Balancer] = {}
        for name, configuration in {
            "affinity": haproxy.CONFIGURATION,
            "without": AFFINITY.sub("", haproxy.CONFIGURATION),
        }.items():
            haproxy.CONFIGURATION = configuration
            (directory / name).mkdir()
            port, _ = stack.enter_context(haproxy.running_balancer(directory / name, ports, check_every="1s"))
            ways[name] = Balancer(f"http://127.0.0.1:{port}")
        asyncio.run(measure(nodes, ways, path, headers, options))


if __name__ == "__main__":
    main()
