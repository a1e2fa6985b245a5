"""One node of several: its registry, ownership and journals over stores in memory; its processes are lists of lines."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import pytest

from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.cluster.routing.memory_store import MemoryStore
from app.cluster.session_takeover import SessionTakeover
from app.domain import Principal
from app.sessions.directory import BackendDirectory
from app.sessions.loop_pause import StandstillDetector, StandstillGuard
from app.sessions.open_sessions import OpenSessions
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.routes import Quota, Route
from app.sessions.session import Session
from app.sessions.session_ids import session_key
from app.sessions.sweeping import sweep_for_ever
from app.telemetry.metrics import Metrics
from tests.cluster.durable import HELLO, SEALER, FakeConnections, FlakyStore, message, request
from tests.cluster.routing.rig import record
from tests.sessions.fakes import FakeConnection, FakeStore, HeldStore, all_ours
from tests.sessions.rig import SPEC

HERE, THERE = "a" * 16, "b" * 16


@dataclass
class Cluster:
    """The node HERE, and the stores that THERE has as well."""

    principal: Principal
    metrics: Metrics
    store: HeldStore
    journals: FlakyStore
    connections: FakeConnections
    ownership: Ownership
    registry: SessionRegistry
    durability: Durability
    take_over: SessionTakeover

    @property
    def process(self) -> FakeConnection:
        return self.connections.leases[-1].connection

    async def open(self, backend: str, transport: str = "streamable_http") -> Session:
        """A session that has shaken hands."""
        session = await self.registry.open(self.principal, "acme", backend, transport)
        await self.registry.connect(session)
        session.request(request("initialize", 0), session.reply(1, may_stream=True))
        self.process.answer(HELLO)
        session.notify(message(method="notifications/initialized"))
        return session

    async def route_of(self, session: Session) -> Any:
        return (await self.store.find(session_key(session.id))).route

    async def elsewhere(
        self, session_id: str = "elsewhere", backend: str = "stateless", transport: str = "streamable_http"
    ) -> Route:
        """The route of a session that THERE has, which lives."""
        await self.store.beat(record(THERE))
        key, url = session_key(session_id), record(THERE).url
        route = Route(key, THERE, url, 1, "acme", backend, self.principal.identity, transport)
        return await MemoryStore.claim(self.store, route, Quota())

    async def elsewhere_then_dead(
        self, session_id: str, backend: str = "stateless", transport: str = "streamable_http"
    ) -> Route:
        """The same, and THERE has died."""
        route = await self.elsewhere(session_id, backend, transport)
        await self.store.leave(THERE)
        return route


@asynccontextmanager
async def running_cluster(
    directory: BackendDirectory, principal: Principal, *, is_alone: bool = False
) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        metrics, store, journals, connections = Metrics("test"), HeldStore(), FlakyStore(), FakeConnections(tasks)
        await store.beat(record(HERE))
        sessions = OpenSessions()
        ownership = await stack.enter_async_context(
            Ownership(store, HERE, record(HERE).url, on_session_lost=sessions.lost)
        )
        source: Any = connections
        durability = Durability(JournalWriter(journals, SEALER), connections.restore)
        kept = None if is_alone else durability
        registry = await stack.enter_async_context(
            SessionRegistry(
                directory,
                source,
                metrics,
                ownership,
                max_sessions=50,
                sessions=sessions,
                durability=kept,
                standstill=StandstillDetector(lambda: 1000.0),  # a busy machine is none
            )
        )
        tasks.start_soon(
            sweep_for_ever,
            registry.sweeping,
            StandstillGuard(registry.standstill, ownership, all_ours, registry._sessions.deliver_held),
        )
        take_over = SessionTakeover(ownership, directory, partial(durability.restore, registry.restored), metrics)
        yield Cluster(principal, metrics, store, journals, connections, ownership, registry, durability, take_over)


@pytest.fixture
async def cluster(directory: BackendDirectory, store: FakeStore, principal: Principal) -> AsyncIterator[Cluster]:
    """One of several nodes; it has a stateful backend, `echo`, and one without state, `stateless`."""
    store.specs["acme", "stateless"] = replace(SPEC, name="stateless", recovery="respawn")
    async with running_cluster(directory, principal) as cluster:
        yield cluster
