"""A durable session with a real process at both ends and a real Redis in between: its first node is not
heard of any more in the middle of everything, and a second one goes on."""

import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.backends.connections.leasing import ProcessLeasing
from app.backends.pool import PoolOptions, ProcessPool
from app.cluster.durability import Durability
from app.cluster.journal_writer import JournalWriter
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.journal_stores import RedisJournalStore
from app.domain import BackendSpec, Limits, Principal
from app.limits.tenant_budgets import TenantBudgets
from app.limits.tenant_limits import TenantGates
from app.processes.homes import Homes
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.protocol.event_ids import EventId, parse_event_id
from app.protocol.jsonrpc import parse_client
from app.sessions.loop_pause import StandstillDetector
from app.sessions.routes import Route
from app.sessions.session import Session, Surroundings
from app.sessions.session_ids import session_key
from app.sessions.streams.streams import Reply
from app.telemetry.metrics import Metrics
from tests.cluster.durable import ALICE, SEALER
from tests.redis_servers import RedisServer

SERVER = Path(__file__).resolve().parent.parent / "servers/stateless.py"
SPEC = BackendSpec("acme", "echo", sys.executable, ("-I", "-S", str(SERVER)), recovery="respawn")


@dataclass
class RealNode:
    """What of a node has to do with durable sessions. Fulfils `restoring.Sessions`."""

    lender: ProcessLeasing
    writer: JournalWriter
    durability: Durability
    metrics: Metrics

    def restored(
        self, session_id: str, principal: Principal, spec: BackendSpec, limits: Limits, transport: str
    ) -> Session:
        gate = TenantGates(self.metrics).of("acme", limits)
        around = Surroundings(
            transport, gate, self.metrics, lambda session, reason: None, StandstillDetector(lambda: 0.0), 15.0
        )
        return Session(session_id, principal, spec, around)

    async def open(self) -> Session:
        session = self.restored(secrets.token_urlsafe(24), ALICE, SPEC, Limits(), "streamable_http")
        self.durability.start(session, session_key(session.id), 1)
        await session.connect(self.lender, Limits())
        await ask(session, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        session.notify(parse("notifications/initialized"))
        return session

    async def take_over(self, session_id: str) -> Session:
        route = Route(session_key(session_id), "b", "http://b", 2, "acme", "echo", ALICE.identity, "streamable_http")
        session = await self.durability.restore(self.restored, session_id, route, SPEC, Limits())
        assert session is not None
        return session


@asynccontextmanager
async def real_node(url: str, directory: Path) -> AsyncIterator[RealNode]:
    async with AsyncExitStack() as stack:
        metrics = Metrics("test")
        redis = RedisConnection(url, Counter("errors", "for tests", ["reason"], registry=CollectorRegistry()))
        await stack.enter_async_context(redis)
        options = SupervisorOptions(Homes(directory))
        supervisor = await stack.enter_async_context(Supervisor(metrics, options))
        pool = await stack.enter_async_context(
            ProcessPool(supervisor, metrics, PoolOptions(), budgets=TenantBudgets(metrics))
        )
        unused: Any = None  # there are no toolsets
        lender = await stack.enter_async_context(ProcessLeasing(pool, unused, unused))
        writer = JournalWriter(RedisJournalStore(redis), SEALER)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(writer.run)
        with anyio.fail_after(30):
            while not redis.is_up:
                await anyio.sleep(0.005)
        yield RealNode(lender, writer, Durability(writer, lender.restore), metrics)


def parse(method: str, number: int | None = None, **params: Any) -> Any:
    members = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    return parse_client(json.dumps(members).encode())


async def ask(session: Session, method: str, number: int = 1, **params: Any) -> Any:
    """The result of a call that is answered with JSON."""
    reply: Reply = session.reply(1, may_stream=False)
    session.request(parse(method, number, **params), reply)
    with anyio.fail_after(20):
        await reply.outcome
    return json.loads(reply.outcomes[0].payload())["result"]  # type: ignore[union-attr]


async def tool(session: Session, name: str, **arguments: Any) -> str:
    result = await ask(session, "tools/call", 5, name=name, arguments=arguments)
    return str(result["content"][0]["text"])


def place_of(event_id: bytes) -> EventId:
    place = parse_event_id(event_id)
    assert place is not None
    return place


async def test_a_session_goes_on_at_another_node_with_another_process(redis_url: str, tmp_path: Path) -> None:
    async with real_node(redis_url, tmp_path) as first, real_node(redis_url, tmp_path) as second:
        old = await first.open()
        listening = old.streams.read(old.streams.open_listener())
        await ask(old, "logging/setLevel", level="info")
        process = json.loads(await tool(old, "whoami"))["process"]
        for text in ("seen", "unseen"):
            await tool(old, "log", text=text)
        with anyio.fail_after(20):
            assert b"seen" in await listening.next()  # type: ignore[operator]
        reply: Reply = old.reply(1, may_stream=True)
        old.request(parse("tools/call", 9, name="later", arguments={}), reply)
        held = old.streams.read(reply.become_stream())
        assert old.journal is not None
        with anyio.fail_after(20):
            while old.journal.is_dirty:  # the writer's own doing
                await anyio.sleep(0.001)
            await first.writer.flush(old.journal)

        session = await second.take_over(old.id)
        resumed = session.streams.resume(place_of(listening.event_id))
        lost = session.streams.resume(place_of(held.event_id))
        assert resumed is not None
        assert lost is not None
        with anyio.fail_after(20):
            failed = await lost.next()
            assert failed.error.reason == "node_lost"  # type: ignore[union-attr]
            assert await lost.next() is None
            about = json.loads(await tool(session, "whoami"))
            assert b"unseen" in await resumed.next()  # type: ignore[operator]
            assert b"was restarted" in await resumed.next()  # type: ignore[operator]
        assert about["process"] != process
        assert about["heard"] == ["initialize", "notifications/initialized", "logging/setLevel info"]
        old.close("taken_over")
        session.close("deleted")


async def test_a_redis_that_was_away_and_has_lost_everything_gets_it_again(tmp_path: Path) -> None:
    with RedisServer() as server:
        async with real_node(server.url, tmp_path) as first:
            old = await first.open()
            await tool(old, "log", text="before")
            assert old.journal is not None
            await first.writer.flush(old.journal)
            server.kill()
            await tool(old, "log", text="meanwhile")  # the session does not notice
            server.start()
            with anyio.fail_after(20):
                while old.journal.is_dirty:
                    await anyio.sleep(0.01)
            async with real_node(server.url, tmp_path) as second:
                session = await second.take_over(old.id)
                listening = session.streams.read(session.streams.open_listener())
                with anyio.fail_after(20):
                    assert b"before" in await listening.next()  # type: ignore[operator]
                    assert b"meanwhile" in await listening.next()  # type: ignore[operator]
                session.close("deleted")
            old.close("taken_over")


@pytest.mark.parametrize("what", ["head", "log"])
async def test_nothing_that_a_client_or_a_server_said_can_be_read_in_redis(
    redis_url: str, tmp_path: Path, what: str
) -> None:
    async with real_node(redis_url, tmp_path) as node:
        session = await node.open()
        await tool(session, "log", text="a-private-matter")
        assert session.journal is not None
        await node.writer.flush(session.journal)
        key = f"trunkline:{what}:{session_key(session.id)}"
        redis: Any = node.writer._store
        kind = "HVALS" if what == "head" else "LRANGE"
        found = await redis._connection.execute(kind, key, *(() if what == "head" else (0, -1)))
        assert found
        assert not [part for part in found if any(word in part for word in (b"private", b"alice", b"acme", b"2025"))]
        session.close("deleted")
