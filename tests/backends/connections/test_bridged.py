"""BridgedConnection: what becomes of a call when the server behind the bridge cannot be written to, or writes
nonsense."""

import json
from typing import Any

import anyio
import pytest

from app.backends.connections._bridged import BridgedConnection
from app.domain import Principal
from app.errors import BackendBusy, CallCutOff, GatewayError, InvalidResponse, ResponseTooLarge
from app.protocol.commands import Answer, Failed
from app.protocol.jsonrpc import Notification, Request, parse_client
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams.streams import Reply
from tests.sessions.fakes import FakeConnection, FakePool

REFUSAL = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
LATER = {"resultType": "input_required", "requestState": "s"}
QUESTION = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}


def message(method: str, message_id: int, **params: Any) -> Request:
    body = {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}
    found = parse_client(json.dumps(body).encode())
    assert isinstance(found, Request)
    return found


@pytest.fixture
async def session(registry: SessionRegistry, principal: Principal) -> Session:
    """An old client's, in front of a server that speaks 2026-07-28 only."""
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    return session


@pytest.fixture
async def connection(session: Session, pool: FakePool) -> FakeConnection:
    connection = pool.leases[-1].connection
    hello = message("initialize", 0, protocolVersion="2025-11-25", capabilities={"elicitation": {}})
    session.request(hello, session.reply(1, may_stream=False))
    connection.say(id=connection.sent[-1]["id"], error=REFUSAL)
    assert connection.sent[-1]["method"] == "server/discover"
    connection.answer({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
    session.notify(Notification("notifications/initialized", None))
    return connection


def call(session: Session, call_id: int = 1) -> Reply:
    reply = session.reply(1, may_stream=True)
    session.request(message("tools/call", call_id, name="x"), reply)
    return reply


async def ended(reply: Reply) -> GatewayError:
    """The error that a call came to, as JSON or at the end of its stream."""
    with anyio.fail_after(30):
        await reply.outcome
        outcome: Any = reply.outcomes[0] if reply.stream is None else b""
        while isinstance(outcome, bytes):
            assert reply.stream is not None
            outcome = await reply.stream.next()
    assert isinstance(outcome, Failed)
    return outcome.error


async def test_a_call_that_cannot_be_written_is_busy_and_forgotten(
    session: Session, connection: FakeConnection
) -> None:
    connection.is_busy = True
    with pytest.raises(BackendBusy):
        call(session)
    connection.is_busy = False
    reply = call(session)
    connection.answer({"content": [], "resultType": "complete"})
    assert isinstance(reply.outcomes[0], Answer)


async def test_a_call_that_fails_below_after_it_was_sent_says_why(session: Session, connection: FakeConnection) -> None:
    """A process that others share may be busy later than at once (see CallListener)."""
    reply = call(session)
    listener: Any = connection.listener
    listener.backend_failed(str(connection.sent[-1]["id"]).encode(), BackendBusy())
    assert isinstance(await ended(reply), BackendBusy)
    connection.answer({"content": []})  # too late: nobody hears it
    assert not session.exchange.calls


async def asked(session: Session, connection: FakeConnection) -> tuple[Reply, bytes]:
    """A call whose client has been asked something, and our id of the question."""
    reply = call(session)
    connection.answer({"resultType": "input_required", "inputRequests": {"k": QUESTION}, "requestState": "s"})
    with anyio.fail_after(30):
        await reply.outcome
        assert reply.stream is not None
        item = await reply.stream.next()
    assert isinstance(item, bytes)
    return reply, str(json.loads(item)["id"]).encode()


async def next_round(connection: FakeConnection) -> None:
    """The server wants to be asked again, and is."""
    sent = len(connection.sent)
    connection.answer(LATER)
    with anyio.fail_after(30):
        while len(connection.sent) == sent:
            await anyio.sleep(0.001)


def answer(session: Session, question: bytes) -> None:
    response = parse_client(b'{"jsonrpc":"2.0","id":%b,"result":{"action":"decline"}}' % question)
    session.respond(response)  # type: ignore[arg-type]


async def test_the_next_round_of_a_call_fails_with_its_reason_too(session: Session, connection: FakeConnection) -> None:
    reply, question = await asked(session, connection)
    connection.is_busy = True
    answer(session, question)  # which has been taken; it is the call that comes to nothing
    assert isinstance(await ended(reply), CallCutOff)
    assert not session.exchange.calls


async def test_a_later_round_that_fails_below_is_its_calls_failure(
    session: Session, connection: FakeConnection
) -> None:
    reply, question = await asked(session, connection)
    answer(session, question)
    listener: Any = connection.listener
    listener.backend_failed(json.dumps(connection.sent[-1]["id"]).encode(), BackendBusy())
    error = await ended(reply)
    assert (type(error), error.outcome) == (CallCutOff, "unknown")  # its first round was sent


async def test_a_round_without_questions_that_cannot_be_written_ends_its_call(
    session: Session, connection: FakeConnection
) -> None:
    reply = call(session)
    connection.is_busy = True
    connection.answer(LATER)
    assert isinstance(await ended(reply), CallCutOff)


async def test_an_overlong_or_broken_answer_of_a_later_round_ends_its_call_and_no_other(
    session: Session, connection: FakeConnection
) -> None:
    other = call(session, 2)
    for number, broken in enumerate(("long", "broken"), 3):
        reply = call(session, number)
        await next_round(connection)
        name = json.dumps(connection.sent[-1]["id"]).encode()
        assert connection.listener is not None
        if broken == "long":
            connection.listener.backend_sent_too_much(b'{"jsonrpc":"2.0","id":%b,"result":' % name)
        else:
            connection.listener.backend_sent(b'{"jsonrpc":"2.0","id":%b,"result":1,"error":2}' % name)
        assert isinstance(await ended(reply), ResponseTooLarge if broken == "long" else InvalidResponse)
    assert not other.outcomes


async def test_a_session_that_ends_in_a_pause_sends_nothing_after_it(
    session: Session, connection: FakeConnection
) -> None:
    reply = call(session)
    connection.answer(LATER)
    assert isinstance(connection.listener, BridgedConnection)
    (timer,) = connection.listener._pauses.values()
    session.close("deleted")
    assert isinstance(await ended(reply), CallCutOff)
    assert timer.cancelled()


async def test_what_fails_without_being_a_call_is_nobodys_error(session: Session, connection: FakeConnection) -> None:
    listener: Any = connection.listener
    listener.backend_failed(b'"listen-1"', BackendBusy())
    reply = call(session)
    connection.answer({"content": []})
    assert isinstance(reply.outcomes[0], Answer)
