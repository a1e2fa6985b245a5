"""The Front and the transports behind it, in process: what every request has to pass."""

import asyncio
import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.exceptions import HTTPException

from app.sessions.registry import SessionRegistry
from tests.http.transports.conftest import LIMIT, Exchanged, FakeAuthenticator, Http
from tests.sessions.fakes import FakePool

MCP = "/t/acme/echo/mcp"
INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}'


async def initialize(http: Http, pool: FakePool, version: str = "2025-06-18") -> str:
    got = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, INITIALIZE, into=got))
        while not (pool.leases and pool.leases[-1].connection.sent):
            await anyio.lowlevel.checkpoint()
        pool.leases[-1].connection.answer({"protocolVersion": version})
    assert got.status == 200
    return got.headers["mcp-session-id"]


async def test_a_session_is_opened_used_and_deleted(http: Http, pool: FakePool) -> None:
    session = await initialize(http, pool)
    note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert (await http.ask("POST", MCP, note, mcp_session_id=session)).status == 202
    none = await http.ask("POST", MCP, note, more="mcp-session-id: ")
    assert (none.status, json.loads(none.body)["error"]["data"]["reason"]) == (400, "session_required")
    assert (await http.ask("DELETE", MCP, mcp_session_id=session)).status == 204
    assert (await http.ask("DELETE", MCP, mcp_session_id=session)).status == 404
    assert pool.leases[0].released == ["deleted"]


async def test_a_client_that_leaves_during_initialize_leaves_no_session(
    http: Http, registry: SessionRegistry, pool: FakePool
) -> None:
    got = Exchanged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: http.ask("POST", MCP, INITIALIZE, into=got))
        while not (pool.leases and pool.leases[-1].connection.sent):
            await anyio.lowlevel.checkpoint()
        assert len(registry) == 1
        got.left.set()
    assert len(registry) == 0
    assert pool.leases[0].released == ["not_initialized"]
    assert got.status == 0


async def test_a_stranger_gets_the_same_bytes_as_for_an_unknown_session(http: Http, pool: FakePool) -> None:
    session = await initialize(http, pool)
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    admin_of_another = await http.ask("POST", MCP, ping, mcp_session_id=session, authorization="Bearer eve")
    unknown = await http.ask("POST", "/t/acme/nothing/mcp", ping, mcp_session_id="x", authorization="Bearer eve")
    assert (admin_of_another.status, admin_of_another.body) == (unknown.status, unknown.body)
    assert unknown.status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer bob"}, 403),
        ({"authorization": "Bearer eve"}, 404),
        ({"host": "evil.example.com"}, 421),
        ({"origin": "https://evil.example.com"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"accept": "text/html"}, 406),
        ({"content_encoding": "gzip"}, 415),
        ({"content_length": "10000000"}, 413),
        ({"repeat": "authorization"}, 400),
        ({"repeat": "host"}, 400),
    ],
)
async def test_what_is_refused_starts_nothing(http: Http, pool: FakePool, headers: Any, status: int) -> None:
    got = await http.ask("POST", MCP, INITIALIZE, **headers)
    assert got.status == status
    assert "reason" in json.loads(got.body)["error"]["data"]
    assert pool.leases == []
    if status in (401, 403) and "authorization" in headers:
        assert got.headers["www-authenticate"].startswith("Bearer")


async def test_a_body_in_pieces_is_joined_and_still_limited(http: Http, pool: FakePool) -> None:
    pieces = [b"{", b'"jsonrpc":"2.0",', b'"id":7,"method":"tools/list"}']
    assert (await http.ask("POST", MCP, *pieces)).status == 400  # complete, but without a session
    too_long = await http.ask("POST", MCP, *[b"x" * 1024] * 4)
    assert too_long.status == 413
    assert too_long.headers["connection"] == "close"


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_answered(http: Http) -> None:
    got = Exchanged()
    got.left.set()

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        raise AssertionError("nobody is there")

    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer alice"), (b"content-type", b"application/json")]
    await http.app(
        {"type": "http", "method": "POST", "path": MCP, "query_string": b"", "headers": headers}, receive, send
    )


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", MCP, "POST, GET, DELETE"),
        ("POST", "/t/acme/echo/sse", "GET"),
        ("GET", "/t/acme/echo/messages", "POST"),
        ("GET", MCP, "POST"),
        ("DELETE", MCP, "POST"),
    ],
)
async def test_a_wrong_method_hears_the_right_ones(http: Http, method: str, path: str, allow: str) -> None:
    for spelling in (path, path + "/"):
        got = await http.ask(method, spelling)
        assert (got.status, got.headers["allow"]) == (405, allow)


@pytest.mark.parametrize(
    "path", ["/t/", "/t/acme", "/t/acme/echo", "/t/acme/echo/other", "/t/acme/echo/mcp/more", "/t//echo/mcp/x"]
)
async def test_other_addresses_are_not_there(http: Http, path: str) -> None:
    assert (await http.ask("POST", path, b"{}")).status == 404


async def test_a_browser_gets_its_preflight_and_its_headers(http: Http) -> None:
    origin = "https://app.example.org"
    asked = await http.ask(
        "OPTIONS", MCP, origin=origin, authorization="", access_control_request_headers="mcp-param-x, x-other"
    )
    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == origin
    assert {"mcp-param-x", "X-API-Key"} <= set(asked.headers["access-control-allow-headers"].split(", "))
    assert "x-other" not in asked.headers["access-control-allow-headers"]
    refused = await http.ask("POST", MCP, INITIALIZE, origin=origin, authorization="")
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == origin
    assert "Mcp-Session-Id" in refused.headers["access-control-expose-headers"]


async def test_without_an_origin_there_are_no_cors_headers(http: Http) -> None:
    got = await http.ask("POST", MCP, INITIALIZE, authorization="")
    assert not any(name.startswith("access-control") for name in got.headers)


async def test_everything_else_goes_to_the_application_behind_with_one_spelling(http: Http) -> None:
    assert (await http.ask("GET", "/api/v1/tenants/")).body == b"/api/v1/tenants 0"
    assert (await http.ask("POST", "/api/v1/tenants", b"x" * 100)).body == b"/api/v1/tenants 100"
    assert (await http.ask("GET", "/api/v1/tenants", host="evil.example.com")).status == 421
    assert (await http.ask("GET", "/livez", host="10.0.0.7")).status == 200


async def test_a_body_for_the_application_behind_is_limited_too(http: Http) -> None:
    assert (await http.ask("POST", "/api/v1/tenants", content_length="99999")).status == 413
    with pytest.raises(HTTPException) as caught:
        await http.ask("POST", "/api/v1/tenants", *[b"x" * LIMIT] * 2)
    assert caught.value.status_code == 413


async def test_a_version_nobody_knows_hears_which_there_are(http: Http) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {}}
    probe = {"jsonrpc": "2.0", "id": "probe", "method": "server/discover", "params": {"_meta": meta}}
    headers: Any = {"mcp_protocol_version": "2099-01-01", "mcp_method": "server/discover"}
    got = await http.ask("POST", MCP, json.dumps(probe).encode(), **headers)
    error = json.loads(got.body)
    assert (got.status, error["id"], error["error"]["code"]) == (400, "probe", -32022)
    assert {"2026-07-28", "2025-11-25"} <= set(error["error"]["data"]["supported"])


async def test_the_revision_that_has_no_get_hears_that(http: Http, pool: FakePool) -> None:
    session = await initialize(http, pool)
    got = await http.ask("GET", MCP, mcp_session_id=session, mcp_protocol_version="2026-07-28")
    assert (got.status, got.headers["allow"]) == (405, "POST")


async def test_a_question_mark_in_the_messages_address_must_name_one_session(http: Http) -> None:
    for query, status in (("", 400), ("?sessionId=a&sessionId=b", 400), ("?sessionId=a", 404)):
        assert (await http.ask("POST", "/t/acme/echo/messages" + query, b"{}")).status == status


@pytest.mark.parametrize("path", ["/api/v1/tenants", "/metrics", "/.well-known/x", "/console"])
@pytest.mark.parametrize("header", ["host", "authorization", "content-type"])
async def test_a_header_that_decides_something_stands_once_everywhere(http: Http, path: str, header: str) -> None:
    answer = await http.ask("GET", path, repeat=header)
    assert (answer.status, json.loads(answer.body)["reason"]) == (400, "repeated_header")


@pytest.mark.parametrize(
    ("key", "authorization", "status"),
    [("alice", "", 200), ("alice", "Bearer alice", 200), ("nobody", "", 401), ("", "", 401), ("eve", "", 404),
     ("alice", "Bearer bob", 400), ("nobody", "Bearer alice", 400), ("alice", "Basic YTpi", 200),
     ("", "Bearer alice \t", 200), ("alice\t", "Bearer ", 200)],
)  # fmt: skip
async def test_a_key_is_taken_from_either_header(
    http: Http, pool: FakePool, key: str, authorization: str, status: int
) -> None:
    session = await initialize(http, pool)
    note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    got = await http.ask("POST", MCP, note, mcp_session_id=session, x_api_key=key, authorization=authorization)
    assert got.status == (202 if status == 200 else status)
    got = await http.ask("POST", MCP, note, mcp_session_id=f"{session} ", x_api_key=key, authorization=authorization)
    assert got.status == (202 if status == 200 else status)
    if status == 400:
        assert json.loads(got.body)["error"]["data"]["reason"] == "two_credentials"
        assert (await http.ask("GET", "/metrics", x_api_key=key, authorization=authorization)).status == 400


async def test_lines_of_accept_are_one_list(http: Http, pool: FakePool) -> None:
    session = await initialize(http, pool)
    got = await http.ask("GET", MCP, mcp_session_id=session, accept="application/json", more="accept: text/html")
    assert got.status == 406
    stream = Exchanged()
    stream.left.set()
    more = "accept: application/json"
    await http.ask("GET", MCP, into=stream, mcp_session_id=session, accept="text/event-stream", more=more)
    assert stream.status == 200


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", 200), ("10.0.0.7:8080", 200), ("[2001:db8::1]", 200), ("evil.example.com", 421)]
)
async def test_metrics_are_asked_for_by_address_or_by_a_name_of_ours(http: Http, host: str, status: int) -> None:
    assert (await http.ask("GET", "/metrics", host=host)).status == status


async def test_a_foreign_page_may_not_ask_for_metrics(http: Http) -> None:
    assert (await http.ask("GET", "/metrics", origin="http://evil.example.com")).status == 403


async def cut_off(
    http: Http,
    monkeypatch: pytest.MonkeyPatch,
    waits_in: tuple[object, str],
    method: str,
    path: str,
    *chunks: bytes,
    takes: bool = True,
) -> Exchanged:
    """The answer to a request that waits in this method when uvicorn cancels it: the node ends."""
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(*waits_in, never)
    task = asyncio.ensure_future(http.ask(method, path, *chunks, into=Exchanged(takes=takes)))
    await asyncio.wait_for(asked.wait(), 30)
    task.cancel()
    return await task


@pytest.mark.parametrize(("method", "status"), [("GET", 503), ("POST", 500)])
async def test_who_waits_for_the_application_behind_when_the_node_ends_hears_what_that_means(
    http: Http, monkeypatch: pytest.MonkeyPatch, method: str, status: int
) -> None:
    got = await cut_off(http, monkeypatch, (http.app._rest, "app"), method, "/api/v1/tenants")
    assert (got.status, json.loads(got.body)["reason"]) == (status, "shutting_down")


@pytest.mark.parametrize("path", ["/api/v1/tenants", MCP])
async def test_a_client_that_takes_no_answer_holds_up_no_end(
    http: Http, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("app.http.transports.rest.LAST_WORD_S", 0.01)
    waits_in = (registry, "open") if path == MCP else (http.app._rest, "app")
    with pytest.raises(asyncio.CancelledError):
        await cut_off(http, monkeypatch, waits_in, "POST", path, INITIALIZE, takes=False)


async def test_who_was_let_in_and_waits_for_the_database_when_the_node_ends_hears_that_nobody_knows(
    http: Http, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await cut_off(http, monkeypatch, (registry, "open"), "POST", MCP, INITIALIZE)
    told = json.loads(got.body)["error"]["data"]
    assert (told["reason"], told["outcome"]) == ("node_lost", "unknown")


async def test_who_waits_to_be_let_in_when_the_node_ends_hears_that_nothing_was_done(
    http: Http, authenticator: FakeAuthenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "remembered", lambda *_: None)
    got = await cut_off(http, monkeypatch, (authenticator, "authenticate"), "POST", MCP, INITIALIZE)
    assert (got.status, json.loads(got.body)["error"]["data"]["reason"]) == (503, "shutting_down")
