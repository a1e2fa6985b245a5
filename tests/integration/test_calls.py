"""The last calls of a tenant, over REST, on one node and on several."""

import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway
from tests.integration.nodes import Nodes, said_of_all
from tests.integration.remote import LOOPBACK, behind
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.toolboxes import Toolset
from tests.integration.wire import RpcError, Wire, wire

SECRET = "s3cret-argument"


@pytest.fixture
def endpoint(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(ECHO)


def calls(endpoint: Endpoint, query: str = "") -> list[Any]:
    return list(endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/calls{query}")["items"])


async def test_a_call_is_kept_without_what_was_said(endpoint: Endpoint):
    async with wire(endpoint) as session:
        await session.call("echo", text=SECRET)
        with pytest.raises(RpcError):
            await session.request("no/such", {"text": SECRET})
        with pytest.raises(RpcError):
            await session.request("resources/read", {"uri": f"https://user:{SECRET}@host/path?key={SECRET}"})
    found = calls(endpoint)
    assert SECRET not in str(found)
    read, unknown, echo, hello = found[:4]
    assert [each["method"] for each in (read, unknown, echo, hello)] == [
        "resources/read",
        "no/such",
        "tools/call",
        "initialize",
    ]
    assert (echo["tool"], echo["outcome"], echo["backend"]) == ("echo", "ok", endpoint.name)
    assert read["tool"] == "https://host/path"
    assert unknown["outcome"] == "-32601"
    assert echo["bytes_in"] > len(SECRET)
    assert echo["bytes_out"] > len(SECRET)
    assert echo["duration_ms"] > 0
    assert (echo["issuer"], len(echo["session"]), len(echo["request_id"])) == ("key", 12, 32)
    assert calls(endpoint, f"?request_id={echo['request_id']}") == [echo]


async def test_they_are_filtered_grouped_and_paged(endpoint: Endpoint):
    async with wire(endpoint) as session:
        for number in range(5):
            await session.call("echo", text=str(number))
        await session.call("whoami")
        with pytest.raises(RpcError):
            await session.request("no/such")
    path = f"/tenants/{endpoint.tenant}/calls"
    assert len(calls(endpoint, "?tool=echo")) == 5
    assert [each["method"] for each in calls(endpoint, "?outcome=error")] == ["no/such"]
    assert calls(endpoint, "?min_ms=60000") == []
    first = endpoint.gateway.api("GET", f"{path}?tool=echo&limit=3")
    rest = endpoint.gateway.api("GET", f"{path}?tool=echo&limit=3&cursor={first['next_cursor']}")
    assert (len(first["items"]), len(rest["items"]), rest["next_cursor"]) == (3, 2, None)
    assert first["items"] + rest["items"] == calls(endpoint, "?tool=echo")
    groups = endpoint.gateway.api("GET", f"{path}:grouped?by=tool")["items"]
    echo = next(each for each in groups if each["name"] == "echo")
    assert (echo["count"], echo["errors"], echo["within"]) == (5, 0, endpoint.name)
    assert 0 < echo["p50_ms"] <= echo["p99_ms"]
    by_outcome = endpoint.gateway.api("GET", f"{path}:grouped?by=outcome")["items"]
    assert {each["name"]: each["errors"] for each in by_outcome} == {"ok": 0, "-32601": 1}


async def test_another_tenant_sees_none_of_them(endpoint: Endpoint):
    async with wire(endpoint) as session:
        await session.call("echo", text="x")
    other = endpoint.gateway.add_tenant()
    assert endpoint.gateway.api("GET", f"/tenants/{other}/calls")["items"] == []
    headers = {"Authorization": f"Bearer {endpoint.gateway.key(other, ['tenant:admin'])}"}
    url = f"{endpoint.gateway.url}/api/v1/tenants/{endpoint.tenant}/calls"
    assert httpx2.get(url, headers=headers).status_code == 404


async def test_platform_administrators_see_those_of_all_tenants_and_of_one_client(endpoint: Endpoint):
    async with wire(endpoint) as session:
        await session.call("echo", text="x")
    gateway = endpoint.gateway
    (mine,) = calls(endpoint, "?tool=echo")
    named = f"?session={mine['session']}&client_name={mine['client_name']}&tool=echo"
    assert gateway.api("GET", f"/tenants/-/calls{named}")["items"] == [mine]
    assert gateway.api("GET", f"/tenants/-/calls{named}x")["items"] == []
    (group,) = gateway.api("GET", f"/tenants/-/calls:grouped{named}&by=backend")["items"]
    assert (group["name"], group["count"]) == (endpoint.name, 1)
    headers = {"Authorization": f"Bearer {gateway.key(endpoint.tenant, ['tenant:admin'])}"}
    for path in ("calls", "calls:grouped?by=tool"):
        assert httpx2.get(f"{gateway.url}/api/v1/tenants/-/{path}", headers=headers).status_code == 404


FAILS = """
import json, sys
result = {"content": [{"type": "text", "text": "x" * 300}], "isError": True, "_meta": {"by": "y" * 100}}
hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}
tools = {"tools": [{"name": "fails", "inputSchema": {"type": "object"}}]}
answers = {"initialize": hello, "tools/list": tools, "tools/call": result}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": answers.get(message["method"], {})}
        print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("front") / "data", **LOOPBACK) as gateway:
        yield gateway


@pytest.mark.parametrize("way", ["a process", "a shared process", "a URL", "a toolset", "a recipe"])
async def test_a_tool_that_says_that_it_has_failed_is_recorded_as_failed(front: Gateway, gateway: Gateway, way: str):
    """Of a client with a session, and of one of 2026-07-28."""
    isolation = "shared" if way == "a shared process" else "session"
    endpoint, tool = front.endpoint([sys.executable, "-c", FAILS], isolation=isolation), "fails"
    if way == "a URL":
        endpoint = behind(front, gateway.endpoint([sys.executable, "-c", FAILS]))
    elif way in ("a toolset", "a recipe"):
        endpoint = Toolset(front, endpoint.tenant, [{"backend": endpoint.name, "prefix": ""}])
    if way == "a recipe":
        recipe = {"name": "cook", "toolset": endpoint.name, "steps": [{"id": "one", "tool": "fails"}]}
        front.api("POST", f"/tenants/{endpoint.tenant}/recipes", recipe)
        tool = "cook"
    async with wire(endpoint) as session:
        assert (await session.request("tools/call", {"name": tool, "arguments": {}}))["isError"]
        client = SessionlessClient(session.http, endpoint, [endpoint.mcp])
        assert (await client.request("tools/call", name=tool, arguments={}))["isError"]
    assert [each["outcome"] for each in calls(endpoint, f"?tool={tool}")] == ["tool_error", "tool_error"]
    overview = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/calls:grouped?by=tool&tool={tool}")
    assert [each["errors"] for each in overview["items"]] == [2]


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that keeps three calls of each tenant."""
    with running_gateway(tmp_path_factory.mktemp("calls") / "data", CALLS_PER_TENANT="3") as gateway:
        yield gateway


async def test_a_busy_tenant_pushes_out_its_own_only(small: Gateway):
    quiet, busy = small.endpoint(ECHO), small.endpoint(ECHO)
    async with wire(quiet) as one, wire(busy) as other:
        await one.call("echo", text="x")
        for number in range(20):
            await other.call("echo", text=str(number))
    assert len(calls(busy)) == 3
    assert len(calls(quiet)) == 2


async def test_they_are_those_of_all_nodes(nodes: Nodes):
    endpoint = nodes.all[0].endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open()
        for url in nodes.urls(endpoint):
            session.url = url
            await session.call("echo", text="x")
    for node in nodes.all:
        found = await said_of_all(node, f"/tenants/{endpoint.tenant}/calls?tool=echo")
        assert len(found["items"]) == 3
        groups = await said_of_all(node, f"/tenants/{endpoint.tenant}/calls:grouped?by=tool&tool=echo")
        (group,) = groups["items"]
        assert group["count"] == 3
