"""Session: one client's line, driven by hand."""

import json
import time
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import (
    BackendBusy,
    BackendExited,
    BackendTimeout,
    CallCutOff,
    Conflict,
    Disabled,
    GatewayError,
    InvalidMessage,
    RoutesUnavailable,
    SessionNotFound,
    ShuttingDown,
)
from app.protocol.commands import Failed, Listen
from app.protocol.jsonrpc import Notification, Request, Response, parse_client
from app.sessions.loop_pause import GAP_S, StandstillGuard
from app.sessions.registry import STREAM_AFTER_S, SessionRegistry
from app.sessions.session import Session, SessionState
from app.sessions.streams.session_streams import UNREAD_S
from app.sessions.streams.streams import MAX_EVENTS, Reply
from app.sessions.sweeping import why_over
from tests.sessions.fakes import FakeConnection, FakePool


def message(method: str, id_text: str | None = "1", **params: Any) -> Any:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if id_text is not None:
        body["id"] = json.loads(id_text)
    return parse_client(json.dumps(body).encode())


@pytest.fixture
async def session(registry: SessionRegistry, principal: Principal) -> Session:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    return session


@pytest.fixture
def connection(session: Session, pool: FakePool) -> FakeConnection:
    return pool.leases[-1].connection


@pytest.fixture
async def opened(session: Session, connection: FakeConnection) -> Session:
    session.request(message("initialize"), session.reply(1, may_stream=True))
    connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    return session


def ask(session: Session, method: str = "tools/call", id_text: str = "1", *, may_stream: bool = True) -> Reply:
    reply = session.reply(1, may_stream=may_stream)
    session.request(message(method, id_text), reply)
    return reply


async def test_nothing_is_accepted_after_a_gap_before_it_is_known_that_the_session_is_still_ours(
    opened: Session, connection: FakeConnection, registry: SessionRegistry, guard: StandstillGuard
) -> None:
    sent = len(connection.sent)
    registry.standstill.ticked_at -= 2 * GAP_S
    with pytest.raises(RoutesUnavailable):
        ask(opened)
    with pytest.raises(RoutesUnavailable):
        opened.notify(message("notifications/roots/list_changed", None))
    assert len(connection.sent) == sent
    await guard.prove()
    ask(opened)
    assert len(connection.sent) == sent + 1


async def test_initialize_opens_the_session_with_the_backends_revision(opened: Session, pool: FakePool) -> None:
    assert opened.state is SessionState.OPEN
    assert opened.version == "2025-06-18"
    assert pool.leases[0].shook_hands


async def test_a_refused_initialize_does_not_open_it(
    session: Session, connection: FakeConnection, pool: FakePool
) -> None:
    """A client of HTTP+SSE has its session already, and may try again."""
    session.request(message("initialize"), Listen.STREAM)
    connection.say(id=connection.sent[0]["id"], error={"code": -32602, "message": "no"})
    assert session.state is SessionState.CONNECTED
    assert not pool.leases[0].shook_hands


async def test_a_refused_initialize_of_a_post_ends_the_session(
    session: Session, connection: FakeConnection, pool: FakePool
) -> None:
    """Nobody has heard of it, and nobody will come back for it."""
    reply = session.reply(1, may_stream=True)
    session.request(message("initialize"), reply)
    connection.say(id=connection.sent[0]["id"], error={"code": -32602, "message": "no"})
    assert session.state is SessionState.CLOSED
    assert len(reply.outcomes) == 1
    assert pool.leases[0].released == ["not_initialized"]


async def test_nothing_but_ping_goes_before_initialize(session: Session) -> None:
    with pytest.raises(InvalidMessage):
        ask(session, "tools/list")
    ask(session, "ping")


async def test_a_second_initialize_is_refused(opened: Session) -> None:
    with pytest.raises(InvalidMessage, match="already"):
        ask(opened, "initialize")


async def test_an_answer_reaches_its_reply(opened: Session, connection: FakeConnection) -> None:
    first, second = ask(opened, id_text="1"), ask(opened, id_text='"1"')
    connection.answer({"n": 2}, to=-1)
    connection.answer({"n": 1}, to=-2)
    assert b'"n":1' in first.outcomes[0].payload().replace(b" ", b"")  # type: ignore[union-attr]
    assert b'"n":2' in second.outcomes[0].payload().replace(b" ", b"")  # type: ignore[union-attr]


async def test_a_notification_during_a_call_makes_its_reply_a_stream(
    opened: Session, connection: FakeConnection
) -> None:
    reply = ask(opened)
    connection.say(method="notifications/message", params={"level": "info", "data": "x"})
    assert reply.stream is not None
    connection.answer()
    items = [await reply.stream.next() for _ in range(3)]
    assert [b"notifications/message" in items[0], b'"result"' in items[1], items[2]] == [True, True, None]  # type: ignore[operator]


async def test_a_question_and_its_answer_cross_the_session(opened: Session, connection: FakeConnection) -> None:
    reply = ask(opened)
    connection.say(id="srv-1", method="elicitation/create", params={"message": "?"})
    assert reply.stream is not None
    asked = json.loads(await reply.stream.next())  # type: ignore[arg-type]
    answer = parse_client(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}).encode())
    assert isinstance(answer, Response)
    opened.respond(answer)
    assert connection.sent[-1] == {"jsonrpc": "2.0", "id": "srv-1", "result": {"action": "decline"}}
    opened.respond(answer)  # repeated: nobody asked
    assert len([sent for sent in connection.sent if sent.get("id") == "srv-1"]) == 1


async def test_a_busy_process_refuses_and_the_id_is_free_again(opened: Session, connection: FakeConnection) -> None:
    connection.is_busy = True
    with pytest.raises(BackendBusy):
        ask(opened)
    connection.is_busy = False
    ask(opened)


async def test_death_fails_every_call_ends_the_streams_and_the_session(
    opened: Session, connection: FakeConnection, pool: FakePool
) -> None:
    body, events = ask(opened, id_text="1"), ask(opened, id_text="2")
    events.become_stream()
    listen = opened.streams.open_listener()
    connection.die()
    assert isinstance(body.outcomes[0], Failed)
    error = body.outcomes[0].error
    assert isinstance(error, BackendExited)
    assert (error.started, list(error.stderr)) == (True, ["last words"])
    assert isinstance(await events.stream.next(), Failed)  # type: ignore[union-attr]
    assert await listen.next() is None
    assert opened.state is SessionState.CLOSED
    assert pool.leases[0].released == ["backend_exited"]


async def test_death_in_the_handshake_is_told_from_death_in_a_call(
    session: Session, connection: FakeConnection
) -> None:
    reply = session.reply(1, may_stream=True)
    session.request(message("initialize"), reply)
    connection.die()
    error = reply.outcomes[0].error  # type: ignore[union-attr]
    assert isinstance(error, BackendExited)
    assert not error.started


async def test_closing_twice_releases_once(opened: Session, pool: FakePool) -> None:
    reply = ask(opened)
    opened.close("too_old")
    opened.close("too_old")
    assert pool.leases[0].released == ["too_old"]
    assert isinstance(reply.outcomes[0].error, CallCutOff)  # type: ignore[union-attr]
    with pytest.raises(SessionNotFound):
        ask(opened)


async def test_a_session_closed_while_it_waits_for_a_process_gives_it_back(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    lease = pool.lease

    async def close_meanwhile(*args: Any) -> Any:
        session.close("key_revoked")
        return await lease(*args)

    pool.lease = close_meanwhile  # type: ignore[method-assign, assignment]
    with pytest.raises(SessionNotFound):
        await registry.connect(session)
    assert pool.leases[0].released == ["session_closed"]


@pytest.mark.parametrize(("reason", "error"), [("key_revoked", SessionNotFound), ("shutdown", ShuttingDown)])
async def test_a_session_that_is_closed_waits_no_longer_for_a_process(
    registry: SessionRegistry, principal: Principal, pool: FakePool, reason: str, error: type[GatewayError]
) -> None:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    pool.gate, heard = anyio.Event(), list[GatewayError]()

    async def connect() -> None:
        with pytest.raises(GatewayError) as caught:
            await registry.connect(session)
        heard.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        await anyio.wait_all_tasks_blocked()
        session.close(reason)
    assert [type(each) for each in heard] == [error]
    assert pool.leases == []


async def test_who_waits_for_a_process_of_what_is_switched_off_hears_so(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    pool.gate, heard = anyio.Event(), list[GatewayError]()

    async def connect() -> None:
        with pytest.raises(GatewayError) as caught:
            await registry.connect(session)
        heard.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        await anyio.wait_all_tasks_blocked()
        off = Disabled("backend", "echo", "ask Kim")
        assert registry.close_where(lambda each: True, "backend_disabled", off) == 1
    (error,) = heard
    assert isinstance(error, Disabled)
    assert (str(error), error.outcome) == ("the backend `echo` is switched off: ask Kim", None)
    assert error is not off  # whoever raises it adds to it


async def test_what_is_switched_off_while_a_session_is_claimed_is_not_opened(
    registry: SessionRegistry, principal: Principal
) -> None:
    async def switched_off_meanwhile() -> None:
        registry.close_where(lambda each: True, "backend_disabled", Disabled("backend", "echo"))

    with pytest.raises(Disabled):
        await registry.open(principal, "acme", "echo", "streamable_http", switched_off_meanwhile)
    assert len(registry) == 0


async def test_calls_of_what_is_switched_off_hear_so_whether_sent_or_not(
    opened: Session, registry: SessionRegistry
) -> None:
    reply = ask(opened)
    registry.close_where(lambda each: True, "key_disabled", Disabled("key", "k1", "lost"))
    error = reply.outcomes[0].error  # type: ignore[union-attr]
    assert (type(error), error.outcome, str(error)) == (Disabled, "unknown", "this key is switched off: lost")
    with pytest.raises(Disabled) as caught:
        ask(opened)
    assert caught.value.outcome is None


async def test_silence_makes_a_call_a_stream_but_not_initialize(session: Session, connection: FakeConnection) -> None:
    hello = session.reply(1, may_stream=True)
    session.request(message("initialize"), hello)
    session.sweep(time.monotonic() + STREAM_AFTER_S + 0.1)
    assert hello.stream is None
    connection.answer({"protocolVersion": "2025-06-18"})
    slow, json_only = ask(session, id_text="1"), ask(session, id_text="2", may_stream=False)
    session.sweep(time.monotonic() + STREAM_AFTER_S + 0.1)
    assert slow.stream is not None
    assert json_only.stream is None


async def test_before_that_it_stays_json(opened: Session) -> None:
    silent = ask(opened)
    opened.sweep(time.monotonic() + STREAM_AFTER_S - 1)
    assert silent.stream is None


@pytest.mark.parametrize(("begun", "streams"), [(0, [False, True]), (1, [True, False]), (None, [False, False])])
async def test_a_call_whose_answer_has_begun_does_not_become_a_stream(
    opened: Session, connection: FakeConnection, begun: int | None, streams: list[bool]
) -> None:
    """Where the answer does not say whose it is, it may be any one's."""
    calls = [ask(opened, id_text="1"), ask(opened, id_text="2")]
    ids = [str(sent["id"]).encode() for sent in connection.sent[-2:]]
    connection.begun = b"" if begun is None else ids[begun]
    opened.sweep(time.monotonic() + STREAM_AFTER_S + 0.1)
    assert [call.stream is not None for call in calls] == streams


async def test_a_call_that_is_never_answered_times_out(opened: Session) -> None:
    reply = ask(opened, may_stream=False)
    opened.sweep(time.monotonic() + 61)
    assert isinstance(reply.outcomes[0].error, BackendTimeout)  # type: ignore[union-attr]
    assert opened.state is SessionState.OPEN


async def test_an_initialize_that_is_never_answered_ends_the_session(session: Session, pool: FakePool) -> None:
    reply = session.reply(1, may_stream=True)
    session.request(message("initialize"), reply)
    session.sweep(time.monotonic() + 31)
    assert isinstance(reply.outcomes[0].error, BackendTimeout)  # type: ignore[union-attr]
    assert pool.leases[0].released == ["initialize_timeout"]


async def test_ages(opened: Session) -> None:
    now = time.monotonic()
    assert why_over(opened, now + 99) is None
    assert why_over(opened, now + 101) == "idle"
    opened.streams.open_listener()
    assert why_over(opened, now + 101) is None  # somebody listens
    assert why_over(opened, now + 1001) == "too_old"


async def test_a_session_that_waits_for_a_process_is_not_idle(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    pool.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registry.connect, session)
        while not pool.waiting:
            await anyio.lowlevel.checkpoint()
        session.last_seen -= 101
        assert why_over(session, time.monotonic()) is None
        pool.gate.set()
    assert why_over(session, time.monotonic()) is None, "its time begins with its process"
    assert why_over(session, time.monotonic() + 101) == "idle"


@pytest.mark.parametrize(("issuer", "reason"), [("key", "credential_expired"), ("https://idp.example.com", None)])
async def test_a_session_ends_with_its_key_and_not_with_a_token(
    registry: SessionRegistry, pool: FakePool, issuer: str, reason: str | None
) -> None:
    """Another key is another principal; a token is refreshed."""
    holder = Principal("acme", issuer, "k9", frozenset({"mcp:connect"}), expires_at=time.time() - 1)
    session = await registry.open(holder, "acme", "echo", "streamable_http")
    await registry.connect(session)
    hello = session.reply(1, may_stream=False)
    session.request(message("initialize"), hello)
    assert why_over(session, time.monotonic()) is None, "what was asked in time is waited for"
    pool.leases[-1].connection.answer({"protocolVersion": "2025-11-25", "capabilities": {}})
    assert why_over(session, time.monotonic()) == reason


async def test_a_session_with_a_call_in_flight_is_not_idle(opened: Session) -> None:
    ask(opened)
    assert why_over(opened, time.monotonic() + 101) is None


async def test_one_reader_listens_at_a_time(opened: Session) -> None:
    reader = opened.streams.read(opened.streams.open_listener())
    with pytest.raises(Conflict):
        opened.streams.open_listener()
    reader.leave()
    opened.streams.open_listener()


async def test_a_reader_that_does_not_keep_up_pauses_the_process(opened: Session, connection: FakeConnection) -> None:
    stream = opened.streams.open_listener()
    for number in range(MAX_EVENTS + 1):
        connection.say(method="notifications/message", params={"data": number})
    assert connection.paused
    await stream.next()
    assert not connection.paused


async def test_a_listen_stream_that_nobody_reads_holds_calls_up_for_a_second(
    opened: Session, connection: FakeConnection
) -> None:
    reader = opened.streams.read(opened.streams.listen)
    reply = ask(opened, may_stream=False)
    for number in range(MAX_EVENTS + 1):
        connection.say(method="notifications/message", params={"data": number})
    now = time.monotonic()
    for part in (0.0, 0.5, 0.99):
        opened.sweep(now + part * UNREAD_S)
    assert connection.paused
    opened.sweep(now + UNREAD_S + 0.01)
    assert not connection.paused
    assert await reader.next() is None
    assert reader.retry_ms is not None
    connection.say(method="notifications/message", params={"data": "later"})
    connection.answer({"n": 1})
    assert len(reply.outcomes) == 1
    assert opened.streams.listen.queued_from == 3  # of what waits for the next reader the oldest went


async def test_where_no_call_waits_a_listen_stream_may_be_read_as_slowly_as_its_reader_likes(
    opened: Session, connection: FakeConnection
) -> None:
    reader = opened.streams.read(opened.streams.listen)
    for number in range(MAX_EVENTS + 1):
        connection.say(method="notifications/message", params={"data": number})
    now = time.monotonic()
    for seconds in (0.0, 0.5 * UNREAD_S, UNREAD_S + 0.01):
        opened.sweep(now + seconds)
    assert connection.paused
    assert await reader.next() is not None
    assert not connection.paused


async def test_a_question_nobody_can_read_is_answered_with_an_error(
    opened: Session, connection: FakeConnection
) -> None:
    connection.say(id="q", method="roots/list")
    for number in range(MAX_EVENTS):
        connection.say(method="notifications/message", params={"data": number})
    assert connection.sent[-1]["id"] == "q"
    assert "error" in connection.sent[-1]


async def test_on_http_sse_everything_is_on_the_one_stream(opened: Session, connection: FakeConnection) -> None:
    stream = opened.streams.open_listener()
    opened.request(message("tools/call", "5"), Listen.STREAM)
    connection.say(method="notifications/message", params={})
    connection.answer({"done": True})
    assert b"notifications/message" in await stream.next()  # type: ignore[operator]
    assert json.loads(await stream.next()) == {"jsonrpc": "2.0", "id": 5, "result": {"done": True}}  # type: ignore[arg-type]


async def test_notifications_pass_and_strange_ones_do_not_break_anything(
    opened: Session, connection: FakeConnection
) -> None:
    note = message("notifications/initialized", None)
    assert isinstance(note, Notification)
    opened.notify(note)
    assert connection.sent[-1]["method"] == "notifications/initialized"
    assert connection.listener is not None
    connection.listener.backend_sent(b"not json")
    connection.listener.backend_sent_too_much(b"x" * 100)


async def test_every_error_a_session_raises_is_ours(opened: Session) -> None:
    request = message("tools/call", "1")
    assert isinstance(request, Request)
    opened.request(request, opened.reply(1, may_stream=True))
    with pytest.raises(GatewayError):
        opened.request(request, opened.reply(1, may_stream=True))


async def test_what_is_no_json_is_told_to_the_process_and_nobody_else(
    opened: Session, connection: FakeConnection
) -> None:
    for line in (b"Welcome!", b'{"jsonrpc":"2.0","method":"notifications/x"}', b'{"level":"info"}', b"{'a': 1}"):
        opened.backend_sent(line)
    assert connection.noise == [b"Welcome!", b"{'a': 1}"]
