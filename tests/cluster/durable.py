"""Nodes with durable sessions: real sessions, journals and connections over one store; their processes are lists of
lines."""

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from app.auth.sealing import Sealer
from app.backends.connections.respawning import RespawningConnection
from app.backends.connections.source import ConnectionLease
from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.domain import BackendSpec, Limits, Principal
from app.errors import GatewayError, RoutesUnavailable
from app.limits.tenant_limits import TenantGates
from app.protocol.event_ids import EventId, parse_event_id
from app.protocol.handshake_record import HandshakeRecord
from app.protocol.jsonrpc import parse_client
from app.sessions.loop_pause import StandstillDetector
from app.sessions.parking import Parking
from app.sessions.routes import Route
from app.sessions.session import Session, Surroundings
from app.sessions.session_ids import session_key
from app.sessions.streams.journal_store import Journaled, JournalStore, JournalWrite, Outcome
from app.sessions.streams.resumption import Reader
from app.sessions.streams.streams import Reply
from app.telemetry.metrics import Metrics
from tests.cluster.routing.memory_journal_store import MemoryJournalStore
from tests.sessions.fakes import FakeConnection, FakeLease

SPEC = BackendSpec("acme", "echo", "echo-server", recovery="respawn")
ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"logging": {}}}
SEALER = Sealer(b"a secret key of the whole cluster")


class FlakyStore:
    """A store that can be away; counts what it is asked."""

    def __init__(self) -> None:
        self.inner = MemoryJournalStore()
        self.is_away = False
        self.writes: list[JournalWrite] = []
        self.deleted: list[tuple[str, int]] = []

    def _check(self) -> None:
        if self.is_away:
            raise RoutesUnavailable

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        self._check()
        self.writes += writes
        return await self.inner.write(writes)

    async def take(self, key: str, token: int) -> Journaled | None:
        self._check()
        return await self.inner.take(key, token)

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        self._check()
        return await self.inner.touch(journals)

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        self._check()
        self.deleted += journals
        await self.inner.delete(journals)


class FakeConnections:
    """Hands out respawning connections to processes that a test writes for."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.leases: list[FakeLease] = []

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> ConnectionLease:
        return RespawningConnection(await self._again(), self._again, self._tasks, 5.0)

    def restore(
        self, spec: BackendSpec, limits: Limits, principal: Principal, record: HandshakeRecord, is_parked: bool
    ) -> ConnectionLease:
        return RespawningConnection.restored(record, self._again, self._tasks, 5.0, is_parked=is_parked)

    async def _again(self) -> Any:
        self.leases.append(FakeLease(FakeConnection()))
        return self.leases[-1]


class Node:
    """What of a node has to do with durable sessions."""

    def __init__(self, store: JournalStore, tasks: anyio.abc.TaskGroup) -> None:
        self.metrics = Metrics("test")
        self.connections = FakeConnections(tasks)
        self.writer = JournalWriter(store, SEALER)
        self.parking = Parking(StandstillDetector(lambda: 0.0), self.metrics)
        self.durability = Durability(self.writer, self.connections.restore, adopt=self.parking.adopt)
        self.sessions: dict[str, Session] = {}
        self.closed: list[str] = []
        self.refusal: GatewayError | None = None

    @property
    def process(self) -> FakeConnection:
        return self.connections.leases[-1].connection

    def restored(
        self, session_id: str, principal: Principal, spec: BackendSpec, limits: Limits, transport: str
    ) -> Session:
        if self.refusal is not None:
            raise self.refusal
        gate = TenantGates(self.metrics).of("acme", Limits(sessions=None, requests_per_second=None))
        around = Surroundings(transport, gate, self.metrics, self._closed, StandstillDetector(lambda: 0.0), 15.0)
        session = self.sessions[session_id] = Session(session_id, principal, spec, around)
        return session

    def _closed(self, session: Session, reason: str) -> None:
        self.closed.append(reason)
        del self.sessions[session.id]

    async def open(self, spec: BackendSpec = SPEC, transport: str = "streamable_http") -> Session:
        """A session that has shaken hands."""
        session = self.restored(secrets.token_urlsafe(24), ALICE, spec, Limits(), transport)
        self.durability.start(session, session_key(session.id), 1)
        await session.connect(self.connections, Limits())
        session.request(request("initialize", 0), session.reply(1, may_stream=True))
        self.process.answer(HELLO)
        session.notify(message(method="notifications/initialized"))
        return session

    async def restore(self, session_id: str, token: int, spec: BackendSpec = SPEC) -> Session | None:
        """Takes the session over, under this token."""
        return await self.durability.restore(self.restored, session_id, route(session_id, token), spec, Limits())

    async def take_over(self, session_id: str, token: int = 2) -> Session:
        """The same, and its process has been greeted."""
        before = len(self.connections.leases)
        session = await self.restore(session_id, token)
        assert session is not None
        with anyio.fail_after(20):
            while len(self.connections.leases) == before or not self.process.sent:
                await checkpoint()
        self.process.answer(HELLO, to=0)
        return session

    async def flush(self, session: Session) -> None:
        assert session.journal is not None
        await self.writer.flush(session.journal)

    def abandon(self) -> None:
        """The node is dead: nothing of it is heard any more, and nothing was closed."""
        for lease in self.connections.leases:
            lease.connection.listener = None


@asynccontextmanager
async def nodes(store: JournalStore, count: int = 2) -> AsyncIterator[list[Node]]:
    """So many of them; `writer.run` is the test's to call."""
    async with anyio.create_task_group() as tasks:
        yield [Node(store, tasks) for _ in range(count)]
        tasks.cancel_scope.cancel()


def route(session_id: str, token: int) -> Route:
    return Route(
        key=session_key(session_id), node="b", url="http://b", token=token, tenant="acme", backend="echo",
        identity=ALICE.identity, transport="streamable_http",
    )  # fmt: skip


def message(**members: Any) -> Any:
    return parse_client(json.dumps({"jsonrpc": "2.0", **members}).encode())


def request(method: str, number: int, **params: Any) -> Any:
    return message(id=number, method=method, params=params)


def place_of(event_id: bytes) -> EventId:
    place = parse_event_id(event_id)
    assert place is not None
    return place


def stream_call(session: Session, number: int, method: str = "tools/call") -> Reader:
    """A call that has become a stream; its progress token is its id."""
    reply: Reply = session.reply(1, may_stream=True)
    session.request(request(method, number, _meta={"progressToken": number}), reply)
    return session.streams.read(reply.become_stream())


async def take(reader: Reader, count: int) -> list[Any]:
    """So many messages; an error of ours as its reason."""
    taken = []
    with anyio.fail_after(20):
        for _ in range(count):
            item = await reader.next()
            taken.append(json.loads(item) if isinstance(item, bytes) else item and item.error.reason)
    return taken
