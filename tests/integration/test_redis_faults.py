"""Faults of Redis (security.md S1 to S4): the owner's calls go on, other nodes refuse at once and recover soon."""

import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.cluster.redis.faulty_line import Fault, FaultyLine, altering, faulty_line
from tests.integration.gateway import ROOT, Gateway, for_backends
from tests.integration.nodes import BUSY_S, Nodes, running_nodes
from tests.integration.watched import RECOVERED_WITHIN_S, REFUSED_WITHIN_S, WARM, Door, Findings, Watch, watched
from tests.integration.wire import Wire

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
SESSIONS = 6
KILLS = 100

pytestmark = pytest.mark.timeout(900)

# What becomes of the line to Redis: how late answers are, and what comes of them.
LINES: dict[str, Callable[[FaultyLine], None]] = {
    "slow by 300 ms": lambda line: setattr(line, "delay_s", 0.3),
    "slow by 200 ms": lambda line: setattr(line, "delay_s", 0.2),
    "half-cut: nothing comes back": lambda line: setattr(line, "fault", lambda piece: b""),
    "cut in the middle of 10 % of the answers": lambda line: setattr(line, "fault", cutting(0.1)),
    "corrupt in 10 % of the answers": lambda line: setattr(line, "fault", altering(0.1)),
}
OFTEN = {
    ("slow by 300 ms", True),
}  # fmt: skip


@asynccontextmanager
async def under_watch(tmp_path: Path, database: str) -> AsyncIterator[tuple[Nodes, Watch]]:
    """Two nodes, and sessions on both that could go on at the other."""
    with running_nodes(tmp_path, database, 2) as nodes:
        async with watched_sessions(nodes, tmp_path) as watch:
            yield nodes, watch


@asynccontextmanager
async def watched_sessions(nodes: Nodes, tmp_path: Path) -> AsyncIterator[Watch]:
    await nodes.all_know_each_other()
    trace = for_backends(tmp_path) / "trace"
    endpoint = nodes.all[0].endpoint([*COUNTING, str(trace)], recovery="respawn", warm=WARM)
    async with watched(nodes, endpoint, SESSIONS, tmp_path / "beats") as watch:
        yield watch
    watch.found.require_each_once(trace)


@asynccontextmanager
async def behind_a_line(tmp_path: Path, database: str, *, both: bool) -> AsyncIterator[tuple[FaultyLine, Watch]]:
    """The same, with a line to Redis that can be spoilt, of both nodes or of the first only."""
    with running_nodes(tmp_path, database, 0) as nodes:
        async with faulty_line(nodes.redis.url) as line:
            await anyio.to_thread.run_sync(partial(nodes.start, REDIS_URL=line.url))
            await anyio.to_thread.run_sync(partial(nodes.start, **({"REDIS_URL": line.url} if both else {})))
            async with watched_sessions(nodes, tmp_path) as watch:
                yield line, watch
            await anyio.to_thread.run_sync(nodes.stop)


@pytest.mark.alone
async def test_a_node_starts_without_redis_and_is_ready_once_it_is_there(
    tmp_path: Path, postgres_database: str, full: bool
) -> None:
    recovered_within_s = RECOVERED_WITHIN_S + (0 if full else BUSY_S)
    with running_nodes(tmp_path, postgres_database, 0) as nodes:
        nodes.redis.kill()
        node = await anyio.to_thread.run_sync(nodes.start)
        endpoint = node.endpoint([*COUNTING, str(for_backends(tmp_path) / "trace")])
        async with httpx2.AsyncClient(timeout=30) as http:
            assert (await http.get(node.url + "/livez")).status_code == 200
            ready = await http.get(node.url + "/readyz")
            assert (ready.status_code, list(ready.json()["parts"])) == (503, ["sessions", "database", "routes"])
            found = Findings()
            await Door(http, endpoint, nodes.urls(endpoint), found).open()
            assert (found.opening[0].status, found.opening[0].fault) == (503, "")
            assert found.opening[0].seconds < REFUSED_WITHIN_S + BUSY_S

            await anyio.to_thread.run_sync(nodes.redis.start)
            assert await becomes(http, node, set()) < recovered_within_s
            session = Wire(http, endpoint)
            await session.open()
            nodes.redis.kill()
            await becomes(http, node, {"redis"})
            words = (await http.get(node.url + "/readyz")).json()["degraded"]["redis"]
            assert words.startswith("Redis cannot be used (")
            assert "`trunkline doctor`" in words
            assert await session.call("mark", token="alone") == "alone"
            await anyio.to_thread.run_sync(nodes.redis.start)
            assert await becomes(http, node, set()) < recovered_within_s
            await session.close()


async def becomes(http: httpx2.AsyncClient, node: Gateway, without: set[str]) -> float:
    """Waits until the node is ready, though it must do without these; after how many seconds it was."""
    began_at = time.monotonic()
    with anyio.fail_after(30):
        while True:
            ready = await http.get(node.url + "/readyz")
            if ready.status_code == 200 and set(ready.json()["degraded"]) == without:
                return time.monotonic() - began_at
            await anyio.sleep(0.02)


async def test_redis_killed_and_started_again_under_load(
    tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest
) -> None:
    kills, recovered = KILLS if request.config.getoption("--long") else KILLS // 30, list[float]()
    async with under_watch(tmp_path, postgres_database) as (nodes, watch):
        began_at = time.monotonic()
        for _ in range(kills):
            nodes.redis.kill()
            await anyio.sleep(random.uniform(0.0, 3.0))
            await anyio.to_thread.run_sync(nodes.redis.start)
            recovered.append(await watch.has_recovered(time.monotonic()))
        watch.require_service(f"Redis killed {kills} times", began_at, time.monotonic(), recovered)


async def test_redis_frozen(tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest) -> None:
    seconds = 30.0 if request.config.getoption("--long") else 8.0  # longer than a lease
    async with under_watch(tmp_path, postgres_database) as (nodes, watch):
        began_at = time.monotonic()
        nodes.redis.freeze()
        await anyio.sleep(seconds)
        nodes.redis.thaw()
        recovered = await watch.has_recovered(time.monotonic())
        watch.require_service("Redis frozen", began_at, time.monotonic(), [recovered])


async def test_redis_flushed(tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest) -> None:
    flushes, recovered = 50 if request.config.getoption("--long") else 5, list[float]()
    async with under_watch(tmp_path, postgres_database) as (nodes, watch):
        began_at = time.monotonic()
        for _ in range(flushes):
            await anyio.to_thread.run_sync(nodes.redis.flush)
            recovered.append(await watch.has_recovered(time.monotonic()))
            await anyio.sleep(random.uniform(0.0, 2.0))
        watch.require_service(f"Redis flushed {flushes} times", began_at, time.monotonic(), recovered)


# Every fault on the line of both nodes, and of one; without --long a few of them.
CASES = [
    pytest.param(
        what,
        both,
        id=f"{what}, {'both nodes' if both else 'one node'}",
        marks=() if (what, both) in OFTEN else pytest.mark.long,
    )
    for what, both in itertools.product(LINES, (True, False))
]


@pytest.mark.parametrize(("what", "both"), CASES)
async def test_a_spoilt_line_to_redis(
    tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest, what: str, both: bool
) -> None:
    seconds = 30.0 if request.config.getoption("--long") else 8.0
    async with behind_a_line(tmp_path, postgres_database, both=both) as (line, watch):
        began_at = time.monotonic()
        LINES[what](line)
        await anyio.sleep(seconds)
        line.delay_s, line.fault = 0.0, lambda piece: piece
        recovered = await watch.has_recovered(time.monotonic())
        watch.require_service(f"Line to Redis {what}, {both=}", began_at, time.monotonic(), [recovered])


def cutting(share: float) -> Fault:
    """Breaks the line off in the middle of this share of the answers."""
    chance = random.Random(1)
    return lambda piece: None if chance.random() < share else piece
