"""HTTP APIs as backends: from a document to calls, through a gateway."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.backends.openapi.hosts import Host, api_host
from tests.integration.gateway import Endpoint, Gateway, running_gateway
from tests.integration.remote import LOOPBACK, reached
from tests.integration.wire import RpcError, wire
from tests.protocol.openapi.documents import SHOP

KEY = "s3cret-of-the-shop"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("front") / "data", **LOOPBACK) as gateway:
        yield gateway


@pytest.fixture
def host() -> Iterator[Host]:
    with api_host() as host:
        yield host


def shop(front: Gateway, host: Host, **fields: Any) -> Endpoint:
    given = {"openapi": json.dumps(SHOP), "headers": {"Authorization": f"Bearer {KEY}", "key": KEY}, **fields}
    return reached(front, f"{host.url}/v1", **given)


async def call(endpoint: Endpoint, tool: str, **arguments: Any) -> dict[str, Any]:
    async with wire(endpoint) as session:
        result: dict[str, Any] = await session.request("tools/call", {"name": tool, "arguments": arguments})
        return result


async def test_operations_are_tools_that_can_be_called(front: Gateway, host: Host):
    endpoint = shop(front, host)
    async with wire(endpoint) as session:
        names = [tool["name"] for tool in (await session.request("tools/list"))["tools"]]
        assert names[:3] == ["items_list", "items_create", "items_get"]
        asked = {
            "name": "items_list",
            "arguments": {"page": 2, "tag": ["a b", "c"], "filter": {"x": 1}, "X-Trace": "t"},
        }
        result = await session.request("tools/call", asked)
        target = f"/v1/items?page=2&tag=a%20b&tag=c&filter[x]=1&key={KEY}"
        assert result["structuredContent"] == {"method": "GET", "target": target.replace(KEY, "***"), "body": None}
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        await session.request(
            "tools/call", {"name": "items_replace", "arguments": {"id": 3, "body_id": "x", "name": "n"}}
        )
        with pytest.raises(RpcError, match="no tool of this name"):
            await session.request("tools/call", {"name": "items_none", "arguments": {}})
    listed, replaced = host.heard
    assert listed.target == target
    assert (listed.headers["Authorization"], listed.headers["X-Trace"]) == (f"Bearer {KEY}", "t")
    assert "key" not in listed.headers
    assert (replaced.method, replaced.target, json.loads(replaced.body)) == (
        "PUT", f"/v1/items/3?key={KEY}", {"id": "x", "name": "n"},
    )  # fmt: skip


async def test_answers_of_every_kind(front: Gateway, host: Host):
    endpoint = shop(front, host)
    host.answers["/v1/items/1"] = (200, {"Content-Type": "image/png"}, b"\x89PNG")
    host.answers["/v1/items/2"] = (422, {"Content-Type": "application/json"}, b'{"problem":"%b"}' % KEY.encode())
    host.answers["/v1/items/3"] = (302, {"Location": f"{host.url}/elsewhere"}, b"")
    host.answers["/v1/items/4"] = (308, {"Location": f"{host.url}/v1/items/5"}, b"")
    host.answers["/v1/items/6"] = (307, {"Location": "http://127.0.0.1:1/"}, b"")
    image = (await call(endpoint, "items_get", id=1))["content"][0]
    assert image == {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"\x89PNG").decode()}
    refused = await call(endpoint, "items_get", id=2)
    assert refused["isError"] is True
    assert refused["content"][0]["text"].endswith('HTTP 422 Unprocessable Entity.\n\n{"problem":"***"}')
    with pytest.raises(RpcError, match="HTTP 302 and names"):
        await call(endpoint, "items_get", id=3)
    assert (await call(endpoint, "items_get", id=4))["structuredContent"]["target"] == "/v1/items/5"
    with pytest.raises(RpcError, match="HTTP 307 and names"):
        await call(endpoint, "items_get", id=6)
    wrong = await call(endpoint, "items_get", id="../admin")
    assert wrong["isError"] is True
    assert "must not have `.` or `..`" in wrong["content"][0]["text"]
    assert "/v1/admin" not in [each.target.partition("?")[0] for each in host.heard]


async def test_a_call_that_takes_too_long_or_is_cancelled_closes_its_connection(front: Gateway, host: Host):
    endpoint = shop(front, host, timeouts={"call_s": 0.5})
    host.held = {"/v1/items/9"}
    with pytest.raises(RpcError) as error:
        await call(endpoint, "items_get", id=9)
    assert error.value.code == -32015
    assert await anyio.to_thread.run_sync(host.left.wait, 10)


async def test_a_gateway_that_cannot_reach_the_api_says_so_in_the_call_alone(front: Gateway):
    with api_host() as host:
        endpoint = shop(front, host)
    async with wire(endpoint) as session:
        assert len((await session.request("tools/list"))["tools"]) == 6
        with pytest.raises(RpcError, match="cannot be reached"):
            await session.request("tools/call", {"name": "items_get", "arguments": {"id": 1}})


async def test_all_that_is_done_with_tools_of_backends_is_done_with_these(front: Gateway, host: Host):
    endpoint = shop(front, host, include=["items*"], rename={"items_get": "get_item"}, describe={"items_list": "All"})
    async with wire(endpoint) as session:
        tools = {tool["name"]: tool for tool in (await session.request("tools/list"))["tools"]}
        assert "addPart" not in tools
        assert tools["items_list"]["description"] == "All"
        result = await session.request("tools/call", {"name": "get_item", "arguments": {"id": 1}})
        assert result["structuredContent"]["target"].startswith("/v1/items/1")


def test_a_check_lists_what_is_left_out_and_says_where_it_fails(front: Gateway, host: Host):
    endpoint = shop(front, host)
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    found = front.api("POST", f"{path}:check")
    assert (found["ok"], found["tools"]) == (True, 6)
    assert [step["step"] for step in found["steps"]][:2] == ["resolve", "connect"]
    assert len(found["left_out"]) == 7
    assert front.api("GET", path)["notes"] == found["left_out"]


async def test_a_document_is_fetched_through_the_guard_and_read_again_by_an_act(front: Gateway, host: Host):
    kind = {"Content-Type": "application/json"}
    host.answers["/openapi.json"] = (200, kind, json.dumps({**SHOP, "servers": [{"url": f"{host.url}/v2"}]}).encode())
    tenant = front.add_tenant()
    given = {"name": "shop", "openapi": f"{host.url}/openapi.json"}
    made = front.api("POST", f"/tenants/{tenant}/backends", given)
    assert (made["url"], made["openapi"]) == (f"{host.url}/v2", given["openapi"])
    one = {"openapi": "3.1.0", "paths": {"/only": {"get": {"operationId": "only"}}}}
    host.answers["/openapi.json"] = (200, kind, json.dumps(one).encode())
    path = f"/tenants/{tenant}/backends/shop"
    assert front.api("PATCH", path, {"warm": 0})["openapi_made"] == made["openapi_made"]
    again = front.api("PATCH", path, {"openapi": given["openapi"]})
    assert again["openapi_made"] != made["openapi_made"]
    assert again["version"] == made["version"] + 1
    assert front.api("PATCH", path, {"openapi": given["openapi"]})["version"] == again["version"]
    endpoint = Endpoint(front, tenant, "shop", f"{front.url}/t/{tenant}/shop", front.key(tenant))
    assert (await call(endpoint, "only"))["structuredContent"]["target"] == "/v2/only"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"openapi": "http://192.0.2.1/openapi.json"}, "TRUNKLINE_UPSTREAM_ALLOW"),
        ({"openapi": "http://127.0.0.1:1/openapi.json"}, "the document could not be fetched"),
        ({"openapi": "./shop.yaml"}, "neither a URL nor a document"),
        ({"openapi": "openapi: 3.1.0\npaths: {}\n"}, "has no `paths`"),
        ({"openapi": "openapi: 3.1.0\npaths: {/a: {get: {}}}\n"}, "does not say where its API is"),
        ({"openapi": json.dumps(SHOP), "command": "x"}, "give either `command`"),
        ({"openapi": json.dumps(SHOP), "transport": "sse"}, "`transport` is that of a server of MCP"),
        ({"openapi": "a: &a [1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\npaths: *b"}, "neither a member"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(front: Gateway, given: dict[str, Any], words: str):
    problem = front.api("POST", "/tenants/default/backends", {"name": "wrong", **given}, expect=422)
    assert words in json.dumps(problem)
