"""What the sandbox costs: a start until the first answer, and a call; the same server without one, in the same rounds.

    .venv/bin/python bench/sandboxed.py [--rounds 15] [--calls 300] COMMAND [ARGUMENT ...]

COMMAND is an MCP server over stdio, for instance `mcp-server-time`. As root all tiers are measured, otherwise those
that are left. Prints medians in milliseconds, and their ratios to those without a sandbox.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.domain import BackendSpec, Sandbox
from app.domain.resources.backends import NetworkMode
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import End, SpawnerClient
from app.telemetry.metrics import Metrics

TENANT_UID = 64_001
ANSWER_BYTES = 1 << 20
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Kind(NamedTuple):
    """Of a sandbox."""

    tier: Tier
    network: NetworkMode


BARE = Kind(Tier.NONE, "host")


class Line:
    """The pipes of a server. Blocking on purpose: nothing else happens meanwhile."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin, self._stdout = stdin, stdout
        self._ids = itertools.count()

    def ask(self, method: str, params: object) -> float:
        """Seconds until the answer."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        began_at = time.perf_counter()
        self.tell(message)
        answer = b""
        while not answer.endswith(b"\n"):
            piece = os.read(self._stdout, ANSWER_BYTES)
            if not piece:
                raise SystemExit(f"the server ended before it answered {method}")
            answer += piece
        return time.perf_counter() - began_at

    def tell(self, message: object) -> None:
        os.write(self._stdin, json.dumps(message).encode() + b"\n")


@asynccontextmanager
async def started(spawner: SpawnerClient, confined: Confined) -> AsyncIterator[Line]:
    ended = asyncio.get_running_loop().create_future()

    def end(how: End) -> None:
        if not ended.done():
            ended.set_result(how)

    (stdin, to), (out, stdout) = os.pipe(), os.pipe()
    stderr = os.open(os.devnull, os.O_WRONLY)
    try:
        process = await spawner.spawn(confined.command, (stdin, stdout, stderr, *confined.take_channels()), end)
        try:
            yield Line(to, out)
        finally:
            spawner.kill(process.id)
            await ended
    finally:
        os.close(to)
        os.close(out)
        confined.close()


async def measure(
    composer: Composer, spawner: SpawnerClient, kind: Kind, options: argparse.Namespace
) -> tuple[float, list[float]]:
    """Seconds of a start, and of each call."""
    command, *arguments = options.command
    spec = BackendSpec("bench", "server", command, tuple(arguments), sandbox=Sandbox(network=kind.network))
    with tempfile.TemporaryDirectory() as home:
        temporary = Path(home, "tmp")
        temporary.mkdir()
        confined = await composer.compose(spec, Place(home, str(temporary)), Profile(*kind))
        began_at = time.perf_counter()
        async with started(spawner, confined) as line:
            await asyncio.to_thread(line.ask, "initialize", HELLO)
            took_s = time.perf_counter() - began_at
            line.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
            return took_s, [line.ask("ping", {}) for _ in range(options.calls)]


async def run(options: argparse.Namespace) -> None:
    starts: dict[Kind, list[float]] = {}
    calls: dict[Kind, list[float]] = {}
    networks: tuple[NetworkMode, ...] = ("none", "web")
    spawner, roots = SpawnerClient(), open_roots()
    await spawner.start()
    try:
        machine = examine(roots, lambda tenant: TENANT_UID)
        kinds = [BARE, *itertools.starmap(Kind, itertools.product((each for each in machine.tiers if each), networks))]
        async with Egress(Metrics("bench")) as egress:
            composer = Composer(machine, NeedsFinder([]), egress)
            for _, kind in itertools.product(range(options.rounds), kinds):
                start_s, call_s = await measure(composer, spawner, kind, options)
                starts.setdefault(kind, []).append(start_s)
                calls.setdefault(kind, []).extend(call_s)
    finally:
        await spawner.aclose()
        roots.close()
    show(starts, calls)


def show(starts: dict[Kind, list[float]], calls: dict[Kind, list[float]]) -> None:
    print(f"{'':24} {'start ms':>9} {'ratio':>6} {'call ms':>9} {'ratio':>6}")
    start_of, call_of = ({kind: statistics.median(each) for kind, each in of.items()} for of in (starts, calls))
    for kind, start_s in start_of.items():
        name = "no sandbox" if kind == BARE else f"tier {kind.tier}, network: {kind.network}"
        print(
            f"{name:24} {start_s * 1e3:9.1f} {start_s / start_of[BARE]:6.2f} "
            f"{call_of[kind] * 1e3:9.3f} {call_of[kind] / call_of[BARE]:6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300, help="in each round")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the server")
    options = parser.parse_args()
    if not options.command:
        parser.error("which server?")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
