"""A call's stream from which its client takes nothing: for how long it holds up the others, and what it gets later."""

import json
import random
import time
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.protocol import _notification_rate as notification_rate
from app.protocol.commands import Answer, Call, Failed, Listen, ToStream
from app.protocol.event_ids import parse_event_id
from app.protocol.jsonrpc import parse_backend, parse_client
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams._replay import MAX_BYTES as LOG_BYTES
from app.sessions.streams._replay import MAX_EVENTS as LOG_EVENTS
from app.sessions.streams.entry import bytes_of
from app.sessions.streams.resumption import Reader, Resumption
from app.sessions.streams.session_streams import UNREAD_S
from app.sessions.streams.streams import MAX_EVENTS, EventStream, Reply
from tests.sessions.fakes import FakeConnection, FakePool
from tests.sessions.streams.tenant import Tenant


@pytest.fixture
async def session(registry: SessionRegistry, principal: Principal, pool: FakePool) -> Session:
    """An open one."""
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    session.request(message(id=0, method="initialize", params={}), session.reply(1, may_stream=True))
    pool.leases[-1].connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    return session


@pytest.fixture
def connection(session: Session, pool: FakePool) -> FakeConnection:
    return pool.leases[-1].connection


def message(**members: Any) -> Any:
    return parse_client(json.dumps({"jsonrpc": "2.0", **members}).encode())


def call(session: Session, number: int, *, may_stream: bool = True) -> Reply:
    """Its progress token is its id."""
    reply = session.reply(1, may_stream=may_stream)
    params = {"_meta": {"progressToken": number}}
    session.request(message(id=number, method="tools/call", params=params), reply)
    return reply


class Unread:
    """A call's stream that is full, and has a reader that takes nothing."""

    def __init__(self, session: Session, connection: FakeConnection) -> None:
        self.session, self.connection = session, connection
        self.reply = call(session, 1)
        self.call_id = connection.sent[-1]["id"]
        self.said = 0
        self.reader: Reader = session.streams.read(self.reply.become_stream())
        self.say(MAX_EVENTS + 1)

    def say(self, count: int, **more: Any) -> None:
        for _ in range(count):
            self.said += 1
            params = {"progressToken": self.call_id, "progress": self.said, **more}
            self.connection.say(method="notifications/progress", params=params)

    def let_go(self) -> None:
        """Time passes."""
        now = time.monotonic()
        for part in (0.0, 0.25, 0.5, 0.75, 0.99):
            self.session.sweep(now + part * UNREAD_S)
            assert self.connection.paused
        self.session.sweep(now + UNREAD_S + 0.01)
        assert not self.connection.paused

    def answer(self, result: Any) -> None:
        self.connection.say(id=self.call_id, result=result)

    async def take(self, count: int) -> list[int]:
        """The numbers of so many messages."""
        taken = []
        with anyio.fail_after(30):
            for _ in range(count):
                item = await self.reader.next()
                assert isinstance(item, bytes)
                taken.append(json.loads(item)["params"]["progress"])
        return taken

    async def rest(self) -> list[Any]:
        """Numbers, and the answer."""
        taken: list[Any] = []
        with anyio.fail_after(30):
            while (item := await self.reader.next()) is not None:
                assert not isinstance(item, Failed)
                told = json.loads(bytes_of(item))
                taken.append(told["params"]["progress"] if "params" in told else told["result"])
        return taken


@pytest.fixture
async def unread(session: Session, connection: FakeConnection) -> Unread:
    return Unread(session, connection)


async def test_it_holds_another_call_up_for_a_second_and_loses_nothing(session: Session, unread: Unread) -> None:
    other = call(session, 2, may_stream=False)
    unread.let_go()
    unread.connection.answer({"other": 1})
    assert len(other.outcomes) == 1
    unread.say(300)
    unread.answer("done")
    assert not unread.connection.paused
    assert await unread.rest() == [*range(1, MAX_EVENTS + 302), "done"]


async def test_alone_it_may_be_read_as_slowly_as_its_reader_likes(session: Session, unread: Unread) -> None:
    now = time.monotonic()
    for seconds in range(10):
        session.sweep(now + seconds)
    assert unread.connection.paused
    assert await unread.take(1) == [1]
    assert not unread.connection.paused


async def test_a_reader_is_not_blamed_for_a_standstill_of_the_node(session: Session, unread: Unread) -> None:
    """It could not take anything then; without a log the oldest messages would be dropped."""
    call(session, 2, may_stream=False)
    now = time.monotonic()
    session.sweep(now)
    session.sweep(now + 5)
    assert unread.connection.paused
    assert await unread.take(1) == [1]


async def test_it_holds_a_listen_stream_up_for_a_second(session: Session, unread: Unread) -> None:
    listening = session.streams.read(session.streams.listen)
    unread.let_go()
    unread.connection.say(method="notifications/tools/list_changed")
    assert b"list_changed" in await listening.next()  # type: ignore[operator]


async def test_one_from_which_something_is_taken_goes_on_holding_the_process_up(
    session: Session, unread: Unread
) -> None:
    """A slow client loses nothing, as it would in front of its server."""
    call(session, 2, may_stream=False)
    now = time.monotonic()
    for second in range(5):
        session.sweep(now + second)
        assert await unread.take(1) == [second + 1]
        unread.say(2)
    assert unread.connection.paused


async def test_once_it_is_read_again_it_holds_the_process_up_again(session: Session, unread: Unread) -> None:
    call(session, 2, may_stream=False)
    unread.let_go()
    unread.say(10)
    assert await unread.take(MAX_EVENTS + 11) == [*range(1, MAX_EVENTS + 12)]
    unread.say(MAX_EVENTS + 1)
    assert unread.connection.paused
    unread.let_go()
    unread.answer("done")
    assert await unread.rest() == [*range(MAX_EVENTS + 12, 2 * MAX_EVENTS + 13), "done"]


async def test_what_is_kept_for_it_is_bounded_and_the_answer_is_always_there(
    session: Session, unread: Unread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notification_rate, "PER_SECOND", 10 * LOG_EVENTS)
    call(session, 2, may_stream=False)
    unread.let_go()
    unread.say(3 * LOG_EVENTS)
    unread.answer("done")
    taken = await unread.rest()
    assert taken == [*range(unread.said - LOG_EVENTS + 2, unread.said + 1), "done"]


async def test_an_answer_of_any_size_reaches_the_reader_that_comes_back(session: Session, unread: Unread) -> None:
    """The log has no room for it, and it is not kept there in order to be resumed."""
    call(session, 2, may_stream=False)
    unread.let_go()
    unread.say(5)
    unread.answer("x" * (LOG_BYTES + 1))
    taken = await unread.rest()
    assert len(taken[-1]) == LOG_BYTES + 1


async def test_a_client_that_comes_back_with_another_connection_resumes(session: Session, unread: Unread) -> None:
    call(session, 2, may_stream=False)
    assert await unread.take(1) == [1]
    unread.say(1)
    unread.let_go()
    unread.say(5)
    place = unread.reader.event_id
    unread.reader.leave()
    unread.say(5)
    unread.answer("done")
    number = int(place.split(b"-")[1])
    stream = unread.reply.stream
    assert stream is not None
    unread.reader = session.streams.read(stream, unread.reader._place)
    assert await unread.rest() == [*range(number + 1, unread.said + 1), "done"]


async def test_a_stream_that_cannot_be_resumed_loses_the_oldest(session: Session, connection: FakeConnection) -> None:
    """As those of 2026-07-28."""
    reply = call(session, 1)
    stream = reply.become_stream()
    ours = connection.sent[-1]["id"]
    call(session, 2, may_stream=False)
    for number in range(MAX_EVENTS + 1):
        connection.say(method="notifications/progress", params={"progressToken": ours, "progress": number})
    now = time.monotonic()
    for seconds in (0, 0.4 * UNREAD_S, 0.8 * UNREAD_S, UNREAD_S + 0.01):
        assert connection.paused
        session.sweep(now + seconds)
    assert not connection.paused
    connection.say(method="notifications/progress", params={"progressToken": ours, "progress": "last"})
    connection.say(id=ours, result="done")
    items = [json.loads(item) for item in stream.take_all() if isinstance(item, bytes)]
    assert [items[0]["params"]["progress"], items[-2]["params"]["progress"], items[-1]["result"]] == [3, "last", "done"]


async def test_one_that_was_left_holds_nobody_up(session: Session, unread: Unread) -> None:
    unread.reader.leave()
    assert not unread.connection.paused


@pytest.mark.parametrize("seed", range(50))
async def test_whatever_happens_when_events_come_in_order_once_and_answers_come(seed: int) -> None:
    """A batch: several answers on one stream, between notifications."""
    dice = random.Random(seed)
    owner = Resumption(Tenant(), lambda reason, question: None)
    stream = EventStream(lambda full: None, lambda reason, question: None)
    reader = owner.read(stream, None, lambda stream: None, collects=True, may_poll=False)
    said, taken = list[bytes](), list[bytes]()
    for number in range(dice.randint(1, 200)):
        match dice.choice(["say", "say", "say", "answer", "behind", "take", "resume"]):
            case "say":
                said.append(b"%d" % number)
                stream.push(ToStream(Listen.STREAM, said[-1]))
            case "answer":
                response: Any = parse_backend(b'{"jsonrpc":"2.0","id":9,"result":%d}' % number)
                asked = Call(b"1", b"9", "tools/call", None, True, 0.0, 0.0)  # type: ignore[arg-type]
                stream.answer(Answer(asked, response))
                said.append(Answer(asked, response).payload())
            case "behind":
                stream.fall_behind()
            case "take" if len(taken) < len(said):
                taken.append(await reader.next())  # type: ignore[arg-type]
            case "resume":
                place = reader.event_id
                reader.leave()
                reader = owner.read(stream, parse_event_id(place), lambda stream: None, collects=True, may_poll=False)
    stream.end()
    while (item := await reader.next()) is not None:
        assert isinstance(item, bytes)
        taken.append(item)
    assert taken == said
