"""Clients of 2026-07-28 through a real gateway, in front of real servers of either era."""

import itertools
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp import types

from app.processes.supervisor import EOF_GRACE_S
from app.protocol.commands import CANCEL_GRACE_S
from app.sessions.sweeping import SWEEP_S
from tests.integration.gateway import ROOT, Endpoint, Gateway, for_backends, running_gateway, server_at, stdin_of, until
from tests.integration.servers import EVERYTHING, python_client, text_of
from tests.integration.stopwatch import stopwatch
from tests.sessions.sessionless.client import ELICITS

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")

SESSIONLESS = "2026-07-28"
META = "io.modelcontextprotocol/"
ERAS = ("legacy", "dual", "sessionless")
ASKING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/asks_twice.py")]
ASKS_TWICE = "test_input_required_result_multi_round"
BUSY_S = 10.0  # more than things take, on a machine that is busy


def server_of(era: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era", era]


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


# --- the official client, as it comes


@pytest.mark.parametrize("era", ERAS)
async def test_the_python_client_speaks_the_sessionless_era_in_front_of_any_server(gateway: Gateway, era: str) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    endpoint = gateway.endpoint(server_of(era))
    async with python_client(endpoint, "streamable", mode="auto", elicitation_callback=accept) as client:
        assert client.protocol_version == SESSIONLESS
        assert text_of(await client.call_tool("test_simple_text", {})).startswith("This is a simple text")
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert "test://static-text" in uris
        await client.call_tool("test_tool_with_progress", {}, progress_callback=progressed)
        assert steps == [0, 50, 100]
        assert text_of(await client.call_tool("test_input_required_result_elicitation", {})) == "Hello, Ada!"
        assert text_of(await client.call_tool("test_x_mcp_header", {"region": "eu grüße"})) == "region=eu grüße"


@pytest.mark.node
async def test_the_python_client_speaks_the_sessionless_era_in_front_of_server_everything(gateway: Gateway) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    endpoint = gateway.endpoint(EVERYTHING)
    async with python_client(endpoint, "streamable", mode="auto", elicitation_callback=accept) as client:
        assert client.protocol_version == SESSIONLESS
        assert text_of(await client.call_tool("echo", {"message": "hi"})) == "Echo: hi"
        assert (await client.list_resources()).resources
        arguments = {"duration": 0.2, "steps": 2}
        await client.call_tool("trigger-long-running-operation", arguments, progress_callback=progressed)
        assert steps == [1, 2]
        elicited = await client.call_tool("trigger-elicitation-request", {})
        assert "Ada" in json.dumps([content.text for content in elicited.content])


# --- many at once


class SessionlessWire:
    """Requests of 2026-07-28 by hand."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint) -> None:
        self.http, self.endpoint = http, endpoint
        self.ids = itertools.count(1)

    async def _post(self, tool: str, **params: Any) -> tuple[int, Any]:
        meta = {META + "protocolVersion": SESSIONLESS, META + "clientCapabilities": ELICITS}
        body = {
            "jsonrpc": "2.0",
            "id": next(self.ids),
            "method": "tools/call",
            "params": {"name": tool, "_meta": meta, **params},
        }
        headers = {
            **self.endpoint.headers,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": SESSIONLESS,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        response = await self.http.post(self.endpoint.mcp, json=body, headers=headers)
        answer = response.json()
        assert answer["id"] == body["id"]
        return response.status_code, answer

    async def call(self, tool: str, **params: Any) -> dict[str, Any]:
        """A request's result."""
        status, answer = await self._post(tool, **params)
        assert status == 200, answer
        return answer["result"]  # type: ignore[no-any-return]

    async def refused(self, tool: str, arguments: dict[str, Any], state: str) -> dict[str, Any]:
        """The error that a retry comes to."""
        status, answer = await self._post(tool, arguments=arguments, requestState=state, inputResponses={})
        assert status == 400, answer
        return answer["error"]  # type: ignore[no-any-return]

    async def answer_all(self, tool: str, arguments: dict[str, Any], mark: str, rounds: int) -> str:
        """Calls the tool and answers so many rounds of questions with the mark; the text of the result."""
        more: dict[str, Any] = {}
        for _ in range(rounds):
            result = await self.call(tool, arguments=arguments, **more)
            assert result["resultType"] == "input_required", result
            answers = {}
            for key, question in result["inputRequests"].items():
                fields = question["params"]["requestedSchema"]["properties"]
                answers[key] = {"action": "accept", "content": {name: f"{name}-{mark}" for name in fields}}
            more = {"inputResponses": answers, "requestState": result["requestState"]}
        result = await self.call(tool, arguments=arguments, **more)
        return str(result["content"][0]["text"])


def impatient(suspended_s: float) -> type[Gateway]:
    """A gateway that gives clients seconds instead of minutes to come back; the limit is no setting."""

    class Impatient(Gateway):
        FIRST = (
            "from app.sessions.sessionless.requests import SessionlessRequests\n"
            f"SessionlessRequests.__init__.__kwdefaults__['suspended_s'] = {suspended_s}"
        )

    return Impatient


@pytest.mark.parametrize(
    ("calls", "suspended_s"),
    # Clients come back at once, but two cores are busy starting 200 processes.
    [(20, 6.0), pytest.param(200, 10.0, marks=[pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(300)])],
)
async def test_many_calls_that_are_asked_twice_get_their_own_results_and_abandoned_ones_give_their_process_back(
    tmp_path: Path, calls: int, suspended_s: float
) -> None:
    journal = for_backends(tmp_path) / "journal"
    with running_gateway(tmp_path / "data", impatient(suspended_s), MAX_PROCESSES="500") as gateway:
        tenant = gateway.add_tenant()
        endpoint = gateway.endpoint([*ASKING, str(journal)], tenant=tenant, max_processes=500, recovery="respawn")
        limits = httpx2.Limits(max_connections=calls)
        got: dict[int, str] = {}
        abandoned: dict[int, dict[str, Any]] = {}
        async with httpx2.AsyncClient(timeout=120, limits=limits) as http:
            wire = SessionlessWire(http, endpoint)

            async def one(number: int) -> None:
                if number % 10 == 9:  # it is asked, and never comes back
                    abandoned[number] = await wire.call("choose", arguments={"n": number})
                else:
                    got[number] = await wire.answer_all("choose", {"n": number}, str(number), 2)

            async with anyio.create_task_group() as tasks:
                for number in range(calls):
                    tasks.start_soon(one, number)
            expected = {number: f"name-{number} likes color-{number}" for number in range(calls) if number % 10 != 9}
            assert got == expected

            processes = {_process_of(number, result) for number, result in abandoned.items()}
            assert len(processes) == calls // 10, "each abandoned call has a process to itself"

            def leased() -> set[int | None]:
                listed = gateway.api("GET", f"/tenants/{tenant}/processes?limit=200")["items"]
                return {server_at(each["pid"]) for each in listed}

            # The limit, the sweep that notices, what a cancelled call may take to stop, and the stop itself.
            within_s = suspended_s + SWEEP_S + CANCEL_GRACE_S + EOF_GRACE_S + BUSY_S
            await until(lambda: not processes & living(gateway), within_s)
            await until(lambda: leased() == living(gateway), BUSY_S, lambda: (leased(), living(gateway)))
            others = living(gateway)
            assert others
            assert not processes & others

            late = next(iter(abandoned))
            refusal = await wire.refused("choose", {"n": late}, abandoned[late]["requestState"])
            assert refusal["data"]["reason"] == "state_lost"
            assert await wire.answer_all("choose", {"n": calls}, "again", 2) == "name-again likes color-again"
            assert leased() == others, "a process that was used before is used again"

    lines = journal.read_text().splitlines()
    assert sorted(lines) == sorted(
        [f"began {number}" for number in range(calls + 1)] + [f"ended {number}" for number in [*expected, calls]]
    ), "everything ran once, and what was abandoned not to its end"


def living(gateway: Gateway) -> set[int | None]:
    """The backends that live, by their stdin."""
    return {stdin_of(each.pid) for each in gateway.backends()}


def _process_of(number: int, result: dict[str, Any]) -> int:
    """Which process asked, by its stdin; the question must be this call's."""
    (question,) = result["inputRequests"].values()
    of_call, stdin = question["params"]["message"].split()
    assert of_call == str(number)
    return int(stdin)


# --- the end


async def test_a_process_without_state_that_does_not_answer_a_cancelled_call_is_stopped_and_the_next_gets_another(
    gateway: Gateway, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    endpoint = gateway.endpoint([*ASKING, str(journal)], recovery="respawn")
    async with httpx2.AsyncClient(timeout=30) as http:
        wire = SessionlessWire(http, endpoint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(wire.call, "ponder", arguments={}))
            await until(lambda: journal.exists() and journal.read_text().endswith("\n"), 20)
            tasks.cancel_scope.cancel()  # which closes the connection, and that is the cancel of this revision
        pondering = int(journal.read_text().split()[1])
        asked = await wire.call("choose", arguments={"n": 1})
        assert _process_of(1, asked) != pondering
        await until(lambda: pondering not in living(gateway), CANCEL_GRACE_S + SWEEP_S + EOF_GRACE_S + BUSY_S)
        assert _process_of(1, asked) in living(gateway)


async def test_a_call_that_waits_for_its_client_does_not_hold_up_the_drain(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data", DRAIN_S="30") as gateway:
        endpoint = gateway.endpoint(server_of("legacy"))
        async with httpx2.AsyncClient(timeout=30) as http:
            await SessionlessWire(http, endpoint).call(ASKS_TWICE, arguments={})
        async with stopwatch(gateway) as watch:
            gateway.terminate()
            assert await anyio.to_thread.run_sync(gateway.process.wait, 45) == 0
            # The sweep that notices, and then nothing but the stop of processes and listeners.
            assert watch.seconds < 8, gateway.log_tail()
