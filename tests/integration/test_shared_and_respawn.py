"""Servers that keep no state: sessions that share a process, and sessions that outlive theirs. Over real HTTP."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, types
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from tests.integration.gateway import ROOT, Endpoint, Gateway, server_at, until
from tests.integration.servers import python_client, text_of
from tests.integration.wire import RpcError, Wire, error_of, events, last_message, listening, wire

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
SESSIONLESS_SERVER = [
    sys.executable,
    "-I",
    "-S",
    str(ROOT / "tests/conformance/stdio_backend.py"),
    "--era",
    "sessionless",
]
SHARED: dict[str, Any] = {"isolation": "shared", "max_processes": 1}


@pytest.fixture
def shared(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(STATELESS, **SHARED)


@pytest.fixture
def respawned(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(STATELESS, recovery="respawn")


async def whoami(session: Wire) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await session.call("whoami"))
    return found


async def held(session: Wire) -> None:
    """Waits until the process has a call that is answered `later`."""
    with anyio.fail_after(30):
        while "later" not in (await whoami(session))["heard"]:
            await anyio.sleep(0.02)


def kill(gateway: Gateway, stdin: int) -> None:
    (process,) = gateway.processes_of(stdin)
    process.kill()


# --- isolation: shared


async def test_sessions_share_one_process_that_was_initialised_once(shared: Endpoint) -> None:
    async with wire(shared) as first, wire(shared, version="2025-06-18") as second:
        one, other = await whoami(first), await whoami(second)
    assert one["process"] == other["process"]
    assert other["heard"] == ["initialize", "notifications/initialized"]


async def test_a_session_gets_the_revision_it_asks_for_if_the_server_may_know_it(shared: Endpoint) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        for asked, given in (("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25")):
            session = Wire(http, shared)
            params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
            request = {"jsonrpc": "2.0", "id": "mine", "method": "initialize", "params": params}
            answer = (await session.post(request)).json()
            assert (answer["id"], answer["result"]["protocolVersion"]) == ("mine", given)


async def test_answers_of_a_shared_process_reach_who_asked_though_all_ids_are_equal(shared: Endpoint) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:
        sessions = [Wire(http, shared) for _ in range(20)]
        for session in sessions:
            await session.open()
        answers: dict[int, list[str]] = {}

        async def talk(number: int) -> None:
            for step in range(20):
                message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
                text = f"{number}-{step}"
                message["params"] = {"name": "echo", "arguments": {"text": text}}
                said = last_message(await sessions[number].post(message))["result"]["content"][0]["text"]
                answers.setdefault(number, []).append("ok" if said == text else said)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(talk, number)
    assert answers == {number: ["ok"] * 20 for number in range(20)}


async def test_progress_goes_to_the_session_that_asked_for_it(shared: Endpoint) -> None:
    async with wire(shared) as first, wire(shared) as second:
        waiting = []

        async def wait(session: Wire) -> None:
            waiting.append(await session.call("later"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, second)
            await held(first)
            params = {"name": "progress", "arguments": {"n": 3}, "_meta": {"progressToken": "mine"}}
            message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
            async with first.stream("POST", message) as response:
                seen = [event.message async for event in events(response) if event.data]
            await first.call("release")
    assert [each["params"]["progressToken"] for each in seen[:-1]] == ["mine"] * 3
    assert seen[-1]["id"] == 5


async def test_what_a_shared_process_asks_is_refused_and_what_it_logs_meanwhile_is_dropped(
    gateway: Gateway, shared: Endpoint
) -> None:
    dropped = 'trunkline_messages_dropped_total{reason="unattributed"}'
    before = gateway.metrics().get(dropped, 0)
    async with wire(shared) as first, wire(shared) as second:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.call, "later")
            await held(second)
            await second.call("log", text="whose?")
            await second.call("ask")
            await second.call("release")
        assert "error" in (await whoami(second))["heard"]
    assert gateway.metrics()[dropped] == before + 1


async def test_changes_are_told_to_all_and_updates_to_who_subscribed(shared: Endpoint) -> None:
    async with wire(shared) as first, wire(shared) as second:
        for session in (first, second, first):
            await session.request("resources/subscribe", {"uri": "test://a"})
        await second.request("resources/subscribe", {"uri": "test://b"})
        async with listening(first) as to_first, listening(second) as to_second:
            await first.call("change")
            await first.call("update", uri="test://b")
            await until(lambda: len(to_second) == 2 and len(to_first) == 1, 20)
        assert (await whoami(first))["heard"].count("resources/subscribe test://a") == 1
        await first.request("resources/unsubscribe", {"uri": "test://a"})
        assert "resources/unsubscribe test://a" not in (await whoami(first))["heard"]
        await second.close()
        told = ["resources/unsubscribe test://a", "resources/unsubscribe test://b"]
        with anyio.fail_after(10):
            while (await whoami(first))["heard"][-2:] != told:
                await anyio.sleep(0.02)


async def test_a_shared_process_that_dies_fails_the_calls_of_all_and_ends_them(shared: Endpoint) -> None:
    async with wire(shared) as first, wire(shared) as second:
        reasons = []

        async def fail() -> None:
            reasons.append((await first.ask("later")).reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            await held(second)
            assert (await second.ask("crash")).reason == "backend_exited"
        assert reasons == ["backend_exited"]
        response = await first.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})
        assert response.status_code == 404
    async with wire(shared) as third:
        assert await third.call("echo", text="again") == "again"


async def test_a_session_that_does_not_read_holds_up_nobody(shared: Endpoint) -> None:
    async with wire(shared) as lazy, wire(shared) as other:
        params = {"name": "progress", "arguments": {"n": 60000}, "_meta": {"progressToken": 1}}
        message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        async with lazy.stream("POST", message):
            with anyio.fail_after(20):
                for step in range(50):
                    assert await other.call("echo", text=str(step)) == str(step)


async def test_warm_processes_of_a_shared_backend_are_initialised_ahead(gateway: Gateway) -> None:
    tenant = gateway.add_tenant()
    endpoint = gateway.endpoint(STATELESS, tenant=tenant, isolation="shared", warm=1, max_processes=2)

    def warm() -> list[Any]:
        found: list[Any] = gateway.api("GET", f"/tenants/{tenant}/processes")["items"]
        return [each for each in found if each["state"] == "warm"]

    await until(lambda: len(warm()) == 1, 30)
    process = server_at(warm()[0]["pid"])
    async with wire(endpoint) as session:
        assert (await whoami(session))["process"] == process


async def test_a_shared_backend_that_refuses_or_dies_says_so_at_once(gateway: Gateway) -> None:
    endpoint = gateway.endpoint([sys.executable, "-c", "import sys; sys.exit(7)"], **SHARED)
    async with httpx2.AsyncClient(timeout=30) as http:
        with anyio.fail_after(20):
            response = await Wire(http, endpoint).post(
                {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
            )
    assert response.status_code == 502
    assert error_of(response).reason == "backend_exited"


# --- isolation: shared, and a server that speaks 2026-07-28 only


async def test_clients_of_both_eras_share_a_process_that_speaks_the_sessionless_era_only(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(SESSIONLESS_SERVER, **SHARED)
    async with (
        python_client(endpoint, "streamable", mode="legacy", elicitation_callback=accept) as old,
        python_client(endpoint, "streamable", mode="legacy") as other,
        python_client(endpoint, "streamable", mode="auto", elicitation_callback=accept) as sessionless,
    ):
        assert (old.protocol_version, sessionless.protocol_version) == ("2025-11-25", "2026-07-28")
        found = [json.loads(text_of(await client.call_tool("whoami", {}))) for client in (old, other, sessionless)]
        assert len({each["process"] for each in found}) == 1
        assert {each["era"] for each in found} == {"sessionless"}
        assert [each["caps"] for each in found] == [["elicitation"], [], ["elicitation"]], "to each call its own client"

        # What is asked belongs to a call, so it can be put even though the process is shared.
        async def greeted(client: Client) -> None:
            assert text_of(await client.call_tool("test_input_required_result_elicitation", {})) == "Hello, Ada!"

        async with anyio.create_task_group() as tasks:
            for client in (old, sessionless, old, sessionless):
                tasks.start_soon(greeted, client)
        refused = await _answer_or_error(other, "test_input_required_result_elicitation")
        assert "elicitation" in refused

        steps: dict[str, list[float]] = {"old": [], "sessionless": []}

        async def progressed(name: str, client: Client) -> None:
            async def step(progress: float, total: float | None, message: str | None) -> None:
                steps[name].append(progress)

            await client.call_tool("test_tool_with_progress", {}, progress_callback=step)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(progressed, "old", old)
            tasks.start_soon(progressed, "sessionless", sessionless)
        assert steps == {"old": [0, 50, 100], "sessionless": [0, 50, 100]}
    assert len(gateway.api("GET", f"/tenants/{endpoint.tenant}/processes")["items"]) == 1


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
async def test_changes_of_a_shared_sessionless_process_reach_clients_of_both_eras(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(SESSIONLESS_SERVER, **SHARED)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))
        elif isinstance(message, types.ToolListChangedNotification):
            heard.append("tools")

    async with (
        python_client(endpoint, "streamable", mode="legacy", message_handler=hear) as old,
        python_client(endpoint, "streamable", mode="auto") as sessionless,
        sessionless.listen(tools_list_changed=True, resource_subscriptions=["test://watched-resource"]) as subscription,
    ):
        await old.subscribe_resource("test://watched-resource")
        events: list[Any] = []

        async def listen() -> None:
            async for event in subscription:
                events.append(event)  # noqa: PERF401 - looked at while more come

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await sessionless.call_tool("test_trigger_tool_change", {})
            await old.call_tool("test_trigger_resource_update", {"uri": "test://watched-resource"})
            await until(lambda: set(heard) == {"tools", "test://watched-resource"}, 10, lambda: heard)
            wanted = {ToolsListChanged(), ResourceUpdated(uri="test://watched-resource")}
            await until(lambda: wanted <= set(events), 10, lambda: events)
            tasks.cancel_scope.cancel()


async def _answer_or_error(client: Client, tool: str) -> str:
    try:
        return str(await client.call_tool(tool, {}))
    except MCPError as error:
        return str(error)


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


# --- recovery: respawn


async def test_the_next_call_works_after_the_process_died_and_the_handshake_is_said_again(respawned: Endpoint) -> None:
    async with wire(respawned) as session:
        await session.request("logging/setLevel", {"level": "info"})
        await session.request("resources/subscribe", {"uri": "test://a"})
        await session.request("resources/subscribe", {"uri": "test://b"})
        await session.request("resources/unsubscribe", {"uri": "test://b"})
        before = await whoami(session)
        async with listening(session) as told:
            assert (await session.ask("crash")).reason == "backend_exited"
            message = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "whoami"}}
            async with session.stream("POST", message) as response:  # it is the only call: it carries the warning
                news, answer = [event.message async for event in events(response) if event.data]
            await until(lambda: told, 20)
        after = json.loads(answer["result"]["content"][0]["text"])
    assert before["process"] != after["process"]
    said = ["initialize", "notifications/initialized", "logging/setLevel info", "resources/subscribe test://a"]
    assert after["heard"] == said
    assert (news["params"]["level"], news["params"]["logger"]) == ("warning", "trunkline")
    assert [each["method"] for each in told] == ["notifications/tools/list_changed"]


async def test_a_session_outlives_many_deaths_and_no_call_hangs(respawned: Endpoint) -> None:
    async with wire(respawned) as session:
        for _ in range(5):
            kill(respawned.gateway, (await whoami(session))["process"])
            with suppress(RpcError):  # it may have been written already
                await session.call("echo", text="in between")
            assert await session.call("echo", text="still here") == "still here"


async def test_a_session_whose_process_cannot_be_replaced_ends(gateway: Gateway, tmp_path: Path) -> None:
    endpoint = gateway.endpoint([*STATELESS, str(tmp_path / "first")], recovery="respawn")
    async with wire(endpoint) as session:
        assert (await session.ask("crash")).reason == "backend_exited"
        with anyio.fail_after(30):
            assert (await session.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})).status_code in (200, 404)
            assert (await session.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})).status_code == 404


async def test_sessions_that_share_a_process_all_outlive_it(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(STATELESS, **SHARED, recovery="respawn")
    async with wire(endpoint) as first, wire(endpoint) as second:
        process = (await whoami(first))["process"]
        assert (await second.ask("crash")).reason == "backend_exited"
        one, other = await whoami(first), await whoami(second)
    assert one["process"] == other["process"] != process
    assert other["heard"].count("initialize") == 1


# --- beneath clients of 2026-07-28


@pytest.mark.parametrize("fields", [{"recovery": "respawn"}, {**SHARED, "recovery": "respawn"}])
async def test_a_line_of_the_sessionless_era_shares_and_outlives_its_process_too(
    gateway: Gateway, fields: dict[str, Any]
) -> None:
    endpoint = gateway.endpoint(STATELESS, **fields)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}

    async def call(http: httpx2.AsyncClient, tool: str) -> Any:
        params = {"name": tool, "arguments": {}, "_meta": meta}
        headers = {**endpoint.headers, "Accept": "application/json, text/event-stream", "Mcp-Name": tool}
        headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return last_message(await http.post(endpoint.mcp, json=body, headers=headers))

    async with httpx2.AsyncClient(timeout=30) as http:
        before = json.loads((await call(http, "whoami"))["result"]["content"][0]["text"])
        assert (await call(http, "crash"))["error"]["data"]["reason"] == "backend_exited"
        after = json.loads((await call(http, "whoami"))["result"]["content"][0]["text"])
    assert before["process"] != after["process"]
