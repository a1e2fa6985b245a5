"""Whoever waits is asked again: a credential that is revoked or expires meanwhile opens nothing and sends nothing."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from app.cluster.peers.credentials import Word
from app.http.transports.request import McpRequest
from app.protocol.eras.sessionless_envelope import SESSIONLESS
from app.sessions.registry import SessionRegistry
from app.telemetry.logs import LogContext
from tests.http.transports.conftest import ALICE, Exchanged, FakeAuthenticator, Http
from tests.http.transports.test_sessionless_http import ENVELOPE
from tests.sessions.sessionless.servers import ServerPool

MCP, SSE = "/t/acme/echo/mcp", "/t/acme/echo/sse"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "x"}}
SESSIONLESS_CALL = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "x", "_meta": ENVELOPE}}
BOTH = "application/json, text/event-stream"
SESSIONLESS_HEADERS = {"accept": BOTH, "mcp_protocol_version": SESSIONLESS, "mcp_method": "tools/call", "mcp_name": "x"}

Lose = Callable[[FakeAuthenticator], None]


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


def revoke(authenticator: FakeAuthenticator) -> None:
    authenticator.revoke()


def expire(authenticator: FakeAuthenticator) -> None:
    authenticator.pass_to(100.0)


@pytest.fixture(params=[revoke, expire], ids=lambda each: each.__name__)
def lose(request: pytest.FixtureRequest, authenticator: FakeAuthenticator) -> Lose:
    if request.param is expire:
        authenticator.expire_at(50.0)
    lose: Lose = request.param
    return lose


async def opened(http: Http) -> str:
    got = await http.ask("POST", MCP, json.dumps(HELLO).encode(), accept=BOTH)
    assert got.status == 200, got.body
    return got.headers["mcp-session-id"]


@asynccontextmanager
async def asking(http: Http, *request: Any, into: Exchanged, **headers: str) -> AsyncIterator[None]:
    """A request that is under way; it is over at the end."""
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            await http.ask(*request, into=into, **headers)

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        yield


def methods(pool: ServerPool) -> list[str]:
    return [message.get("method", "") for server in pool.servers for message in server.sent]


async def test_a_body_that_comes_after_the_revocation_is_not_passed_on(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator, lose: Lose
) -> None:
    session, got = await opened(http), Exchanged(rest=anyio.Event())
    async with asking(http, "POST", MCP, json.dumps(CALL).encode(), into=got, accept=BOTH, mcp_session_id=session):
        lose(authenticator)
        assert got.rest is not None
        got.rest.set()
    assert got.status == 401
    assert "tools/call" not in methods(pool)


async def test_the_same_for_a_body_of_2026_07_28(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator, lose: Lose
) -> None:
    got = Exchanged(rest=anyio.Event())
    async with asking(http, "POST", MCP, json.dumps(SESSIONLESS_CALL).encode(), into=got, **SESSIONLESS_HEADERS):
        lose(authenticator)
        assert got.rest is not None
        got.rest.set()
    assert got.status == 401
    assert pool.leases == []


async def test_the_same_for_a_message_beside_a_stream(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator, registry: SessionRegistry
) -> None:
    stream, got = Exchanged(), Exchanged(rest=anyio.Event())
    async with asking(http, "GET", SSE, into=stream, accept="text/event-stream"):
        with anyio.fail_after(30):
            while b"sessionId=" not in stream.body:
                await anyio.sleep(0.001)
        address = stream.body.split(b"data: ")[1].split()[0].decode()
        async with asking(http, "POST", address, json.dumps(HELLO).encode(), into=got):
            authenticator.revoke()
            assert got.rest is not None
            got.rest.set()
        assert got.status == 401
        assert pool.leases == []
        registry.close_where(lambda session: True, "key_revoked")


@pytest.mark.parametrize(
    "request_", [(HELLO, {"accept": BOTH}), (SESSIONLESS_CALL, SESSIONLESS_HEADERS)], ids=["old", "sessionless"]
)
async def test_whoever_waits_for_a_process_gets_none(
    http: Http,
    pool: ServerPool,
    registry: SessionRegistry,
    authenticator: FakeAuthenticator,
    lose: Lose,
    request_: tuple[dict[str, Any], dict[str, str]],
) -> None:
    message, headers = request_
    got, pool.gate = Exchanged(), anyio.Event()
    async with asking(http, "POST", MCP, json.dumps(message).encode(), into=got, **headers):
        assert (pool.waiting, len(registry)) == (1, 1)
        lose(authenticator)
        if lose is revoke:  # as ChangeEffects does
            registry.close_where(lambda session: True, "key_revoked")
        pool.gate.set()
    assert (got.status, methods(pool), len(registry)) == (401, [], 0)


async def test_a_session_that_is_made_in_the_moment_of_the_revocation_is_none(
    http: Http, pool: ServerPool, registry: SessionRegistry, authenticator: FakeAuthenticator, monkeypatch: Any
) -> None:
    """It is not there yet when those are closed whose key is revoked."""
    find = registry._find_backend

    async def slow(*backend: str) -> Any:
        found = await find(*backend)
        if len(registry) == 0:
            authenticator.revoke()
            registry.close_where(lambda session: True, "key_revoked")
        return found

    monkeypatch.setattr(registry, "_find_backend", slow)
    got = await http.ask("POST", MCP, json.dumps(HELLO).encode(), accept=BOTH)
    assert (got.status, pool.leases, len(registry)) == (401, [], 0)
    authenticator.known[b"Bearer alice"] = authenticator.known[b"Bearer bob"]
    got = Exchanged()
    async with asking(http, "POST", MCP, json.dumps(SESSIONLESS_CALL).encode(), into=got, **SESSIONLESS_HEADERS):
        pass
    assert (got.status, pool.leases, len(registry)) == (403, [], 0)


async def test_another_ones_revocation_costs_nobody_a_question(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator
) -> None:
    session, got = await opened(http), Exchanged(rest=anyio.Event())
    note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    async with asking(http, "POST", MCP, note, into=got, accept=BOTH, mcp_session_id=session):
        authenticator.revoke(b"Bearer bob")
        assert got.rest is not None
        got.rest.set()
    assert (got.status, authenticator.asked) == (202, 0)


async def test_a_credential_that_is_only_looked_at_again_goes_on(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator
) -> None:
    session, got = await opened(http), Exchanged(rest=anyio.Event())
    note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    async with asking(http, "POST", MCP, note, into=got, accept=BOTH, mcp_session_id=session):
        authenticator.watch.revoked(lambda principal: True)
        assert got.rest is not None
        got.rest.set()
    assert (got.status, authenticator.asked) == (202, 1)


# --- what another node has let in


async def forwarded(http: Http, *, rest: anyio.Event | None = None) -> int:
    """The status of what this node answers to a request that another one vouches for."""
    statuses = list[int]()

    async def receive() -> dict[str, Any]:
        if rest is not None:
            await rest.wait()
        return {"type": "http.request", "body": json.dumps(SESSIONLESS_CALL).encode(), "more_body": False}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in SESSIONLESS_HEADERS.items()]
    headers += [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": MCP, "query_string": b"", "headers": headers}
    request = McpRequest(scope, receive, send, ("acme", "echo", "mcp"))
    request.vouched_for(Word(ALICE, "http://127.0.0.1"))
    with anyio.move_on_after(30):
        await http.app._answer(request, LogContext(dict))
    return statuses[0]


async def test_a_node_that_knows_of_a_revocation_asks_itself_what_another_has_let_in(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator
) -> None:
    """The other node may not have heard of it."""
    authenticator.revoke()
    assert await forwarded(http) == 401
    assert pool.leases == []


async def test_the_same_where_it_hears_of_it_while_the_request_waits(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator
) -> None:
    rest, statuses = anyio.Event(), list[int]()
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            statuses.append(await forwarded(http, rest=rest))

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        authenticator.revoke()
        rest.set()
    assert (statuses, pool.leases) == ([401], [])


# --- streams


def listening(pool: ServerPool) -> Any:
    return pool.servers[-1]


async def test_the_stream_of_a_session_ends_with_the_credential_and_the_session_goes_on(
    http: Http, pool: ServerPool, registry: SessionRegistry, authenticator: FakeAuthenticator
) -> None:
    session, got = await opened(http), Exchanged()
    authenticator.expire_at(50.0)
    headers = {"accept": "text/event-stream", "mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
    async with asking(http, "GET", MCP, into=got, **headers):
        listening(pool).say(method="notifications/tools/list_changed")
        await anyio.wait_all_tasks_blocked()
        authenticator.pass_to(50.0)  # no sooner does the response end than here
        listening(pool).say(method="notifications/prompts/list_changed")
    assert got.body.count(b"tools/list_changed") == 1
    assert b"prompts/list_changed" not in got.body
    assert b"retry: " in got.body
    authenticator.expire_at(500.0)  # the same principal with a later token
    again = Exchanged()
    async with asking(http, "GET", MCP, into=again, **headers):
        await anyio.wait_all_tasks_blocked()
        assert b"prompts/list_changed" in again.body
        registry.close_where(lambda session: True, "deleted")


async def test_a_call_that_has_become_a_stream_ends_likewise_and_can_be_resumed(
    http: Http, pool: ServerPool, registry: SessionRegistry, authenticator: FakeAuthenticator
) -> None:
    session, got = await opened(http), Exchanged()
    authenticator.expire_at(50.0)
    headers = {"accept": "text/event-stream", "mcp_session_id": session}
    async with asking(http, "POST", MCP, json.dumps(CALL).encode(), into=got, **headers):
        authenticator.pass_to(50.0)
    assert got.body.count(b"data: {") == 0
    place = got.body.split(b"id: ")[1].split()[0].decode()
    listening(pool).answer({"content": []})
    authenticator.expire_at(500.0)
    resumed = Exchanged()
    async with asking(http, "GET", MCP, into=resumed, last_event_id=place, **headers):
        pass
    assert json.loads(resumed.body.split(b"data: ")[-1].split(b"\n")[0])["id"] == 2


async def test_a_stream_that_is_its_session_ends_with_it(
    http: Http, registry: SessionRegistry, authenticator: FakeAuthenticator
) -> None:
    got = Exchanged()
    authenticator.expire_at(50.0)
    async with asking(http, "GET", SSE, into=got, accept="text/event-stream"):
        assert len(registry) == 1
        authenticator.pass_to(50.0)
    assert len(registry) == 0


async def test_a_sessionless_call_hears_why_and_its_process_that_nobody_waits(
    http: Http, pool: ServerPool, authenticator: FakeAuthenticator
) -> None:
    got = Exchanged()
    authenticator.expire_at(50.0)
    call = {**SESSIONLESS_CALL, "params": {"name": "x", "_meta": {**ENVELOPE, "progressToken": "p"}}}
    async with asking(http, "POST", MCP, json.dumps(call).encode(), into=got, **SESSIONLESS_HEADERS):
        token = listening(pool).sent[-1]["params"]["_meta"]["progressToken"]
        listening(pool).say(method="notifications/progress", params={"progressToken": token, "progress": 1})
        await anyio.wait_all_tasks_blocked()
        assert b'"progress":1' in got.body
        authenticator.pass_to(50.0)
    told = json.loads(got.body.split(b"data: ")[-1].split(b"\n")[0])
    assert (told["id"], told["error"]["data"]["outcome"]) == (3, "unknown")
    assert methods(pool)[-1] == "notifications/cancelled"


async def test_a_subscription_ends_with_its_result(
    http: Http, pool: ServerPool, registry: SessionRegistry, authenticator: FakeAuthenticator
) -> None:
    got = Exchanged()
    authenticator.expire_at(50.0)
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}
    body = {"jsonrpc": "2.0", "id": 4, "method": "subscriptions/listen", "params": wanted}
    headers = {**SESSIONLESS_HEADERS, "mcp_method": "subscriptions/listen", "mcp_name": ""}
    async with asking(http, "POST", MCP, json.dumps(body).encode(), into=got, **headers):
        assert b"subscriptions/acknowledged" in got.body
        authenticator.pass_to(50.0)
        listening(pool).say(method="notifications/tools/list_changed")
    assert json.loads(got.body.split(b"data: ")[-1].split(b"\n")[0])["id"] == 4
    assert b"list_changed" not in got.body
