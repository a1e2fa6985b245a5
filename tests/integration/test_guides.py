"""Guides: prompts and resources of a toolset that need no process, of its own tenant only, and told of when changed."""

from collections.abc import Iterator

import pytest

from tests.integration.gateway import Gateway, running_gateway, until
from tests.integration.servers import python_client
from tests.integration.toolboxes import Toolset, toolboxes
from tests.integration.wire import events, wire

TEXT = "# Refunds\n\nUp to 50 francs without asking."


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("guides") / "data") as gateway:
        yield gateway


def with_guide(gateway: Gateway, text: str = TEXT, mode: str = "list") -> Toolset:
    toolset = toolboxes(gateway, "red")
    body = {"name": "refunds", "description": "Who may get money back", "text": text}
    gateway.api("POST", f"/tenants/{toolset.tenant}/guides", body)
    changed = gateway.api(
        "PATCH", f"/tenants/{toolset.tenant}/toolsets/all", {"guides": ["ref*"], "mode": mode, "learns": False}
    )
    assert changed["shown_guides"] == ["refunds"]
    return toolset


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_reads_guides_in_either_era_and_nothing_starts(gateway: Gateway, mode: str) -> None:
    toolset = with_guide(gateway, mode="search")
    async with python_client(toolset, "streamable", mode=mode) as client:
        assert [each.name for each in (await client.list_prompts()).prompts] == ["refunds", "red_hello"]
        assert str((await client.list_resources()).resources[0].uri) == "guide://refunds"
        prompt = await client.get_prompt("refunds")
        assert prompt.messages[0].content.text == TEXT
        read = await client.read_resource("guide://refunds")
        assert read.contents[0].text == TEXT
        found = await client.call_tool("find_tools", {"query": "may I give money back"})
        assert found.structured_content["guides"][0]["text"] == TEXT
        # What a catalogue has asked may be ending; a process for this session would stay as long as the session.
        await until(lambda: not gateway.backends(), 20)


async def test_another_tenants_guides_are_never_seen(gateway: Gateway) -> None:
    with_guide(gateway, "theirs")
    mine = with_guide(gateway, "mine")
    async with wire(mine) as session:
        read = await session.request("resources/read", {"uri": "guide://refunds"})
        assert [each["text"] for each in read["contents"]] == ["mine"]
    empty = toolboxes(gateway, "blue")
    gateway.api("PATCH", f"/tenants/{empty.tenant}/toolsets/all", {"guides": ["*"]})
    async with wire(empty) as session:
        assert [each["name"] for each in (await session.request("prompts/list"))["prompts"]] == ["blue_hello"]


async def test_an_open_session_is_told_of_a_change(gateway: Gateway) -> None:
    toolset = with_guide(gateway)
    async with wire(toolset) as session:
        await session.request("resources/subscribe", {"uri": "guide://refunds"})
        async with session.stream("GET") as stream:
            gateway.api("PATCH", f"/tenants/{toolset.tenant}/guides/refunds", {"text": "new"})
            async for event in events(stream):
                if event.data and event.message["method"] == "notifications/resources/updated":
                    assert event.message["params"] == {"uri": "guide://refunds"}
                    break
        read = await session.request("resources/read", {"uri": "guide://refunds"})
        assert read["contents"][0]["text"] == "new"
        async with session.stream("GET") as stream:
            gateway.api("DELETE", f"/tenants/{toolset.tenant}/guides/refunds")
            async for event in events(stream):
                if event.data and event.message["method"] == "notifications/prompts/list_changed":
                    break
        assert [each["name"] for each in (await session.request("prompts/list"))["prompts"]] == ["red_hello"]
