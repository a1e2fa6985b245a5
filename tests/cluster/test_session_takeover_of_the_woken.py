"""A node that wakes up while another has taken its session over: over a real Redis, through a line that has died
meanwhile. Its processes are lists of lines."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import pytest

from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.heartbeat import Heartbeat
from app.cluster.routing.journal_stores import RedisJournalStore
from app.cluster.routing.redis_store import RedisStore
from app.cluster.session_takeover import SessionTakeover
from app.domain import Principal
from app.errors import RoutesUnavailable
from app.sessions.directory import BackendDirectory
from app.sessions.loop_pause import StandstillGuard
from app.sessions.open_sessions import OpenSessions
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.sessions.sessionless.pooled_sessions import Caller
from app.sessions.sweeping import sweep_for_ever
from app.telemetry.metrics import Metrics
from tests.cluster.durable import HELLO, SEALER, FakeConnections, message, request, take
from tests.cluster.redis.faulty_line import FaultyLine, faulty_line
from tests.cluster.routing.rig import errors, record
from tests.redis_servers import client_of
from tests.sessions.fakes import FakeConnection, FakeStore
from tests.sessions.test_loop_pause import stand_still

A, B = "a" * 16, "b" * 16


@dataclass
class Node:
    connections: FakeConnections
    ownership: Ownership
    registry: SessionRegistry
    guard: StandstillGuard
    writer: JournalWriter
    heart: Heartbeat
    take_over: SessionTakeover
    principal: Principal

    @property
    def process(self) -> FakeConnection:
        return self.connections.leases[-1].connection

    async def open(self) -> Session:
        session = await self.registry.open(self.principal, "acme", "stateless", "streamable_http")
        await self.registry.connect(session)
        session.request(request("initialize", 0), session.reply(1, may_stream=True))
        self.process.answer(HELLO)
        session.notify(message(method="notifications/initialized"))
        return session

    async def take(self, session_id: str) -> Session | None:
        """Takes the session over, whoever has it."""
        found = await self.ownership._store.find(session_key(session_id))
        assert found.route is not None
        return await self.take_over(session_id, found.route, Caller(self.principal, "acme", "stateless"), lambda: None)


@asynccontextmanager
async def running_node(node: str, url: str, directory: BackendDirectory, principal: Principal) -> AsyncIterator[Node]:
    """As `open_gateway` makes it."""
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        redis, for_journals = [await stack.enter_async_context(RedisConnection(url, errors())) for _ in range(2)]
        store = RedisStore(redis, SEALER, errors())
        sessions = OpenSessions()
        ownership = await stack.enter_async_context(
            Ownership(store, node, record(node).url, on_session_lost=sessions.lost)
        )
        connections, metrics = FakeConnections(tasks), Metrics("test")
        source: Any = connections
        writer = JournalWriter(RedisJournalStore(for_journals), SEALER, on_fenced=ownership.doubt)
        durability = Durability(writer, connections.restore)
        registry = await stack.enter_async_context(
            SessionRegistry(
                directory, source, metrics, ownership, max_sessions=50, sessions=sessions, durability=durability
            )
        )
        heart = Heartbeat(store, lambda: record(node), lambda: list(ownership), ownership.lost, registry.standstill.now)
        guard = StandstillGuard(registry.standstill, ownership, heart.prove_anew, registry._sessions.deliver_held)
        tasks.start_soon(sweep_for_ever, registry.sweeping, guard)
        tasks.start_soon(writer.run)
        take_over = SessionTakeover(ownership, directory, partial(durability.restore, registry.restored), metrics)
        await heart.beat()
        yield Node(connections, ownership, registry, guard, writer, heart, take_over, principal)


@pytest.fixture
async def line(empty_redis: str) -> AsyncIterator[FaultyLine]:
    async with faulty_line(empty_redis) as line:
        yield line


@pytest.fixture
async def pair(
    empty_redis: str, line: FaultyLine, cluster: Any, directory: BackendDirectory, principal: Principal
) -> AsyncIterator[tuple[Node, Node]]:
    """The first reaches Redis over the line. (`cluster` has registered the backend.)"""
    async with (
        running_node(A, line.url, directory, principal) as first,
        running_node(B, empty_redis, directory, principal) as second,
    ):
        yield first, second


def lapse(url: str, node: str) -> None:
    """What five seconds without a beat do."""
    with client_of(url) as client:
        client.delete(f"trunkline:node:{node}")


def note(text: str) -> dict[str, Any]:
    return {"method": "notifications/note", "params": {"text": text}}


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


async def test_it_serves_nothing_over_a_line_that_died_and_nothing_is_lost(
    pair: tuple[Node, Node], line: FaultyLine, empty_redis: str
) -> None:
    first, second = pair
    old = await first.open()
    listener = old.streams.open_listener()
    first.process.say(**note("acknowledged"))
    assert old.journal is not None
    await first.writer.flush(old.journal)
    line.die()
    lapse(empty_redis, A)
    stand_still(first.registry)
    session = await second.take(old.id)
    assert session is not None
    first.process.say(**note("from the pause"))
    await first.guard.prove()
    assert old.state is SessionState.CLOSED
    assert not first.registry.standstill.is_detected()
    heard = []
    while (item := await listener.next()) is not None:
        heard.append(json.loads(item)["params"]["text"])  # type: ignore[arg-type]
    assert "from the pause" not in heard
    (said,) = await take(session.streams.read(session.streams.listen), 1)
    assert said["params"]["text"] == "acknowledged"
    assert session.state is SessionState.OPEN
    await until(lambda: not first.writer._deletions)
    await second.heart.beat()
    assert second.ownership.owns(session_key(old.id))


async def test_while_redis_is_frozen_it_does_not_go_on_beside_its_successor(
    pair: tuple[Node, Node], line: FaultyLine, empty_redis: str
) -> None:
    """It slept through its lease, and cannot be told that somebody else has the session."""
    first, second = pair
    old = await first.open()
    reply = old.reply(2, may_stream=False)
    old.request(request("tools/call", 2), reply)
    assert old.journal is not None
    await first.writer.flush(old.journal)
    lapse(empty_redis, A)
    first.heart.last_ok -= 50.0
    stand_still(first.registry)
    session = await second.take(old.id)
    assert session is not None
    line.may_answer.clear()
    first.process.say(**note("from the pause"))
    first.process.answer({"content": []})
    await first.guard.prove()
    assert first.registry.standstill.is_detected()
    assert (old.state, reply.outcomes) == (SessionState.OPEN, [])
    with pytest.raises(RoutesUnavailable):
        old.request(request("ping", 3), old.reply(3, may_stream=False))
    line.may_answer.set()
    with anyio.fail_after(30):
        while first.registry.standstill.is_detected():
            await first.guard.prove()
    assert old.state is SessionState.CLOSED
    (outcome,) = reply.outcomes
    assert outcome.error.reason == "node_lost"  # type: ignore[union-attr]
    assert session.state is SessionState.OPEN


async def test_nobody_takes_what_it_has_proved(pair: tuple[Node, Node], empty_redis: str) -> None:
    """Its lease was over, and is renewed first."""
    first, second = pair
    old = await first.open()
    lapse(empty_redis, A)
    stand_still(first.registry)
    await first.guard.prove()
    assert await second.take(old.id) is None
    assert old.state is SessionState.OPEN


async def test_it_leaves_the_journal_to_a_successor_whose_database_is_slow(
    pair: tuple[Node, Node], empty_redis: str, store: FakeStore, directory: BackendDirectory, monkeypatch: Any
) -> None:
    first, second = pair
    old = await first.open()
    first.process.say(**note("acknowledged"))
    assert old.journal is not None
    await first.writer.flush(old.journal)
    lapse(empty_redis, A)
    stand_still(first.registry)
    may_answer, find = anyio.Event(), directory.find

    async def slow(tenant: str, backend: str) -> Any:
        await may_answer.wait()
        return await find(tenant, backend)

    monkeypatch.setattr(directory, "find", slow)
    taken: list[Session | None] = []

    async def take_it() -> None:
        taken.append(await second.take(old.id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_it)
        await until(lambda: second.ownership.owns(session_key(old.id)))
        await first.guard.prove()
        assert old.state is SessionState.CLOSED
        await until(lambda: not first.writer._deletions)
        may_answer.set()
    (session,) = taken
    assert session is not None
    (said,) = await take(session.streams.read(session.streams.listen), 1)
    assert said["params"]["text"] == "acknowledged"


async def test_a_session_that_ends_before_the_node_knows_leaves_the_journal_too(
    pair: tuple[Node, Node], empty_redis: str
) -> None:
    """Its owner has moved on without noticing a standstill: nothing but the store knows."""
    first, second = pair
    old = await first.open()
    first.process.say(**note("acknowledged"))
    assert old.journal is not None
    await first.writer.flush(old.journal)
    lapse(empty_redis, A)
    found = await second.ownership._store.find(session_key(old.id))
    assert found.route is not None
    taken = await second.ownership.take_over(found.route, old.id)
    old.close("deleted")
    await until(lambda: not first.writer._deletions)
    assert await first.ownership.flush(20)
    assert (await second.ownership._store.find(session_key(old.id))).route == taken
    with client_of(empty_redis) as client:
        assert client.exists(f"trunkline:head:{session_key(old.id)}")


async def test_a_write_to_the_journal_of_what_is_anothers_ends_the_session(
    pair: tuple[Node, Node], empty_redis: str
) -> None:
    """No pause was noticed, and no heartbeat has said it yet."""
    first, second = pair
    old = await first.open()
    assert old.journal is not None
    await first.writer.flush(old.journal)
    lapse(empty_redis, A)
    assert await second.take(old.id) is not None
    first.process.say(**note("late"))
    await until(lambda: old.state is SessionState.CLOSED)
    assert not first.ownership.holds(session_key(old.id))


async def test_a_forged_journal_ends_no_session(pair: tuple[Node, Node], empty_redis: str) -> None:
    first, _ = pair
    old = await first.open()
    assert old.journal is not None
    await first.writer.flush(old.journal)
    with client_of(empty_redis) as client:
        client.hset(f"trunkline:head:{session_key(old.id)}", "t", 99)
    first.process.say(**note("goes on"))
    await until(lambda: old.journal is not None and old.journal.is_over)
    await until(lambda: not first.ownership._doubted)
    assert old.state is SessionState.OPEN
    assert first.ownership.owns(session_key(old.id))
