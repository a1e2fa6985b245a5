"""What parked sessions cost: memory for each, and the wait of the call that wakes one.

    .venv/bin/python bench/parked.py [--sessions 5000] [--calls 500]

Opens sessions with a server that keeps no state on a node of its own, a few at once, and lets all be parked. Then calls
on sessions drawn by lot, one after the other: to processes that are started for them, and to warm ones. A machine that
is busy with something else makes the waits longer, and the memory no larger.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.wire import Wire

AT_ONCE = 8  # sessions that are being opened
PARK_S = 1.0


async def opened(http: httpx2.AsyncClient, endpoint: Endpoint, count: int) -> list[Wire]:
    """So many sessions, some at once."""
    sessions = [Wire(http, endpoint) for _ in range(count)]
    places = anyio.Semaphore(AT_ONCE)

    async def one(session: Wire) -> None:
        async with places:
            await session.open()

    async with anyio.create_task_group() as tasks:
        for session in sessions:
            tasks.start_soon(one, session)
    return sessions


async def all_parked(gateway: Gateway, count: int) -> None:
    """Waits until so many are, and their processes are gone."""
    await until(lambda: gateway.metrics()["trunkline_sessions_parked"] == count, 600)
    await until(lambda: gateway.metrics().get('trunkline_processes{state="stopping"}', 0) == 0, 600)


def resident(gateway: Gateway) -> int:
    return int(psutil.Process(gateway.pid).memory_info().rss)


async def waits(sessions: Sequence[Wire], calls: int) -> list[float]:
    """Milliseconds of a call to a session that is parked, one after the other."""
    found = []
    for session in random.sample(list(sessions), calls):
        began = time.perf_counter()
        await session.call("echo", text="awake")
        found.append((time.perf_counter() - began) * 1000)
    return found


def shown(name: str, found: list[float]) -> None:
    cuts = statistics.quantiles(found, n=100)
    print(f"{name:28} p50 {statistics.median(found):6.1f} ms  p99 {cuts[98]:6.1f} ms  ({len(found)} calls)", flush=True)


async def measure(gateway: Gateway, count: int, calls: int) -> None:
    endpoint = gateway.endpoint(ECHO, recovery="respawn", timeouts={"park_s": PARK_S, "reclaim_idle_s": 0.5})
    async with httpx2.AsyncClient(timeout=120) as http:
        await opened(http, endpoint, 50)  # what the first sessions load stays
        await all_parked(gateway, 50)
        before = resident(gateway)
        began = time.monotonic()
        sessions = await opened(http, endpoint, count)
        await all_parked(gateway, count + 50)
        each = (resident(gateway) - before) / count / 1024
        took, left = time.monotonic() - began, len(gateway.backends())
        print(f"{count} sessions opened and parked in {took:.0f} s, {each:.1f} KiB each; {left} processes", flush=True)
        shown("a call that wakes, cold", await waits(sessions, calls))
        await all_parked(gateway, count + 50)
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}", {"warm": 4})
        await until(lambda: gateway.metrics().get('trunkline_processes{state="warm"}', 0) == 4, 60)
        found = []
        for session in random.sample(sessions, calls // 5):
            found += await waits([session], 1)
            await anyio.sleep(0.5)  # the next one is warm by then
        shown("a call that wakes, warm", found)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--sessions", type=int, default=5000)
    arguments.add_argument("--calls", type=int, default=500)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"MAX_SESSIONS": "20000", "MAX_PROCESSES": "200", "LOG_LEVEL": "warning"}
        with running_gateway(Path(directory) / "data", **settings) as gateway:
            anyio.run(measure, gateway, asked.sessions, asked.calls)


if __name__ == "__main__":
    main()
