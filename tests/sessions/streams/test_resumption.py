"""Streams that can be resumed: who reads them, what waits for whom, and what is left behind."""

import json
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from app.protocol.commands import Answer, Call, Failed, Listen, ToStream
from app.protocol.event_ids import EventId, parse_event_id
from app.protocol.jsonrpc import parse_backend, parse_client
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams import resumption
from app.sessions.streams._replay import MAX_AGE_S, MAX_BYTES, MAX_EVENTS
from app.sessions.streams.resumption import POLL_RETRY_MS, Reader, Resumption
from app.sessions.streams.streams import EventStream
from tests.sessions.fakes import FakeConnection, FakePool
from tests.sessions.streams.tenant import Tenant

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Owner:
    """One POST's stream, one listen stream, and what their session hears of them."""

    def __init__(self) -> None:
        self.dropped: list[tuple[str, bytes | None]] = []
        self.left: list[EventStream] = []
        self.pressure: list[bool] = []
        self.may_poll = True
        self.resumption = Resumption(Tenant(), self._drop)
        self.post, self.listen = self.make_stream(), self.make_stream()

    def make_stream(self) -> EventStream:
        return EventStream(self.pressure.append, self._drop)

    def _drop(self, reason: str, question: bytes | None) -> None:
        self.dropped.append((reason, question))

    def read(self, stream: EventStream, start: EventId | None = None) -> Reader:
        collects = stream is not self.listen
        return self.resumption.read(stream, start, self.left.append, collects=collects, may_poll=self.may_poll)

    def resume(self, event_id: bytes) -> Reader | None:
        place = parse_event_id(event_id)
        assert place is not None
        stream = self.resumption.find(place)
        return None if stream is None else self.read(stream, place)


@pytest.fixture
def owner() -> Owner:
    return Owner()


def note(text: str, **options: bytes) -> ToStream:
    return ToStream(Listen.STREAM, text.encode(), **options)


def finish(stream: EventStream) -> None:
    response: Any = parse_backend(b'{"jsonrpc":"2.0","id":9,"result":{}}')
    stream.answer(Answer(Call(b"1", b"9", "tools/call", None, True, 0.0, 0.0), response))
    stream.end()


async def take(reader: Reader, count: int) -> list[object]:
    with anyio.fail_after(30):
        return [await reader.next() for _ in range(count)]


async def test_events_are_numbered_from_the_place_before_the_first(owner: Owner) -> None:
    reader = owner.read(owner.post)
    assert reader.event_id.endswith(b"-0")
    owner.post.push(note("a"))
    finish(owner.post)
    assert await take(reader, 1) == [b"a"]
    assert reader.event_id.endswith(b"-1")
    assert await take(reader, 2) == [ANSWER, None]
    assert reader.event_id.endswith(b"-2")


async def test_what_was_sent_and_what_came_meanwhile_is_there_on_resume_once(owner: Owner) -> None:
    first = owner.read(owner.post)
    start = first.event_id
    for text in "abc":
        owner.post.push(note(text))
    assert await take(first, 2) == [b"a", b"b"]
    seen = start.replace(b"-0", b"-1")  # the connection broke after the first
    first.leave()
    owner.post.push(note("d"))
    finish(owner.post)
    second = owner.resume(seen)
    assert second is not None
    assert await take(second, 5) == [b"b", b"c", b"d", ANSWER, None]
    assert second.event_id.endswith(b"-5")
    assert owner.dropped == []


async def test_a_stream_is_resumed_while_it_runs_and_resumed_again(owner: Owner) -> None:
    reader = owner.read(owner.post)
    for text in "ab":
        owner.post.push(note(text))
        assert await take(reader, 1) == [text.encode()]
        reader.leave()
        resumed = owner.resume(reader.event_id)
        assert resumed is not None
        assert resumed.event_id == reader.event_id
        reader = resumed
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_expect, reader, [ANSWER, None])
        await anyio.wait_all_tasks_blocked()
        finish(owner.post)


async def _expect(reader: Reader, items: Sequence[object]) -> None:
    assert await take(reader, len(items)) == list(items)


async def test_a_newer_reader_takes_over_and_the_old_one_hears_the_end(owner: Owner) -> None:
    old = owner.read(owner.post)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect, old, [None])  # it waits, takes nothing, and ends
            await anyio.wait_all_tasks_blocked()
            new = owner.resume(old.event_id)
            owner.post.push(note("a"))
    assert new is not None
    assert await take(old, 1) == [None]
    old.leave()
    assert owner.left == []
    assert owner.post.attached
    assert await take(new, 1) == [b"a"]
    new.leave()
    new.leave()
    assert owner.left == [owner.post]


async def test_a_backlog_ends_with_a_takeover_too(owner: Owner) -> None:
    first = owner.read(owner.post)
    start = first.event_id
    for text in "ab":
        owner.post.push(note(text))
    first.leave()
    second = owner.resume(start)
    assert second is not None
    assert await take(second, 1) == [b"a"]
    third = owner.resume(start)
    assert third is not None
    assert await take(second, 1) == [None]
    assert await take(third, 2) == [b"a", b"b"]


async def test_a_reader_that_is_cancelled_half_way_leaves_everything(owner: Owner) -> None:
    reader = owner.read(owner.post)
    with anyio.move_on_after(0):
        await reader.next()
    reader.leave()
    finish(owner.post)
    resumed = owner.resume(reader.event_id)
    assert resumed is not None
    assert await take(resumed, 2) == [ANSWER, None]


async def test_the_listen_stream_keeps_its_queue_for_whoever_opens_it_next(owner: Owner) -> None:
    reader = owner.read(owner.listen)
    owner.listen.push(note("a"))
    assert await take(reader, 1) == [b"a"]
    reader.leave()
    owner.listen.push(note("old", coalesce=b"k"))
    owner.listen.push(note("new", coalesce=b"k"))
    resumed = owner.resume(reader.event_id.replace(b"-1", b"-0"))
    assert resumed is not None
    assert await take(resumed, 2) == [b"a", b"new"]
    resumed.leave()
    owner.listen.push(note("later"))
    assert await take(owner.read(owner.listen), 1) == [b"later"]  # opened without an id: only what is new


async def test_an_event_that_is_replaced_before_it_was_read_leaves_its_number_unused(owner: Owner) -> None:
    """What a number stands for never changes: its event may have been written down for another node."""
    reader = owner.read(owner.listen)
    for text, key in (("old", b"k"), ("other", b"l"), ("new", b"k")):
        owner.listen.push(note(text, coalesce=key))
    assert await take(reader, 2) == [b"other", b"new"]
    assert reader.event_id.endswith(b"-3")
    assert len(owner.resumption.log) == 2


async def test_an_answer_too_large_for_the_log_reaches_a_reader_that_is_there(owner: Owner) -> None:
    reader = owner.read(owner.post)
    response: Any = parse_backend(b'{"jsonrpc":"2.0","id":9,"result":"%s"}' % (b"x" * MAX_BYTES))
    owner.post.answer(Answer(Call(b"1", b"9", "tools/call", None, True, 0.0, 0.0), response))
    start = reader.event_id
    [item] = await take(reader, 1)
    assert isinstance(item, bytes)
    reader.leave()
    resumed = owner.resume(start)
    assert resumed is not None
    [item] = await take(resumed, 1)
    assert isinstance(item, Failed)


async def test_streams_do_not_see_each_others_events(owner: Owner) -> None:
    post, listen = owner.read(owner.post), owner.read(owner.listen)
    owner.post.push(note("post"))
    owner.listen.push(note("listen"))
    assert (await take(post, 1), await take(listen, 1)) == ([b"post"], [b"listen"])
    assert post.event_id.split(b"-")[0] != listen.event_id.split(b"-")[0]
    start = listen.event_id.replace(b"-1", b"-0")
    listen.leave()
    post.leave()
    resumed = owner.resume(start)
    assert resumed is not None
    assert await take(resumed, 1) == [b"listen"]


async def test_ids_that_were_never_given_or_have_nothing_left_name_no_stream(owner: Owner) -> None:
    reader = owner.read(owner.post)
    assert owner.resume(b"0123456789ab-0") is None
    assert owner.resume(reader.event_id.replace(b"-0", b"-1")) is None  # has not happened yet
    finish(owner.post)
    assert await take(reader, 2) == [ANSWER, None]
    reader.leave()
    assert owner.resume(reader.event_id) is None  # the client has it all
    assert owner.resume(reader.event_id.replace(b"-1", b"-0")) is not None


async def test_what_nobody_fetched_in_time_is_counted_and_its_stream_forgotten(owner: Owner) -> None:
    reader = owner.read(owner.post)
    start = reader.event_id
    reader.leave()
    owner.post.push(note("question", question=b"17"))
    finish(owner.post)
    owner.resumption.trim(time.monotonic() + MAX_AGE_S + 1)
    assert owner.dropped == [("replay_expired", b"17"), ("replay_expired", None)]
    assert owner.resume(start) is None
    assert (list(owner.resumption), len(owner.resumption.log), owner.resumption.log.bytes) == ([], 0, 0)


async def test_what_was_sent_goes_from_the_log_without_being_counted(owner: Owner) -> None:
    reader = owner.read(owner.post)
    for number in range(MAX_EVENTS + 5):
        owner.post.push(note(str(number)))
        await take(reader, 1)
    assert owner.dropped == []
    assert len(owner.resumption.log) == MAX_EVENTS


async def test_streams_without_a_reader_share_one_bound(owner: Owner) -> None:
    streams = [owner.make_stream() for _ in range(32)]
    starts = []
    for stream in streams:
        reader = owner.read(stream)
        starts.append(reader.event_id)
        reader.leave()
        for _ in range(5):
            stream.push(note("x" * 100_000))
        finish(stream)
    assert owner.resumption.log.bytes <= MAX_BYTES
    assert len(owner.dropped) >= 100
    assert all(stream.bytes == 0 for stream in streams)
    for start in starts:  # every answer is still there
        resumed = owner.resume(start)
        assert resumed is not None
        assert ANSWER in await take(resumed, len(resumed._backlog))


async def test_leaving_ends_the_pressure_and_moves_what_was_not_read(owner: Owner) -> None:
    reader = owner.read(owner.post)
    for number in range(300):
        owner.post.push(note(str(number)))
    assert owner.pressure == [True]
    reader.leave()
    assert owner.pressure == [True, False]
    assert (owner.post.bytes, len(owner.resumption.log)) == (0, 300)


async def test_a_silent_post_is_ended_for_polling_where_that_is_on(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2025-11-25, basic/transports: the server MAY close the connection after a priming event."""
    assert resumption.POLL_AFTER_S is None
    monkeypatch.setattr(resumption, "POLL_AFTER_S", 0.01)
    reader = owner.read(owner.post)
    owner.post.push(note("a"))
    assert await take(reader, 2) == [b"a", None]
    assert reader.retry_ms == POLL_RETRY_MS
    reader.leave()
    finish(owner.post)
    polled = owner.resume(reader.event_id)
    assert polled is not None
    assert await take(polled, 2) == [ANSWER, None]
    assert polled.retry_ms is None
    listening = owner.read(owner.listen)  # is never ended for silence
    owner.may_poll = False
    older = owner.read(owner.make_stream())  # nor is that of a client older than 2025-11-25
    for reader in (listening, older):
        with anyio.move_on_after(0.05) as scope:
            await reader.next()
        assert scope.cancelled_caught


# --- in a session


@pytest.fixture
async def session(registry: SessionRegistry, principal: Any) -> Session:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    return session


@pytest.fixture
async def connection(session: Session, pool: FakePool) -> FakeConnection:
    session.request(_request("initialize", 0), session.reply(1, may_stream=True))
    connection = pool.leases[-1].connection
    connection.answer({"protocolVersion": "2025-11-25"})
    return connection


def _request(method: str, number: int) -> Any:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {}}
    return parse_client(json.dumps(message).encode())


async def test_a_session_that_answers_with_json_has_no_log(session: Session, connection: FakeConnection) -> None:
    session.request(_request("tools/call", 1), session.reply(1, may_stream=True))
    connection.answer()
    assert session.streams._resumption is None


async def test_a_calls_answer_waits_for_the_client_to_come_back(session: Session, connection: FakeConnection) -> None:
    reply = session.reply(1, may_stream=True)
    session.request(_request("tools/call", 1), reply)
    reader = session.streams.read(reply.become_stream())
    listening = session.streams.read(session.streams.open_listener())
    reader.leave()
    assert session.exchange.listening  # another's leaving is nothing to the listener
    connection.answer({"n": 1})
    place = parse_event_id(reader.event_id)
    assert place is not None
    resumed = session.streams.resume(place)
    assert resumed is not None
    [answered, end] = await take(resumed, 2)
    assert (json.loads(answered)["result"], end) == ({"n": 1}, None)  # type: ignore[arg-type]
    listening.leave()
    assert not session.exchange.listening


async def test_a_question_that_nobody_fetches_is_answered_with_an_error(
    session: Session, connection: FakeConnection
) -> None:
    reply = session.reply(1, may_stream=True)
    session.request(_request("tools/call", 1), reply)
    session.streams.read(reply.become_stream()).leave()
    connection.say(id="q", method="roots/list")
    for number in range(MAX_EVENTS):
        connection.say(method="notifications/message", params={"data": number})
    assert connection.sent[-1]["id"] == "q"
    assert "error" in connection.sent[-1]
    assert not connection.paused


async def test_ages_are_looked_at_with_the_sessions(session: Session, connection: FakeConnection) -> None:
    reply = session.reply(1, may_stream=True)
    session.request(_request("tools/call", 1), reply)
    session.streams.read(reply.become_stream()).leave()
    connection.answer()
    assert session.streams._resumption is not None
    assert len(session.streams._resumption.log) == 1
    session.streams.trim(time.monotonic() + MAX_AGE_S + 1)
    assert len(session.streams._resumption.log) == 0


@pytest.mark.parametrize(("reason", "comes_back"), [("shutdown", True), ("deleted", False)])
async def test_only_a_drain_sends_clients_back(
    session: Session, connection: FakeConnection, reason: str, comes_back: bool
) -> None:
    reader = session.streams.read(session.streams.open_listener())
    session.close(reason)
    assert await take(reader, 1) == [None]
    assert (1000 <= (reader.retry_ms or 0) <= 5000) is comes_back
    reader.leave()
