"""Which messages are read here, and which by the node that has their session; how a session ends under its calls."""

import gc
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.errors import NodeLost, RoutesUnavailable
from app.http.remote.remote_sessions import RemoteSessions
from app.http.transports.http_sse import HttpSse
from app.http.transports.streamable_http import StreamableHttp
from app.protocol.commands import Answer, Call
from app.sessions.registry import SessionRegistry
from app.sessions.streams.streams import Reply
from tests.http.transports.conftest import Exchanged, Http
from tests.http.transports.test_front import INITIALIZE, MCP, initialize
from tests.sessions.fakes import FakeConnection, FakePool

SESSION: dict[str, Any] = {"mcp_session_id": "0123456789abcdef.nowhere", "mcp_protocol_version": "2025-06-18"}
ENVELOPE = '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
SESSIONLESS = '{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":' + ENVELOPE + "}}"


class There:
    """Another node, which answers whatever it gets, or fails at it."""

    def __init__(self, transport: StreamableHttp | HttpSse, failure: Exception | None) -> None:
        self.bodies: list[bytes] = []
        self._failure = failure
        transport._remote = SimpleNamespace(session=self.session)  # type: ignore[assignment]

    async def session(self, request: Any, session_id: str, body: bytes = b"") -> None:
        self.bodies.append(body)
        if self._failure is not None:
            raise self._failure
        await request.answer(200, b"{}")


def there(http: Http, failure: Exception | None = None, kind: str = "mcp") -> There:
    return There(http.app._endpoints[kind]["POST"].__self__, failure)


@pytest.mark.parametrize(
    "body", [b'{"jsonrpc":"2.0","id":7,"method":"ping"}', b'{"jsonrpc":"2.0","method":"x"}', b"[", b""]
)
async def test_what_is_for_a_session_remote_is_read_there(http: Http, body: bytes) -> None:
    other = there(http)
    assert (await http.ask("POST", MCP, body, **SESSION)).status == 200
    assert other.bodies == [body]


@pytest.mark.parametrize(
    "body", [SESSIONLESS, SESSIONLESS.replace("_meta", "\\u005fmeta"), SESSIONLESS.replace("_meta", "_m\\u0065ta")]
)
async def test_a_message_of_the_sessionless_era_is_read_here_whatever_its_headers_say(http: Http, body: str) -> None:
    other = there(http)
    answer = await http.ask("POST", MCP, body.encode(), **SESSION)
    assert (answer.status, json.loads(answer.body)["id"]) == (400, 7)  # the header's version is another than its own
    assert not other.bodies


async def test_a_request_that_is_lost_remote_fails_under_its_own_id(http: Http) -> None:
    there(http, NodeLost())
    answer = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","id":"a","method":"ping"}', **SESSION)
    got = json.loads(answer.body)
    assert (answer.status, got["id"], got["error"]["code"]) == (200, "a", -32012)


async def test_an_unknown_session_is_not_found_and_what_is_no_message_is_worse(http: Http) -> None:
    request = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","id":7,"method":"ping"}', **SESSION)
    assert (request.status, json.loads(request.body)["id"]) == (404, 7)
    notice = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","method":"notifications/x"}', **SESSION)
    assert (notice.status, json.loads(notice.body)["id"]) == (404, None)
    assert (await http.ask("POST", MCP, b"[", **SESSION)).status == 400


# --- ends


async def sent_to(pool: FakePool, count: int) -> FakeConnection:
    """The process, once it has been sent so many lines."""
    with anyio.fail_after(30):
        while not (pool.leases and len(pool.leases[-1].connection.sent) >= count):
            await anyio.lowlevel.checkpoint()
    return pool.leases[-1].connection


def refuse(connection: FakeConnection) -> None:
    connection.say(id=connection.sent[0]["id"], error={"code": -32602, "message": "no"})


def break_off(connection: FakeConnection) -> None:
    assert connection.listener is not None
    connection.listener.backend_sent(b'{"jsonrpc":"2.0","id":%d,"result":NaN}' % connection.sent[0]["id"])


def say_too_much(connection: FakeConnection) -> None:
    assert connection.listener is not None
    connection.listener.backend_sent_too_much(b'{"jsonrpc":"2.0","id":%d,"result":' % connection.sent[0]["id"])


@pytest.mark.parametrize("logs_first", [True, False])
@pytest.mark.parametrize("end", [refuse, break_off, say_too_much])
async def test_an_initialize_that_comes_to_nothing_leaves_no_session(
    http: Http, registry: SessionRegistry, pool: FakePool, end: Callable[[FakeConnection], None], *, logs_first: bool
) -> None:
    """Also where the answer has become a stream by then."""
    got = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, INITIALIZE, into=got))
        connection = await sent_to(pool, 1)
        if logs_first:
            connection.say(method="notifications/message", params={"level": "info", "data": "well"})
        end(connection)
        with anyio.fail_after(30):
            while not got.body.rstrip().endswith(b"}"):
                await anyio.lowlevel.checkpoint()
        got.left.set()
    assert (got.headers["content-type"].startswith("text/event-stream"), b'"error"' in got.body) == (logs_first, True)
    assert len(registry) == 0
    assert pool.leases[0].released == ["not_initialized"]


@pytest.mark.parametrize("version", [{}, {"mcp_protocol_version": "2025-06-18"}])
async def test_a_call_can_be_cancelled_where_its_session_takes_no_new_one(
    http: Http, registry: SessionRegistry, pool: FakePool, version: dict[str, str]
) -> None:
    """In the second half of a drain. The notification waited with the new calls, and was refused with them."""
    session, other = await initialize(http, pool), there(http)
    call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}'
    cancelled = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, call, mcp_session_id=session))
        connection = await sent_to(pool, 2)
        registry._sessions.hide(next(iter(registry)))
        headers: dict[str, Any] = {"mcp_session_id": session, **version}
        assert (await http.ask("POST", MCP, cancelled, **headers)).status == 202
        assert connection.sent[-1]["params"] == {"requestId": connection.sent[1]["id"]}
        await http.ask("POST", MCP, call, **headers)
        assert other.bodies == [call]
        connection.say(id=connection.sent[1]["id"], result={})


async def test_a_session_over_http_sse_hears_that_a_call_is_cancelled_likewise_and_nothing_else(
    http: Http, registry: SessionRegistry, pool: FakePool
) -> None:
    stream = Exchanged()
    call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}'
    others = [
        b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}',  # which its next owner must hear
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":8}}',
    ]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", "/t/acme/echo/sse", into=stream))
        with anyio.fail_after(30):
            while b"data: " not in stream.body:
                await anyio.lowlevel.checkpoint()
        messages = stream.body.decode().split("data: ")[1].split()[0]
        assert (await http.ask("POST", messages, INITIALIZE)).status == 202
        connection = await sent_to(pool, 1)
        connection.say(id=connection.sent[0]["id"], result={"protocolVersion": "2024-11-05", "capabilities": {}})
        assert (await http.ask("POST", messages, call)).status == 202
        await sent_to(pool, 2)
        registry._sessions.hide(next(iter(registry)))
        other = there(http, kind="messages")
        for each in others:
            await http.ask("POST", messages, each)
        assert other.bodies == others
        cancelled = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'
        assert (await http.ask("POST", messages, cancelled)).status == 202
        assert [each["method"] for each in connection.sent] == ["initialize", "tools/call", "notifications/cancelled"]
        stream.left.set()


async def test_a_call_whose_client_ends_the_session_is_answered_as_a_stream(http: Http, pool: FakePool) -> None:
    """An error as JSON is what the official Python client stumbles over when it closes."""
    session = await initialize(http, pool)
    got = Exchanged()
    call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}'
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, call, into=got, mcp_session_id=session))
        await sent_to(pool, 2)
        assert (await http.ask("DELETE", MCP, mcp_session_id=session)).status == 204
    assert (got.status, got.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    (data,) = [line for line in got.body.split(b"\n") if line.startswith(b"data: {")]
    error = json.loads(data.removeprefix(b"data: "))
    assert (error["id"], error["error"]["data"]["reason"]) == (7, "call_cut_off")


# --- what stays


def call_of(number: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}' % number


def parts_of_calls() -> int:
    """How many there are; some may be kept, to be asked for again."""
    return sum(isinstance(each, Answer | Call | Reply) for each in gc.get_objects())


@pytest.mark.parametrize("kind", ["answer", "error", "stream", "batch"])
async def test_of_an_answered_call_nothing_waits_for_the_garbage_collection(
    http: Http, pool: FakePool, kind: str
) -> None:
    """It would run twice as often, in the middle of other calls."""
    session = await initialize(http, pool, version="2025-03-26")
    connection = pool.leases[-1].connection
    gc.collect()
    gc.disable()
    try:
        for number in range(2, 12):
            body = b"[%b]" % call_of(number) if kind == "batch" else call_of(number)
            got, count = Exchanged(), len(connection.sent)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: http.ask("POST", MCP, body, into=got, mcp_session_id=session))  # noqa: B023
                await sent_to(pool, count + 1)
                if kind == "stream":
                    connection.say(method="notifications/message", params={"level": "info", "data": "well"})
                if kind == "error":
                    connection.say(id=connection.sent[-1]["id"], error={"code": -32602, "message": "no"})
                else:
                    connection.answer()
            assert got.status == 200
        before, _, after = parts_of_calls(), gc.collect(), parts_of_calls()
    finally:
        gc.enable()
    assert before == after


async def test_who_has_no_session_yet_is_not_told_that_it_is_not_lost(
    http: Http, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(*_: object) -> None:
        raise RoutesUnavailable

    monkeypatch.setattr(registry, "open", is_away)
    monkeypatch.setattr(RemoteSessions, "session", is_away)
    got = await http.ask("POST", MCP, INITIALIZE)
    told = json.loads(got.body)["error"]
    assert (got.status, told["data"]["reason"], told["message"].partition(":")[0]) == (
        503, "routes_unavailable", "Cannot open a session now",
    )  # fmt: skip
    assert "not lost" not in told["data"]["hint"]
    assert "retry-after" in got.headers
    got = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', **SESSION)
    assert "not lost" in json.loads(got.body)["error"]["data"]["hint"]
