"""Faults of Redis (security.md S1 to S4): the owner's calls go on, other nodes refuse at once and recover soon."""

import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.integration.gateway import ROOT
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.watched import WARM, Watch, watched

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
SESSIONS = 10
KILLS = 100

pytestmark = pytest.mark.timeout(900)

Fault = Callable[[Nodes], Awaitable[None]]


@asynccontextmanager
async def under_watch(tmp_path: Path, database: str) -> AsyncIterator[tuple[Nodes, Watch]]:
    """Two nodes, and sessions on both that could go on at the other."""
    trace = tmp_path / "trace"
    with running_nodes(tmp_path, database, 2) as nodes:
        await nodes.all_know_each_other()
        endpoint = nodes.all[0].endpoint([*COUNTING, str(trace)], recovery="respawn", warm=WARM)
        async with watched(nodes, endpoint, SESSIONS, tmp_path / "beats") as watch:
            yield nodes, watch
        watch.found.require_each_once(trace)


async def test_redis_killed_and_started_again_under_load(
    tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest
) -> None:
    kills, recovered = KILLS if request.config.getoption("--long") else KILLS // 10, list[float]()
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
