"""What parked and frozen sessions cost: memory and time for each, and the wait of the call that wakes one.

    .venv/bin/python bench/parked.py [--sessions 5000] [--calls 500]
    .venv/bin/python bench/parked.py --frozen 1000 [--server ledger | time]

Opens sessions with a server that keeps no state on a node of its own, a few at once, and lets all be parked. Then calls
on sessions drawn by lot, one after the other: to processes that are started for them, and to warm ones. A machine that
is busy with something else makes the waits longer, and the memory no larger.

With `--frozen` the servers keep state, and the sessions are frozen: what their processes use before and after, and the
next call of each, one after the other. `ledger` counts its calls (a Python program of the tests, without libraries) and
must go on counting; `time` is `mcp-server-time`, a server with the SDK.
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


# --- frozen

LEDGER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/ledger.py")]
TIME = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
WINDOW_S = 20.0  # in which time of processors is counted
FREEZE_S = 3.0


def used(processes: Sequence[psutil.Process]) -> tuple[int, float, int]:
    """Memory that is theirs (PSS), seconds of processors, and what of the memory is in swap."""
    memory, seconds, swapped = 0, 0.0, 0
    for each in processes:
        found = dict(line.split(":", 1) for line in Path(f"/proc/{each.pid}/smaps_rollup").read_text().splitlines()[1:])
        memory += int(found["Pss"].split()[0]) << 10
        swapped += int(found["SwapPss"].split()[0]) << 10
        seconds += sum(each.cpu_times()[:2])
    return memory, seconds, swapped


async def show_use(name: str, processes: Sequence[psutil.Process], node: psutil.Process) -> None:
    before, node_before = used(processes)[1], sum(node.cpu_times()[:2])
    await anyio.sleep(WINDOW_S)
    memory, after, swapped = used(processes)
    of_node = (sum(node.cpu_times()[:2]) - node_before) / WINDOW_S * 1000
    each, spent = memory / len(processes) / 2**20, (after - before) / WINDOW_S * 1000
    in_swap = swapped / len(processes) / 2**20
    print(f"{name:28} {len(processes)} processes, {each:.1f} MiB of memory each, {in_swap:.1f} in swap", flush=True)
    print(f"{'':28} processors: {spent:.1f} ms a second in all; the node {of_node:.1f} ms", flush=True)


async def next_calls(sessions: Sequence[Wire], server: str, nth: int) -> tuple[list[float], int]:
    """Milliseconds of the next call of each, its nth, and how many did not answer as they should."""
    found, lost = [], 0
    for session in sessions:
        began = time.perf_counter()
        try:
            if server == "ledger":
                lost += await session.call("count") != str(nth)
            else:
                lost += "datetime" not in await session.call("get_current_time", timezone="UTC")
        except Exception as error:
            print(f"lost: {error!r}", flush=True)
            lost += 1
        found.append((time.perf_counter() - began) * 1000)
    return found, lost


async def measure_frozen(gateway: Gateway, count: int, server: str) -> None:
    command, node = LEDGER if server == "ledger" else TIME, psutil.Process(gateway.pid)
    timeouts = {"reclaim_idle_s": 1800.0, "initialize_s": 300.0}
    running = gateway.endpoint(command, timeouts=timeouts)
    freezing = gateway.endpoint(command, timeouts={**timeouts, "park_s": FREEZE_S})
    async with httpx2.AsyncClient(timeout=300) as http:
        sessions = await opened(http, running, min(count, 100))
        await anyio.sleep(WINDOW_S)
        await show_use("idle, running", gateway.backends(), node)
        for session in sessions:
            await session.close()
        await gateway.wait_for_backends(0, 60)
        began = time.monotonic()
        sessions = await opened(http, freezing, count)
        if server == "ledger":
            assert [await session.call("count") for session in sessions] == ["0"] * count
        await until(lambda: gateway.metrics()["trunkline_sessions_frozen"] == count, 600)
        print(f"{count} sessions opened and frozen in {time.monotonic() - began:.0f} s", flush=True)
        await anyio.sleep(WINDOW_S)
        await show_use("frozen", gateway.backends(), node)
        found, lost = await next_calls(sessions, server, 1)
        shown("the next call of each", found)
        samples = gateway.metrics()
        thaw_s = samples["trunkline_session_thaw_seconds_sum"] / samples["trunkline_session_thaw_seconds_count"]
        print(f"{lost} lost; until its process goes on {thaw_s * 1000:.2f} ms on average", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--sessions", type=int, default=5000)
    arguments.add_argument("--calls", type=int, default=500)
    arguments.add_argument("--frozen", type=int, metavar="SESSIONS", default=0)
    arguments.add_argument("--server", choices=["ledger", "time"], default="ledger")
    asked = arguments.parse_args()
    processes = str(max(200, asked.frozen + 50))
    with tempfile.TemporaryDirectory() as directory:
        settings = {"MAX_SESSIONS": "20000", "MAX_PROCESSES": processes, "LOG_LEVEL": "warning"}
        with running_gateway(Path(directory) / "data", **settings) as gateway:
            if asked.frozen:
                anyio.run(measure_frozen, gateway, asked.frozen, asked.server)
            else:
                anyio.run(measure, gateway, asked.sessions, asked.calls)


if __name__ == "__main__":
    main()
