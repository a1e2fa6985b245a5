"""A toolset of many tools is searched by what somebody wants to do, and a call through the search is the same call."""

from collections.abc import Iterator

import pytest

from tests.integration.gateway import Gateway, running_gateway
from tests.integration.servers import python_client, text_of
from tests.integration.toolboxes import toolboxes
from tests.integration.wire import wire


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("search") / "data") as gateway:
        yield gateway


async def test_a_tool_is_found_called_and_learned_and_nothing_started_for_the_search(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    gateway.api("PATCH", f"/tenants/{toolset.tenant}/toolsets/all", {"mode": "search", "always": ["*_count"]})
    async with wire(toolset) as session:
        listed = [each["name"] for each in (await session.request("tools/list"))["tools"]]
        assert listed == ["find_tools", "call_tool", "red_count", "blue_count"]
        found = await session.request("tools/call", {"name": "find_tools", "arguments": {"query": "slow blue"}})
        assert found["structuredContent"]["tools"][0]["name"] == "blue_slow"
        await gateway.wait_for_backends(0)  # those that were asked for their tools have ended
        arguments = {"name": "red_say", "arguments": {"text": "hi"}}
        assert await session.call("call_tool", **arguments) == "red: hi"
        assert (await session.call("find_tools", query="zzz greet")).startswith("No tool was found.")
        assert await session.call("call_tool", **arguments) == "red: hi"
    async with wire(toolset) as session:
        found = await session.request("tools/call", {"name": "find_tools", "arguments": {"query": "zzz greet"}})
        assert [each["name"] for each in found["structuredContent"]["tools"]] == ["red_say"]
    await gateway.wait_for_backends(0)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_searches_in_either_era(gateway: Gateway, mode: str) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    gateway.api("PATCH", f"/tenants/{toolset.tenant}/toolsets/all", {"mode": "search"})
    async with python_client(toolset, "streamable", mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find_tools", "call_tool"]
        found = await client.call_tool("find_tools", {"query": "count of blue", "limit": 1})
        assert found.structured_content["tools"][0]["name"] == "blue_count"
        assert text_of(await client.call_tool("call_tool", {"name": "blue_count"})) == "blue: 1"
