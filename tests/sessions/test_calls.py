"""Calls of one session above `calls_per_session`: they wait their turn, and what ends meanwhile is never sent."""

import json
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.domain import Limits, Principal
from app.errors import (
    BackendBusy,
    CredentialExpired,
    GatewayError,
    QuotaExceeded,
    RateLimited,
    RequestCancelled,
    RoutesUnavailable,
    SessionNotFound,
    ShuttingDown,
)
from app.protocol.commands import Answer, Failed
from app.protocol.exchange import MIN_WAITING
from app.protocol.jsonrpc import Response
from app.protocol.questions import QUESTION_S
from app.sessions._calls import error_type_of
from app.sessions.endings import HANDED_OVER, SHUTDOWN, TAKEN_OVER
from app.sessions.loop_pause import GAP_S, StandstillGuard
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams.streams import Reply
from tests.sessions.fakes import FakeConnection, FakePool, FakeStore
from tests.sessions.rig import SPEC
from tests.sessions.test_session import message


class Rig:
    """An open session whose process works on so many calls at once."""

    def __init__(self, session: Session, connection: FakeConnection) -> None:
        self.session, self.connection = session, connection

    def ask(self, name: str, method: str = "tools/call", *, expires_at: float | None = None) -> Reply:
        reply = self.session.reply(1, may_stream=True, expires_at=expires_at)
        self.session.request(message(method, json.dumps(name), name=name), reply)
        return reply

    def ask_all(self, names: str) -> list[Reply]:
        return [self.ask(name) for name in names]

    def cancel(self, name: str) -> None:
        self.session.notify(message("notifications/cancelled", None, requestId=name))

    def answer(self, name: str) -> None:
        self.connection.answer(to=[each["params"].get("name") for each in self.connection.sent].index(name))

    @property
    def sent(self) -> str:
        return "".join(each["params"]["name"] for each in self.connection.sent if each.get("method") == "tools/call")


class Rigs:
    def __init__(self, registry: SessionRegistry, store: FakeStore, pool: FakePool, principal: Principal) -> None:
        self._registry, self._store, self._pool, self._principal = registry, store, pool, principal

    async def open(self, calls: int, **limits: Any) -> Rig:
        self._store.limits = replace(Limits(), requests_per_second=None, **limits)
        self._store.specs[SPEC.key] = replace(SPEC, calls_per_session=calls)
        session = await self._registry.open(self._principal, "acme", "echo", "streamable_http")
        await self._registry.connect(session)
        connection = self._pool.leases[-1].connection
        session.request(message("initialize"), session.reply(1, may_stream=True))
        connection.answer({"protocolVersion": "2025-03-26", "capabilities": {}})
        return Rig(session, connection)


@pytest.fixture
def rigs(registry: SessionRegistry, store: FakeStore, pool: FakePool, principal: Principal) -> Rigs:
    return Rigs(registry, store, pool, principal)


def error_of(reply: Reply) -> GatewayError:
    (outcome,) = reply.outcomes if reply.stream is None else reply.stream.take_all()
    assert isinstance(outcome, Failed)
    return outcome.error


async def test_calls_above_the_limit_are_sent_in_order_as_others_end(rigs: Rigs) -> None:
    rig = await rigs.open(2)
    replies = rig.ask_all("abcdef")
    assert (rig.sent, rig.session.gate.in_flight, rig.session.exchange.in_flight) == ("ab", 6, 6)
    rig.answer("b")
    assert rig.sent == "abc"
    rig.cancel("a")
    rig.session.sweep(time.monotonic() + 10)  # nobody has answered it
    assert rig.sent == "abcd"
    for name in "cdef":
        rig.answer(name)
    assert rig.sent == "abcdef"
    assert all(each.outcome.done() for each in replies)
    assert rig.session.gate.in_flight == 0


async def test_above_the_bound_a_call_is_refused_and_counts_nowhere(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    rig.ask_all("abcdefghi")
    assert rig.session.exchange.in_flight == 1 + MIN_WAITING
    with pytest.raises(QuotaExceeded):
        rig.ask("j")
    assert rig.session.gate.in_flight == 1 + MIN_WAITING


async def test_a_call_that_is_cancelled_while_it_waits_is_never_sent(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    _, second, third = rig.ask_all("abc")
    rig.cancel("b")
    error = error_of(second)
    assert (type(error), error.outcome) == (RequestCancelled, None)
    rig.answer("a")
    assert rig.sent == "ac"
    assert [each["method"] for each in rig.connection.sent] == ["initialize", "tools/call", "tools/call"]
    rig.answer("c")
    assert isinstance(third.outcomes[0], Answer)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("deleted", SessionNotFound),
        ("key_revoked", SessionNotFound),
        (SHUTDOWN, ShuttingDown),
        (HANDED_OVER, ShuttingDown),
        (TAKEN_OVER, RoutesUnavailable),
    ],
)
async def test_what_waits_when_the_session_ends_was_not_sent_and_says_so(
    rigs: Rigs, reason: str, error: type[GatewayError]
) -> None:
    rig = await rigs.open(1)
    running, waiting = rig.ask_all("ab")
    rig.session.close(reason)
    assert rig.sent == "a"
    assert error_of(running).outcome == "unknown"
    refused = error_of(waiting)
    assert (type(refused), refused.outcome) == (error, None)


async def test_what_waits_when_the_process_dies_was_not_sent(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    _, waiting = rig.ask_all("ab")
    rig.connection.die()
    assert rig.sent == "a"
    assert isinstance(error_of(waiting), SessionNotFound)


async def test_a_call_whose_credential_has_expired_while_it_waited_is_not_sent(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    rig.ask("a")
    expired = rig.ask("b", expires_at=time.time() - 1)
    rig.ask("c", expires_at=time.time() + 1000)
    rig.answer("a")
    assert rig.sent == "ac"
    assert isinstance(error_of(expired), CredentialExpired)


async def test_what_cannot_be_written_when_its_turn_comes_can_be_sent_again(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    _, *waiting = rig.ask_all("abc")
    rig.connection.is_busy = True
    rig.answer("a")
    assert [type(error_of(each)) for each in waiting] == [BackendBusy, BackendBusy]
    assert [error_of(each).outcome for each in waiting] == [None, None]
    assert rig.session.gate.in_flight == 0


async def test_a_process_that_answers_while_it_is_written_to_is_no_recursion(
    rigs: Rigs, registry: SessionRegistry
) -> None:
    rig = await rigs.open(1024)
    registry.standstill.ticked_at += 1000  # on a busy machine this takes longer than a node may stand still
    replies = [rig.ask(f"{number} ") for number in range(2048)]

    def answer_at_once(line: bytes) -> None:
        rig.connection.send(line)
        rig.connection.answer()

    rig.session.connection.send = answer_at_once
    rig.answer("0 ")
    for number in range(1, 1024):
        rig.answer(f"{number} ")
    assert all(isinstance(each.outcomes[0], Answer) for each in replies)


async def test_nobodys_turn_comes_before_it_is_known_that_the_session_is_still_ours(
    rigs: Rigs, registry: SessionRegistry, guard: StandstillGuard
) -> None:
    rig = await rigs.open(1)
    rig.ask_all("ab")
    registry.standstill.ticked_at -= 2 * GAP_S
    rig.session.sweep(time.monotonic() + 1000)  # the first is overdue
    assert rig.sent == "a"
    await guard.prove()
    assert rig.sent == "ab"


async def test_a_batch_fits_whole_or_not_at_all(rigs: Rigs) -> None:
    rig = await rigs.open(4, in_flight=10)
    rig.ask_all("ab")
    rig.session.calls.require_room(8, 8, 1000)
    with pytest.raises(QuotaExceeded, match="tenant"):
        rig.session.calls.require_room(9, 9, 1000)
    rig.session.gate.configure(Limits(in_flight=None, requests_per_second=1.0, burst=10))
    rig.session.calls.require_room(10, 10, 1000)
    with pytest.raises(QuotaExceeded, match="a session"):
        rig.session.calls.require_room(10, 11, 1000)
    with pytest.raises(RateLimited):
        rig.session.calls.require_room(11, 10, 1000)
    assert rig.session.gate.in_flight == 2


async def test_a_question_waits_while_its_stream_is_read_and_not_much_longer(rigs: Rigs) -> None:
    rig = await rigs.open(1)
    reply = rig.ask("a")
    rig.connection.say(id="q", method="elicitation/create", params={})
    assert reply.stream is not None
    now = time.monotonic()
    for hours in range(1, 20):
        rig.session.sweep(now + 3600.0 * hours)
    assert reply.stream.is_spent is False
    assert len(rig.connection.sent) == 2
    reply.stream.detach()
    rig.session.sweep(now + 3600.0 * 19 + QUESTION_S)
    assert [each.get("id", each.get("method")) for each in rig.connection.sent[2:]] == ["q", "notifications/cancelled"]


@pytest.mark.parametrize(
    ("transport", "asked", "counted"),
    [
        ("streamable_http", "2025-11-25", "2025-11-25"),
        ("streamable_http", "1999-01-01", "2025-03-26"),
        ("streamable_http", None, "2025-03-26"),
        ("sse", "2025-06-18", "2025-06-18"),
        ("sse", "1999-01-01", "2024-11-05"),
    ],
)
async def test_a_failed_handshake_counts_with_the_revision_that_the_client_asked_for(
    registry: SessionRegistry, pool: FakePool, principal: Principal, transport: str, asked: str | None, counted: str
) -> None:
    session = await registry.open(principal, "acme", "echo", transport)
    await registry.connect(session)
    params = {} if asked is None else {"protocolVersion": asked}
    session.request(message("initialize", **params), session.reply(1, may_stream=True))
    connection = pool.leases[-1].connection
    connection.say(id=connection.sent[0]["id"], error={"code": -32602, "message": "no"})
    (series,) = [each for each in session._metrics.server_operations._series if each[0] == "initialize"]
    assert series == ("initialize", "-32602", transport, counted)


FAILED = b'{"content":[{"type":"text","text":"%b"}],"isError":true,"_meta":{"by":"%b"}}' % (b"x" * 300, b"y" * 100)


@pytest.mark.parametrize(
    ("method", "result", "error_type"),
    [
        ("tools/call", FAILED, "tool_error"),
        ("tasks/result", FAILED, "tool_error"),
        ("tasks/get", b'{"taskId":"t","status":"completed","result":%b}' % FAILED, "tool_error"),
        ("tasks/get", b'{"taskId":"t","status":"working"}', ""),
        ("tools/call", FAILED.replace(b"true", b"false"), ""),
        ("resources/read", FAILED, ""),
    ],
)
def test_a_tool_that_says_that_it_has_failed_is_no_success(method: str, result: bytes, error_type: str) -> None:
    assert error_type_of(method, Response(b"1", "result", msgspec.Raw(result))) == error_type
