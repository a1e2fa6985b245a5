"""EndedSessions: what can be fetched of sessions whose process has ended, for how long, and by whom."""

import json
import time
from typing import Any

import pytest

from app.domain import Principal
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId, parse_event_id
from app.protocol.jsonrpc import Request, parse_client
from app.sessions import _ended as ended
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams._replay import MAX_AGE_S
from app.sessions.streams.entry import bytes_of
from tests.sessions.fakes import FakePool


def request(method: str, number: int) -> Request:
    message = parse_client(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {}}).encode())
    assert isinstance(message, Request)
    return message


class Client:
    """Sessions whose calls all lose their connection."""

    def __init__(self, registry: SessionRegistry, principal: Principal, pool: FakePool) -> None:
        self.registry, self.principal, self.pool = registry, principal, pool

    async def lost_call(self, *, answer: Any = None) -> tuple[Session, EventId]:
        """A session whose call was answered, or was not, before its process ended; and what its client saw last."""
        session = await self.registry.open(self.principal, "acme", "echo", "streamable_http")
        await self.registry.connect(session)
        session.request(request("initialize", 0), session.reply(1, may_stream=True))
        connection = self.pool.leases[-1].connection
        connection.answer({"protocolVersion": "2025-11-25"})
        reply = session.reply(1, may_stream=True)
        session.request(request("tools/call", 1), reply)
        reader = session.streams.read(reply.become_stream())
        reader.leave()
        if answer is not None:
            connection.answer(answer)
        connection.die()
        place = parse_event_id(reader.event_id)
        assert place is not None
        return session, place

    def find(self, session: Session, place: EventId, principal: Principal | None = None) -> Session | None:
        who = principal or self.principal
        assert self.registry.get(session.id, who, "acme", "echo") is None
        return self.registry.ended(session.id, place, who, "acme", "echo")


@pytest.fixture
def client(registry: SessionRegistry, principal: Principal, pool: FakePool) -> Client:
    return Client(registry, principal, pool)


async def fetched(session: Session | None, place: EventId) -> list[Any]:
    """What its stream has after that place, to its end."""
    assert session is not None
    reader, items = session.streams.resume(place), []
    assert reader is not None
    while (item := await reader.next()) is not None:
        items.append(item if isinstance(item, Failed) else json.loads(bytes_of(item)).get("result"))
    return items


async def test_an_answer_outlives_its_process(client: Client) -> None:
    session, place = await client.lost_call(answer={"n": 1})
    for _ in range(2):
        assert await fetched(client.find(session, place), place) == [{"n": 1}]
    assert client.find(session, EventId(place.stream, place.number + 1)) is None, "nothing comes after that"
    assert client.find(session, EventId("0" * 12, 0)) is None


async def test_a_call_that_ended_with_its_process_says_so_to_who_comes_back(client: Client) -> None:
    session, place = await client.lost_call()
    (failed,) = await fetched(client.find(session, place), place)
    assert failed.error.reason == "backend_exited"


async def test_it_is_its_principals_for_as_long_as_that_has_a_right_to_it(client: Client) -> None:
    session, place = await client.lost_call(answer={})
    assert client.find(session, place, Principal("acme", "key", "k2", client.principal.scopes)) is None
    assert client.registry.ended(session.id, place, client.principal, "acme", "other") is None
    client.registry.close_where(lambda each: each.principal == client.principal, "key_revoked")
    assert client.find(session, place) is None


async def test_a_session_that_ends_otherwise_or_without_an_answer_leaves_nothing(client: Client) -> None:
    session = await client.registry.open(client.principal, "acme", "echo", "streamable_http")
    await client.registry.connect(session)
    session.streams.read(session.streams.listen)
    client.pool.leases[-1].connection.die()
    assert not client.registry._ended._sessions


async def test_it_grows_old(client: Client) -> None:
    session, place = await client.lost_call(answer={})
    client.registry._ended.sweep(time.monotonic())
    assert client.find(session, place) is session
    client.registry._ended.sweep(time.monotonic() + MAX_AGE_S + 1)
    assert not client.registry._ended._sessions


@pytest.mark.parametrize(("limit", "value"), [("MAX_SESSIONS", 1), ("MAX_BYTES", 1500)])
async def test_a_node_keeps_a_bounded_number_of_them(
    client: Client, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(ended, limit, value)
    first, place = await client.lost_call(answer={"text": "x" * 1000})
    assert client.find(first, place) is first
    second, other = await client.lost_call(answer={"text": "x" * 1000})
    assert client.find(first, place) is None
    assert client.find(second, other) is second
