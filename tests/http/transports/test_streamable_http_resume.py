"""GET with Last-Event-ID, and what streams begin and end with, in process."""

import re

import anyio
import anyio.lowlevel
import pytest

from app.sessions.registry import SessionRegistry
from tests.http.transports.conftest import Exchanged, Http
from tests.sessions.fakes import FakeConnection, FakePool

MCP = "/t/acme/echo/mcp"
CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}'
ID = re.compile(rb"^id: (.+)$", re.MULTILINE)


async def initialize(http: Http, pool: FakePool, version: str) -> tuple[str, FakeConnection]:
    hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"%b"}}' % version.encode()
    got, before = Exchanged(), len(pool.leases)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, hello, into=got))
        await until(lambda: len(pool.leases) > before and bool(pool.leases[-1].connection.sent))
        pool.leases[-1].connection.answer({"protocolVersion": version})
    return got.headers["mcp-session-id"], pool.leases[-1].connection


async def until(condition) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def broken_call(http: Http, connection: FakeConnection, session: str) -> Exchanged:
    """A call whose client hears of some progress and is gone before the answer."""
    got, calls = Exchanged(), len(connection.sent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, CALL, into=got, mcp_session_id=session))
        await until(lambda: len(connection.sent) > calls)
        connection.say(method="notifications/message", params={"data": "under way"})
        await until(lambda: b"under way" in got.body)
        got.left.set()
    return got


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("2025-03-26", b"^: open\n\nevent: message\nid: \\w+-1\n"),
        ("2025-06-18", b"^: open\n\nevent: message\nid: \\w+-1\n"),
        ("2025-11-25", b"^id: \\w+-0\ndata: \n\nevent: message\nid: \\w+-1\n"),
    ],
)
async def test_a_broken_call_is_answered_on_resume(http: Http, pool: FakePool, version: str, first: bytes) -> None:
    session, connection = await initialize(http, pool, version)
    broken = await broken_call(http, connection, session)
    assert re.match(first, broken.body)
    seen = ID.findall(broken.body)[-1]
    connection.answer({"n": 1})
    resumed = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=seen.decode())
    assert (resumed.status, resumed.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert resumed.body.count(b'"id":7') == 1
    assert b"under way" not in resumed.body
    assert resumed.body.startswith(b"id: %b\ndata: \n\n" % seen) is (version == "2025-11-25")


@pytest.mark.parametrize("value", ["", "7", "../../etc", "0123456789ab-01", "0123456789ab-1, 0123456789ab-2"])
async def test_a_malformed_event_id_is_refused(http: Http, pool: FakePool, value: str) -> None:
    session, _ = await initialize(http, pool, "2025-11-25")
    got = Exchanged()
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer alice"), (b"mcp-session-id", session.encode())]
    scope = {"type": "http", "method": "GET", "path": MCP, "query_string": b""}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        got.status = message.get("status", got.status)
        got.body += message.get("body", b"")

    await http.app({**scope, "headers": [*headers, (b"last-event-id", value.encode())]}, receive, send)
    assert got.status == 400
    assert b"invalid_event_id" in got.body


async def test_a_strangers_event_id_is_the_strangers_404(http: Http, pool: FakePool) -> None:
    session, connection = await initialize(http, pool, "2025-11-25")
    seen = ID.findall((await broken_call(http, connection, session)).body)[-1].decode()
    got = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=seen, authorization="Bearer eve")
    assert got.status == 404


async def test_an_id_that_names_nothing_is_refused_and_takes_no_stream_over(http: Http, pool: FakePool) -> None:
    session, connection = await initialize(http, pool, "2025-11-25")
    listening = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", MCP, into=listening, mcp_session_id=session))
        await until(lambda: listening.body)
        got = await http.ask("GET", MCP, mcp_session_id=session, last_event_id="0123456789ab-3")
        assert (got.status, b"invalid_event_id" in got.body) == (400, True)
        connection.say(method="notifications/tools/list_changed")
        await until(lambda: b"list_changed" in listening.body)
        listening.left.set()


async def test_the_id_of_another_session_is_refused(http: Http, pool: FakePool) -> None:
    other, connection = await initialize(http, pool, "2025-11-25")
    seen = ID.findall((await broken_call(http, connection, other)).body)[-1].decode()
    session, _ = await initialize(http, pool, "2025-11-25")
    got = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=seen)
    assert (got.status, b"invalid_event_id" in got.body) == (400, True)


async def test_the_last_id_of_a_finished_stream_says_that_there_is_no_more(http: Http, pool: FakePool) -> None:
    """As in HTML: 204 ends a client's coming back. The TypeScript SDK 1.32 comes back after each call that became a
    stream and ended with an error; with the listen stream for an answer it took that over from itself, for ever."""
    session, connection = await initialize(http, pool, "2025-11-25")
    seen = ID.findall((await broken_call(http, connection, session)).body)[-1].decode()
    connection.answer({"n": 1})
    resumed = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=seen)
    last = ID.findall(resumed.body)[-1].decode()
    for _ in range(2):
        got = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=last)
        assert (got.status, got.body) == (204, b"")
    again = await http.ask("GET", MCP, mcp_session_id=session, last_event_id=seen)
    assert (again.status, again.body.count(b'"id":7')) == (200, 1)


async def test_an_id_of_the_listen_stream_always_goes_on_with_it(http: Http, pool: FakePool) -> None:
    """The official Python client has no listen stream any more once it was refused twice."""
    session, connection = await initialize(http, pool, "2025-11-25")
    listening, second = Exchanged(), Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", MCP, into=listening, mcp_session_id=session))
        await until(lambda: listening.body)
        later = ID.findall(listening.body)[0].decode().replace("-0", "-9")  # which this node has not given out
        tasks.start_soon(lambda: http.ask("GET", MCP, into=second, mcp_session_id=session, last_event_id=later))
        await until(lambda: second.body)
        connection.say(method="notifications/tools/list_changed")
        await until(lambda: b"list_changed" in second.body)
        assert b"list_changed" not in listening.body
        newer = Exchanged()  # the same client, whose first connection is dead without our knowing
        place = ID.findall(listening.body)[0].decode()
        tasks.start_soon(lambda: http.ask("GET", MCP, into=newer, mcp_session_id=session, last_event_id=place))
        await until(lambda: b"list_changed" in newer.body)
        newer.left.set()


@pytest.mark.parametrize(("version", "last"), [("2025-06-18", b"\n\nretry: \\d{4}\n$"), ("2025-11-25", b"")])
async def test_a_drain_ends_streams_with_a_time_to_come_back(
    http: Http, pool: FakePool, registry: SessionRegistry, version: str, last: bytes
) -> None:
    session, connection = await initialize(http, pool, version)
    listening = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", MCP, into=listening, mcp_session_id=session))
        await until(lambda: listening.body)
        connection.say(method="notifications/tools/list_changed")
        await until(lambda: b"list_changed" in listening.body)
        await registry.drain(1)
    place = ID.findall(listening.body)[-1]
    assert place.endswith(b"-1")
    assert re.search(last or b"\n\nid: %b\nretry: [1-5]\\d{3}\ndata: \n\n$" % place, listening.body)


async def test_http_sse_has_no_event_ids(http: Http, pool: FakePool) -> None:
    stream = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("GET", "/t/acme/echo/sse", into=stream))
        await until(lambda: b"sessionId=" in stream.body)
        endpoint = re.search(rb"data: (\S+)", stream.body)[1].decode()  # type: ignore[index]
        hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}'
        await http.ask("POST", endpoint, hello)
        pool.leases[-1].connection.answer({"protocolVersion": "2024-11-05"})
        await until(lambda: b'"id":1' in stream.body)
        stream.left.set()
    assert not ID.search(stream.body)
