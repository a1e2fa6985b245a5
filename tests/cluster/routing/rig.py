"""Three nodes and what they share, over either store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth.sealing import Sealer
from app.cluster.redis._waiting_commands import TURN_S, Deadlines
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.memory_store import MemoryStore
from app.cluster.routing.redis_store import RedisStore
from app.errors import RoutesUnavailable
from app.sessions.routes import NodeRecord, NodeStore, Route, RouteStore
from tests.redis_servers import client_of

NODES = ("node-a", "node-b", "node-c")
ALICE, BOB = ("acme", "key", "alice"), ("acme", "key", "bob")
SECRET_KEY = b"k" * 32
UP_S = 60.0
PATIENT = Deadlines(command_s=60, silence_s=60)  # Redis is well, but may have to wait for a processor


class Store(RouteStore, NodeStore, Protocol):
    """What a node has."""


@dataclass
class Rig:
    """The nodes' stores by the nodes' ids. `now` is the clock of the one in memory."""

    stores: dict[str, Store] = field(default_factory=dict)
    url: str | None = None
    now: float = 1000.0

    def __getitem__(self, node: str) -> Store:
        return self.stores[node]

    async def all_beat(self) -> None:
        for node in self.stores:
            await self[node].beat(record(node))

    async def lapse(self, node: str) -> None:
        """What five seconds without a beat do; the others go on."""
        if self.url is None:
            self.now += 5.0
            for other in set(self.stores) - {node}:
                await self[other].beat(record(other))
        else:
            with client_of(self.url) as client:
                client.delete(f"trunkline:node:{node}")


def record(node: str, sessions: int = 0) -> NodeRecord:
    return NodeRecord(node, f"http://{node}:8080", "1.2.3", datetime(2026, 1, 1, tzinfo=UTC), sessions)


def route(key: str, node: str = NODES[0], **changes: object) -> Route:
    fields: dict = {
        "node": node,
        "url": f"http://{node}:8080",
        "token": 1,
        "tenant": "acme",
        "backend": "time",
        "identity": ALICE,
        "transport": "streamable_http",
    }
    return Route(key, **fields | changes)


def errors() -> Counter:
    return Counter("errors_total", "", ["reason"], registry=CollectorRegistry())


def counted(counter: Counter) -> dict[str, int]:
    samples = next(iter(counter.collect())).samples
    return {sample.labels["reason"]: int(sample.value) for sample in samples if sample.name.endswith("_total")}


@asynccontextmanager
async def connected(
    url: str, counter: Counter | None = None, deadlines: Deadlines = PATIENT
) -> AsyncIterator[RedisConnection]:
    """A connection, once it is there."""
    async with RedisConnection(url, counter or errors(), deadlines) as redis:
        with anyio.fail_after(UP_S):
            while not redis.is_up:
                await anyio.sleep(0.005)
        yield redis


@asynccontextmanager
async def open_store(
    url: str,
    counter: Counter | None = None,
    key: bytes = SECRET_KEY,
    *,
    patience_s: float | None = None,
    deadlines: Deadlines = PATIENT,
) -> AsyncIterator[RedisStore]:
    counter = counter or errors()
    async with connected(url, counter, deadlines) as redis:
        yield RedisStore(redis, Sealer(key), counter, patience_s=patience_s)


@asynccontextmanager
async def rig_on_redis(url: str) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig({node: await stack.enter_async_context(open_store(url)) for node in NODES}, url)


@asynccontextmanager
async def rig_in_memory() -> AsyncIterator[Rig]:
    rig = Rig()
    store = MemoryStore(lambda: rig.now)
    rig.stores = dict.fromkeys(NODES, store)
    yield rig


async def refused_after(command: Awaitable[object]) -> float:
    """The seconds it took, of which only those count in which the event loop could turn: deadlines count no others."""
    asked, turns = asyncio.ensure_future(command), 0
    while not asked.done():
        turns += 1
        await asyncio.wait([asked], timeout=TURN_S)
    with pytest.raises(RoutesUnavailable):
        await asked
    return (turns - 1) * TURN_S
