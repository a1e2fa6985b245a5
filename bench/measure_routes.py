"""Measures what each step of keeping routes costs a real Redis and a node, and prints it as JSON.

    .venv/bin/python bench/measure_routes.py > costs.json        # about 20 s; starts a Redis of its own on loopback
    .venv/bin/python bench/simulate_cluster.py --costs costs.json

`redis_us` is CPU time of the Redis process per call, `node_us` CPU time of this process (redis-py's parser, sealing,
the event loop), both per call of the method that is named, or per route where a lot is one call.
"""

import argparse
import asyncio
import json
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests.redis_servers, wherever this is started

from app.auth.sealing import Sealer
from app.cluster import cluster_use
from app.cluster.cluster_use import ClusterUse
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.heartbeat import LOT
from app.cluster.routing.journal_stores import RedisJournalStore
from app.cluster.routing.records import principal_count_name
from app.cluster.routing.redis_store import RedisStore
from app.limits.tenant_budgets import TenantBudgets
from app.limits.tenant_limits import TenantGates
from app.sessions.routes import NodeRecord, Quota, Route
from app.sessions.session_ids import session_key
from app.sessions.streams.journal_store import JournalWrite
from app.telemetry.metrics import Metrics
from tests.redis_servers import RedisServer

ROUTES = 5_000
AT_ONCE = 100  # calls under way: as when many clients come at the same time
EVENT_BYTES = 500
QUOTA = Quota(sessions=10**9, sessions_per_principal=10**9)
STARTS = 5
BACKENDS = {
    "start_of_a_small_backend": [sys.executable, str(Path(__file__).with_name("echo_backend.py"))],
    "start_of_a_backend_on_the_sdk": [str(Path(sys.executable).with_name("mcp-server-time"))],
}
INITIALIZE = (
    json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "bench", "version": "1"},
            },
        }
    ).encode()
    + b"\n"
)
Figures = dict[str, Any]


class Meter:
    """CPU of Redis and of this process, from one look to the next."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.take()

    def take(self) -> tuple[float, float]:
        info = self._redis.info("cpu")
        now = info["used_cpu_user"] + info["used_cpu_sys"], time.process_time()
        before, self._last = getattr(self, "_last", now), now
        return now[0] - before[0], now[1] - before[1]

    async def measure(self, work: Awaitable[object], units: int) -> Figures:
        self.take()
        started = time.perf_counter()
        await work
        seconds = time.perf_counter() - started
        redis_s, node_s = self.take()
        return {
            "redis_us": round(redis_s / units * 1e6, 2),
            "node_us": round(node_s / units * 1e6, 2),
            "wall_us": round(seconds / units * 1e6, 2),
        }


async def many(call: Callable[[int], Awaitable[object]], count: int) -> None:
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(call(n) for n in range(start, min(count, start + AT_ONCE))))


async def repeat(call: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await call()


def new_route(node: str, tenant: int) -> Route:
    identity = (f"tenant-{tenant}", "key", secrets.token_hex(4))
    key = session_key(secrets.token_urlsafe(24))
    return Route(key, node, "http://10.0.0.1:8080", 1, f"tenant-{tenant}", "time", identity, "streamable")


def node_record(node: str) -> NodeRecord:
    return NodeRecord(node, "http://10.0.0.1:8080", "1.2.3", datetime.now(UTC), 1000, 1000)


@dataclass
class Processes:
    """For ProcessPool."""

    counts: dict[str, int]

    def used(self) -> dict[str, int]:
        return self.counts

    def note_remote_use(self, used: Mapping[str, int]) -> None:
        """Nobody waits."""


class Bench:
    """One Redis, and the stores of nodes on it."""

    def __init__(self, redis: Any, connection: RedisConnection, errors: Counter) -> None:
        self.redis, self.meter, self.sealer = redis, Meter(redis), Sealer(secrets.token_bytes(32))
        self.connection, self.errors, self.gates = connection, errors, TenantGates(Metrics("bench"))
        self.node = secrets.token_hex(8)
        self.store = self.new_store()
        self.figures: Figures = {}

    def new_store(self) -> RedisStore:
        return RedisStore(self.connection, self.sealer, self.errors)

    async def put(self, name: str, work: Awaitable[object], units: int) -> None:
        self.figures[name] = await self.meter.measure(work, units)

    async def beats(self) -> None:
        """With more and more other nodes: each node reads them all."""
        beat, others = node_record(self.node), 1
        await self.store.beat(beat)
        for nodes in (2, 10, 50, 100, 300):
            while others < nodes:
                await self.new_store().beat(node_record(secrets.token_hex(8)))
                others += 1
            await self.put(f"beat_{nodes}", repeat(lambda: self.store.beat(beat), 100), 100)
            await self.put(f"nodes_{nodes}", repeat(self.look, 100), 100)
        self.figures["bytes_of_a_node_record"] = self.redis.strlen(f"trunkline:node:{self.node}") + len(self.node)
        for key in self.redis.keys("trunkline:node:*"):
            self.redis.delete(key)
        await self.store.beat(beat)

    async def look(self) -> None:
        """At all nodes, though nothing has changed."""
        self.store._list.doubt()
        await self.store.nodes()

    async def use(self) -> None:
        """What each node says and hears of the others' processes and calls, each with ten tenants."""
        busy, idle = Processes({f"tenant-{n}": 3 for n in range(10)}), Processes({})
        others: list[str] = []
        listener = self.new_use(idle, self.node, others)
        for nodes in (2, 300):
            while len(others) < nodes:
                others.append(secrets.token_hex(8))
                await self.new_use(busy, others[-1], ()).round()
            await self.put(f"use_{nodes}", repeat(listener.round, 100), 100)
        name = cluster_use.KEY + others[0]
        self.figures["bytes_of_use"] = self.redis.strlen(name) + len(name)

    def new_use(self, processes: "Processes", node: str, others: Sequence[str]) -> ClusterUse:
        return ClusterUse(
            self.gates, TenantBudgets(Metrics("bench")), processes, self.connection, self.sealer, node, lambda: others
        )

    async def routes(self, count: int) -> None:
        routes = [new_route(self.node, n % 50) for n in range(count)]
        before = self.redis.info("memory")["used_memory"]
        await self.put("claim", many(lambda n: self.store.claim(routes[n], QUOTA), count), count)
        self.figures["redis_bytes_per_session"] = round((self.redis.info("memory")["used_memory"] - before) / count)
        self.figures["redis_bytes_of_a_route"] = self.redis.memory_usage(f"trunkline:route:{routes[0].key}")
        await self.put("find", many(lambda n: self.store.find(routes[n].key), count), count)
        await self.put("refresh_per_route", self.refresh(routes), count)
        await self.whole_beat(routes)
        self.redis.delete(*(f"trunkline:route:{route.key}" for route in routes))
        await self.put("rewrite_per_route", self.refresh(routes), count)
        await self.take_over(routes)
        await self.one_key_each(count)

    async def refresh(self, routes: Sequence[Route]) -> None:
        for start in range(0, len(routes), LOT):
            await self.store.refresh(routes[start : start + LOT])

    async def take_over(self, routes: Sequence[Route]) -> None:
        heir, store = secrets.token_hex(8), self.new_store()
        await store.beat(node_record(heir))
        self.redis.delete(f"trunkline:node:{self.node}")
        url = "http://10.0.0.2:8080"
        await self.put("take_over", many(lambda n: store.take_over(routes[n], heir, url), len(routes)), len(routes))
        taken = [route.owned_by(heir, url) for route in routes]
        await self.put("release", many(lambda n: store.release(taken[n]), len(taken)), len(taken))

    async def one_key_each(self, count: int) -> None:
        """What a lease for each session would be instead: its own key, renewed each second, many in one write."""
        keys = [f"lease:{n}" for n in range(count)]
        commands = [("SET", key, self.node, "PX", 5000) for key in keys]
        await self.connection.pipeline(commands)

        async def renew() -> None:
            for start in range(0, count, LOT):
                await self.connection.pipeline([("PEXPIRE", key, 5000) for key in keys[start : start + LOT]])

        await self.put("lease_per_session", renew(), count)
        self.redis.delete(*keys)

    async def journals(self) -> None:
        store, keys = RedisJournalStore(self.connection), [session_key(secrets.token_hex(8)) for _ in range(1000)]
        head, event = secrets.token_bytes(900), secrets.token_bytes(EVENT_BYTES)

        def write(number: int) -> Callable[[int], Awaitable[object]]:
            length = -1 if number == 1 else number - 1
            return lambda n: store.write([JournalWrite(keys[n], 1, number, head, [event], length, 0)])

        before = self.redis.info("memory")["used_memory"]
        await self.put("journal_first_write", many(write(1), len(keys)), len(keys))
        self.figures["redis_bytes_of_a_journal_with_1_event"] = round(
            (self.redis.info("memory")["used_memory"] - before) / len(keys)
        )
        for number in range(2, 11):
            await self.put("journal_write", many(write(number), len(keys)), len(keys))
        self.figures["redis_bytes_of_a_journal_with_10_events"] = round(
            (self.redis.info("memory")["used_memory"] - before) / len(keys)
        )
        await self.put("journal_touch", store.touch([(key, 1) for key in keys[:250]]), 250)
        await self.put("journal_take", many(lambda n: store.take(keys[n], 2), len(keys)), len(keys))

    async def whole_beat(self, routes: Sequence[Route]) -> None:
        """A beat that says a lot of routes and a lot of counts, and its bytes both ways."""
        counts = [principal_count_name(route.tenant, route.identity) for route in routes[:LOT]]

        async def beat() -> None:
            self.store._counts.doubt(tuple(counts))
            await self.store.beat(node_record(self.node))
            await self.store.nodes()
            await self.store.refresh(routes[:LOT])

        await beat()  # says what was in doubt
        before, _ = self.redis.info("stats"), self.meter.take()
        await self.put("whole_beat", repeat(beat, 10), 10)
        after = self.redis.info("stats")
        names = "total_net_input_bytes", "total_net_output_bytes"
        self.figures["bytes_of_a_whole_beat"] = round(sum(after[name] - before[name] for name in names) / 10)

    async def starts(self) -> None:
        """CPU of a process of a backend from its start to its answer to `initialize`, and its memory then."""
        for name, command in BACKENDS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            sizes = [start_once(command) for _ in range(STARTS)]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.figures[name] = {"cpu_s": round(spent / STARTS, 4), "resident_mib": round(sum(sizes) / STARTS / 2**20)}


def start_once(command: Sequence[str]) -> int:
    """Starts it, waits for its answer, ends it; returns its resident bytes."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b'"result"' in process.stdout.readline()
        resident = psutil.Process(process.pid).memory_info().rss
        process.stdin.close()
    return resident


async def measured(url: str, redis: Any, asked: argparse.Namespace) -> Figures:
    errors = Counter("errors", "", ["reason"], registry=CollectorRegistry())
    async with RedisConnection(url, errors) as connection:
        while not connection.is_up:
            await asyncio.sleep(0.01)
        bench = Bench(redis, connection, errors)
        await bench.beats()
        cluster_use.READ_A_ROUND = cluster_use.LAPSES_S = 3600  # all in each round; and none lapses meanwhile
        await bench.use()
        await bench.routes(asked.routes)
        await bench.journals()
        if not asked.no_starts:
            await bench.starts()
    (counted,) = errors.collect()
    assert not counted.samples, counted.samples
    return bench.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", type=int, default=ROUTES)
    parser.add_argument("--no-starts", action="store_true", help="leave out starting processes of backends")
    asked = parser.parse_args()
    with RedisServer() as server, server.client() as redis:
        print(json.dumps(asyncio.run(measured(server.url, redis, asked)), indent=1))


if __name__ == "__main__":
    main()
