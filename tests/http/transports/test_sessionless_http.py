"""POST of 2026-07-28: status, code and id of each refusal; a closed connection cancels."""

import json
from typing import Any

import anyio
import pytest

from app.protocol.eras.sessionless_envelope import CAPABILITIES_KEY, SESSIONLESS, VERSION_KEY
from tests.http.transports.conftest import Exchanged, Http
from tests.sessions.sessionless.servers import FakeServer, ServerPool, legacy_server

PATH = "/t/acme/echo/mcp"
ENVELOPE = {VERSION_KEY: SESSIONLESS, CAPABILITIES_KEY: {"elicitation": {}}}
LATER = "2099-01-01"
MIRRORED = {"name": "x", "inputSchema": {"properties": {"a": {"type": "integer", "x-mcp-header": "A"}}}}


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


async def post(http: Http, method: str = "tools/call", *, into: Exchanged | None = None, **options: Any) -> Exchanged:
    """One request with its headers right, but for those given; `body` replaces it all."""
    params = {"name": "x", **options.pop("params", {}), "_meta": options.pop("meta", ENVELOPE)}
    message = {"jsonrpc": "2.0", "id": "id-1", "method": method, "params": params}
    body = options.pop("body", json.dumps(message).encode())
    headers = {
        "accept": "application/json, text/event-stream", "mcp_protocol_version": SESSIONLESS, "mcp_method": method,
        "mcp_name": "x", **options,
    }  # fmt: skip
    return await http.ask("POST", PATH, body, into=into, **headers)


def error(got: Exchanged) -> tuple[int, int, Any]:
    answer = json.loads(got.body)
    return got.status, answer["error"]["code"], answer["id"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"meta": {}, "mcp_name": "x"}, (400, -32602, "id-1")),
        ({"mcp_protocol_version": ""}, (400, -32020, "id-1")),
        ({"mcp_protocol_version": "2025-11-25"}, (400, -32020, "id-1")),
        ({"mcp_method": "tools/list"}, (400, -32020, "id-1")),
        ({"mcp_name": "y"}, (400, -32020, "id-1")),
        ({"repeat": "mcp-name"}, (400, -32020, "id-1")),
        (
            {"mcp_protocol_version": LATER, "meta": {**ENVELOPE, VERSION_KEY: LATER}},
            (400, -32022, "id-1"),
        ),
        ({"method": "initialize"}, (404, -32601, "id-1")),
        ({"method": "ping"}, (404, -32601, "id-1")),
        ({"method": "logging/setLevel"}, (404, -32601, "id-1")),
        ({"params": {"requestState": "x"}}, (400, -32602, "id-1")),
        ({"body": b"{"}, (400, -32700, None)),
        ({"body": b"[]"}, (400, -32600, None)),
        ({"body": b'{"jsonrpc":"2.0","id":1,"result":{}}'}, (400, -32600, None)),
    ],
)
async def test_what_is_refused_has_its_status_its_code_and_its_id(http: Http, options: Any, expected: Any) -> None:
    assert error(await post(http, **options)) == expected


async def test_a_notification_is_taken_note_of(http: Http) -> None:
    got = await post(http, body=b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
    assert (got.status, got.body) == (202, b"")


@pytest.mark.parametrize(("code", "status"), [(-32601, 404), (-32602, 400), (-32603, 200), (7, 200)])
async def test_an_error_of_the_backend_has_the_status_that_belongs_to_it(
    http: Http, pool: ServerPool, code: int, status: int
) -> None:
    async with anyio.create_task_group() as tasks:
        got = Exchanged()
        tasks.start_soon(lambda: post(http, into=got))
        server = await first(pool)
        call = await server.called("tools/call")
        server.say(id=call["id"], error={"code": code, "message": "no"})
    assert error(got) == (status, code, "id-1")


async def test_an_argument_that_differs_from_its_header_never_reaches_the_backend(http: Http, pool: ServerPool) -> None:
    pool.make = with_mirrors
    assert (await post(http, "tools/list")).status == 200
    wrong: list[dict[str, Any]] = [{}, {"mcp_param_a": "8"}, {"mcp_param_a": "7", "repeat": "mcp-param-a"}]
    for header in wrong:
        got = await post(http, params={"arguments": {"a": 7}}, **header)
        assert error(got) == (400, -32020, "id-1")
    huge = await post(http, body=json.dumps({
        "jsonrpc": "2.0", "id": "id-1", "method": "tools/call",
        "params": {"name": "x", "arguments": {"a": "HUGE"}, "_meta": ENVELOPE},
    }).replace('"HUGE"', "9" * 1500).encode())  # fmt: skip
    assert error(huge) == (400, -32020, "id-1")
    assert not pool.servers[0].sent_with("tools/call")


async def test_a_call_that_repeats_arguments_before_the_tools_are_known_waits_for_them(
    http: Http, pool: ServerPool
) -> None:
    pool.make = with_mirrors
    assert error(await post(http, params={"arguments": {"a": 7}}, mcp_param_a="8")) == (400, -32020, "id-1")
    assert not pool.servers[0].sent_with("tools/call")
    assert len(pool.servers[0].sent_with("tools/list")) == 1


async def test_a_call_that_repeats_arguments_of_tools_that_are_not_listed_is_an_error(
    http: Http, pool: ServerPool
) -> None:
    async with anyio.create_task_group() as tasks:
        pool.make = lambda: FakeServer(
            {key: each for key, each in legacy_server().answers.items() if key != "tools/list"}
        )
        got = Exchanged()
        tasks.start_soon(lambda: post(http, into=got, params={"arguments": {"a": 7}}, mcp_param_a="8"))
        server = await first(pool)
        await server.called("tools/list")
        server.die()
    assert error(got)[1] == -32603
    assert not server.sent_with("tools/call")


async def test_a_connection_that_is_closed_cancels_the_call(http: Http, pool: ServerPool) -> None:
    async with anyio.create_task_group() as tasks:
        got = Exchanged()
        tasks.start_soon(lambda: post(http, into=got))
        server = await first(pool)
        call = await server.called("tools/call")
        got.left.set()
        cancelled = await server.called("notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert got.status == 0


async def test_a_connection_that_is_closed_in_a_stream_cancels_the_call(http: Http, pool: ServerPool) -> None:
    async with anyio.create_task_group() as tasks:
        got = Exchanged()
        tasks.start_soon(lambda: post(http, into=got, meta={**ENVELOPE, "progressToken": 1}))
        server = await first(pool)
        call = await server.called("tools/call")
        server.say(method="notifications/progress", params={"progressToken": call["id"], "progress": 1})
        with anyio.fail_after(30):
            while b"notifications/progress" not in got.body:
                await anyio.lowlevel.checkpoint()
        got.left.set()
        await server.called("notifications/cancelled")
    assert got.status == 200


async def first(pool: ServerPool) -> Any:
    with anyio.fail_after(30):
        while not pool.servers:
            await anyio.lowlevel.checkpoint()
    return pool.servers[0]


def with_mirrors() -> Any:
    server = legacy_server()
    server.answers["tools/list"] = {"tools": [MIRRORED]}
    return server
