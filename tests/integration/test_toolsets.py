"""A toolset is one address for several backends: everything of every member passes, and only what is called runs."""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from tests.integration.gateway import Gateway, running_gateway, until
from tests.integration.toolboxes import in_flight, toolboxes
from tests.integration.wire import RpcError, Wire, events, rpc, wire


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("toolsets") / "data") as gateway:
        yield gateway


async def names(session: Wire, method: str, member: str, key: str = "name") -> list[str]:
    return [each[key] for each in (await session.request(method))[member]]


async def test_the_lists_are_those_of_all_members_and_start_nothing(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    assert [each["tools"] for each in toolset.made["status"]] == [6, 6]
    await gateway.wait_for_backends(0)
    async with wire(toolset) as session:
        tools = await names(session, "tools/list", "tools")
        assert tools[:3] == ["red_say", "red_slow", "red_ask"]
        assert "blue_count" in tools
        assert await names(session, "prompts/list", "prompts") == ["red_hello", "blue_hello"]
        uris = await names(session, "resources/list", "resources", "uri")
        assert uris == ["note://red/1", "note://all", "note://blue/1"]
        templates = await names(session, "resources/templates/list", "resourceTemplates", "uriTemplate")
        assert templates == ["red://{id}", "blue://{id}"]
        assert not gateway.backends()
        assert await session.call("blue_say", text="hi") == "blue: hi"
        assert len(gateway.backends()) == 1
        assert await session.call("red_say", text="hi") == "red: hi"
        assert await session.call("blue_count") == "blue: 2"
    await gateway.wait_for_backends(0)


async def test_every_kind_of_request_reaches_its_member(gateway: Gateway) -> None:
    async with wire(toolboxes(gateway, "red", "blue")) as session:
        for uri, member in (("note://blue/1", "blue"), ("red://7", "red"), ("ui://blue/app", "blue")):
            read = await session.request("resources/read", {"uri": uri})
            assert read["contents"] == [{"uri": uri, "text": member}]
        prompt = await session.request("prompts/get", {"name": "blue_hello"})
        assert prompt["messages"][0]["content"]["text"] == "blue {'name': 'hello'}"
        ref = {"type": "ref/prompt", "name": "red_hello"}
        completion = await session.request("completion/complete", {"ref": ref, "argument": {"name": "a", "value": ""}})
        assert completion["completion"]["values"] == ["red", "hello"]
        assert (await session.ask("green_say")).code == -32602


async def test_questions_with_equal_ids_come_back_to_those_who_asked(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    async with wire(toolset, capabilities={"roots": {}}) as session:
        asked: dict[str, Any] = {}

        async def call(name: str) -> None:
            async with session.stream("POST", rpc("tools/call", name, {"name": f"{name}_ask"})) as response:
                async for event in events(response):
                    message: Any = event.message if event.data else {"method": "primed"}
                    if message.get("method") == "roots/list":
                        result = {"roots": [{"uri": f"file:///{name}"}]}
                        posted = await session.post({"jsonrpc": "2.0", "id": message["id"], "result": result})
                        assert posted.status_code == 202
                    elif "result" in message:
                        asked[name] = message["result"]["content"][0]["text"]

        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, "red")
                tasks.start_soon(call, "blue")
            assert asked == {name: f'{name}: {{"roots": [{{"uri": "file:///{name}"}}]}}' for name in ("red", "blue")}


async def test_a_member_that_dies_fails_only_its_calls_once_each(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    async with wire(toolset) as session:
        assert await session.call("red_say", text="a") == "red: a"
        results: dict[str, str] = {}

        async def call(tool: str, **arguments: Any) -> None:
            try:
                results[tool] = await session.call(tool, **arguments)
            except RpcError as error:
                results[tool] = str(error.reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "red_slow")
            tasks.start_soon(lambda: call("blue_slow", seconds=30))
            await until(lambda: in_flight(gateway, toolset) == 2 - len(results), 20)
            tasks.start_soon(call, "blue_die")
        assert results == {"red_slow": "red: late", "blue_slow": "backend_exited", "blue_die": "backend_exited"}
        assert await session.call("red_count") == "red: 3"
        assert await session.call("blue_count") == "blue: 1"


async def test_a_member_whose_tools_change_changes_the_list(gateway: Gateway) -> None:
    async with wire(toolboxes(gateway, "red", "blue")) as session:
        assert await session.call("red_grow") == "red: "
        async with session.stream("GET") as stream:
            async for event in events(stream):
                if event.data and event.message["method"] == "notifications/tools/list_changed":
                    break
        assert "red_grown" in await names(session, "tools/list", "tools")
