"""What a shared process keeps apart for two principals: tasks, logs, levels, subscriptions. Over real HTTP."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.test_shared_and_respawn import SHARED
from tests.integration.wire import RpcError, Wire, listening

TASKS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/tasks.py")]
NO_SUCH_TASK = str({"code": -32602, "message": "Task not found"})


async def refusal(client: Wire | SessionlessClient, method: str, **params: Any) -> str:
    """The error that the request gets."""
    try:
        if isinstance(client, Wire):
            found = await client.request(method, params)
        else:
            found = await client.request(method, more={"Mcp-Name": params["taskId"]}, **params)
    except RpcError as error:
        return str(error)
    raise AssertionError(f"answered with {found}")


@asynccontextmanager
async def two_principals(
    gateway: Gateway, http: httpx2.AsyncClient, **fields: Any
) -> AsyncIterator[tuple[Wire, Wire, Wire]]:
    """Two sessions of one principal, and one of another."""
    endpoint = gateway.endpoint(TASKS, **SHARED, **fields)
    other = gateway.key(endpoint.tenant)
    async with AsyncExitStack() as stack:
        sessions = [Wire(http, endpoint), Wire(http, endpoint), Wire(http, endpoint, key=other)]
        for session in sessions:
            await session.open()
            stack.push_async_callback(session.close)
        yield sessions[0], sessions[1], sessions[2]


async def start(session: Wire) -> str:
    result = await session.request("tools/call", {"name": "start", "task": {"ttl": 60000}})
    return str(result["task"]["taskId"])


async def test_tasks_are_their_principals(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    async with two_principals(gateway, http) as (mine, again, other):
        first, second, third = await start(mine), await start(other), await start(again)
        for session in (mine, again):
            assert (await session.request("tasks/get", {"taskId": first}))["taskId"] == first
            listed = (await session.request("tasks/list"))["tasks"]
            assert [each["taskId"] for each in listed] == [first, third]
        assert [each["taskId"] for each in (await other.request("tasks/list"))["tasks"]] == [second]
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert await refusal(other, method, taskId=first) == NO_SUCH_TASK
            assert await refusal(other, method, taskId="task-99") == NO_SUCH_TASK
            assert await refusal(mine, method, taskId=second) == NO_SUCH_TASK
        await mine.close()
        assert (await again.request("tasks/result", {"taskId": first}))["taskId"] == first


@pytest.mark.parametrize("era", [[], ["sessionless"]])
async def test_so_they_are_for_clients_of_the_sessionless_era(
    gateway: Gateway, http: httpx2.AsyncClient, era: list[str]
) -> None:
    endpoint = gateway.endpoint([*TASKS, *era], **SHARED)
    stranger = Endpoint(gateway, endpoint.tenant, endpoint.name, endpoint.base, gateway.key(endpoint.tenant))
    mine, again, other = (SessionlessClient(http, each, [each.mcp]) for each in (endpoint, endpoint, stranger))
    again.capabilities = {"elicitation": {}}  # in front of a handshake-era server: another session
    made = await mine.request("tools/call", name="start", arguments={})
    task = made["taskId"] if era else made["task"]["taskId"]
    for client in (mine, again):
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            assert (await client.request(method, more={"Mcp-Name": task}, taskId=task))["taskId"] == task
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        assert await refusal(other, method, taskId=task) == NO_SUCH_TASK
        assert await refusal(other, method, taskId="task-99") == NO_SUCH_TASK


async def test_what_names_no_call_reaches_nobody_and_what_names_a_task_its_maker(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    async with (
        two_principals(gateway, http) as (mine, again, other),
        listening(mine) as to_mine,
        listening(again) as to_again,
        listening(other) as to_other,
    ):
        task = await start(mine)
        await mine.call("say", level="error", text="secret")  # the only call there is
        await other.call("finish", task=task)
        await until(lambda: len(to_mine) == 2, 10, lambda: to_mine)
        # What one is told comes in order: nothing can have come before this.
        for session in (again, other):
            await session.request("resources/subscribe", {"uri": "test://a"})
        await mine.call("update", uri="test://a")
        await until(lambda: to_again and to_other, 10)
    assert [each["method"] for each in to_mine] == ["notifications/tasks/status", "notifications/message"]
    assert [each["method"] for each in to_again + to_other] == ["notifications/resources/updated"] * 2


async def test_or_everybody_where_the_administrator_says_so_each_from_its_level_on(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    async with (
        two_principals(gateway, http, broadcast=True) as (mine, again, other),
        listening(mine) as to_mine,
        listening(again) as to_again,
        listening(other) as to_other,
    ):
        await mine.request("logging/setLevel", {"level": "debug"})
        await other.request("logging/setLevel", {"level": "error"})
        assert "-32602" in await refusal(again, "logging/setLevel", level="verbose")
        assert json.loads(await again.call("levels")) == ["debug"]
        for level in ("debug", "info", "error"):
            await again.call("say", level=level, text=level)
        await until(lambda: [len(each) for each in (to_mine, to_other)] == [6, 4], 10, lambda: (to_mine, to_other))
        await mine.close()
        with anyio.fail_after(10):
            while (said := json.loads(await again.call("levels"))) == ["debug"]:
                await anyio.sleep(0.02)
        assert said == ["debug", "info"]

    def levels(heard: list[Any]) -> list[str]:
        return [each["params"]["level"] for each in heard if each["method"] == "notifications/message"]

    assert (levels(to_mine), levels(to_other)) == (["debug", "info", "error"], ["error"])
    assert "debug" not in levels(to_again)


@pytest.mark.parametrize("era", [[], ["sessionless"]])
async def test_a_sessionless_client_that_asks_for_no_log_messages_hears_none(
    gateway: Gateway, http: httpx2.AsyncClient, era: list[str]
) -> None:
    endpoint = gateway.endpoint([*TASKS, *era], **SHARED, broadcast=True)
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    response = await client.post("tools/call", name="say", arguments={"level": "error", "text": "x"})
    assert "notifications/message" not in response.text


async def test_updates_concern_whole_path_elements(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    async with (
        two_principals(gateway, http) as (mine, again, other),
        listening(mine) as to_mine,
        listening(again) as to_again,
        listening(other) as to_other,
    ):
        await mine.request("resources/subscribe", {"uri": "file:///a"})
        await again.request("resources/subscribe", {"uri": "file:///a/b"})
        await other.request("resources/subscribe", {"uri": "file:///a/bc"})
        await mine.call("update", uri="file:///a/b")
        await until(lambda: to_mine and to_again, 10)
        await mine.call("update", uri="file:///a/bc")
        await until(lambda: to_other and len(to_mine) == 2, 10)

    def uris(heard: list[Any]) -> list[str]:
        return [each["params"]["uri"] for each in heard]

    assert uris(to_mine) == ["file:///a/b", "file:///a/bc"]
    assert (uris(to_again), uris(to_other)) == (["file:///a/b"], ["file:///a/bc"])


async def test_so_they_do_for_a_subscription_of_the_sessionless_era(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = gateway.endpoint(TASKS, **SHARED)
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    async with client.listen(endpoint.mcp, resourceSubscriptions=["file:///a"]) as heard:
        for uri in ("file:///ab", "file:///a/b"):
            await client.call("update", uri=uri)
        with anyio.fail_after(10):
            assert (await anext(heard))["params"]["uri"] == "file:///a/b"
