"""Clients of 2026-07-28 through a real gateway, in front of real servers of either era."""

import base64
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters, types
from mcp.client.stdio import stdio_client

from app.auth.sealing import Sealer
from app.backends.pipes import PipeLimits
from app.backends.pool import PoolOptions, ProcessPool
from app.backends.supervisor import ProcessEnvironment, Supervisor, SupervisorOptions
from app.domain import BackendSpec, Limits, Principal
from app.errors import StateRefused
from app.metrics import Metrics
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.registry import SessionRegistry
from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.servers import EVERYTHING, python_client, text_of
from tests.sessions.fakes import FakeStore
from tests.sessions.modern_client import ELICITS
from tests.sessions.modern_client import Client as InnerClient

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
ERAS = ("legacy", "dual", "modern")
ASKS_TWICE = "test_input_required_result_multi_round"


def server_of(era: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era", era]


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


# --- the official client, as it comes


@pytest.mark.parametrize("era", ERAS)
async def test_the_python_client_speaks_the_modern_era_in_front_of_any_server(gateway: Gateway, era: str) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    endpoint = gateway.endpoint(server_of(era))
    async with python_client(endpoint, "streamable", mode="auto", elicitation_callback=accept) as client:
        assert client.protocol_version == MODERN
        assert text_of(await client.call_tool("test_simple_text", {})).startswith("This is a simple text")
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert "test://static-text" in uris
        await client.call_tool("test_tool_with_progress", {}, progress_callback=progressed)
        assert steps == [0, 50, 100]
        assert text_of(await client.call_tool("test_input_required_result_elicitation", {})) == "Hello, Ada!"
        assert text_of(await client.call_tool("test_x_mcp_header", {"region": "eu grüße"})) == "region=eu grüße"


@pytest.mark.node
async def test_the_python_client_speaks_the_modern_era_in_front_of_server_everything(gateway: Gateway) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    endpoint = gateway.endpoint(EVERYTHING)
    async with python_client(endpoint, "streamable", mode="auto", elicitation_callback=accept) as client:
        assert client.protocol_version == MODERN
        assert text_of(await client.call_tool("echo", {"message": "hi"})) == "Echo: hi"
        assert (await client.list_resources()).resources
        arguments = {"duration": 0.2, "steps": 2}
        await client.call_tool("trigger-long-running-operation", arguments, progress_callback=progressed)
        assert steps == [1, 2]
        elicited = await client.call_tool("trigger-elicitation-request", {})
        assert "Ada" in json.dumps([content.text for content in elicited.content])


# --- many at once


class ModernWire:
    """Requests of 2026-07-28 by hand."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint) -> None:
        self.http, self.endpoint = http, endpoint
        self.ids = itertools.count(1)

    async def call(self, tool: str, **params: Any) -> dict[str, Any]:
        meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": ELICITS}
        body = {
            "jsonrpc": "2.0",
            "id": next(self.ids),
            "method": "tools/call",
            "params": {"name": tool, "_meta": meta, **params},
        }
        headers = {
            **self.endpoint.headers,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        response = await self.http.post(self.endpoint.mcp, json=body, headers=headers)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["id"] == body["id"]
        return answer["result"]  # type: ignore[no-any-return]

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


def _executed(gateway: Gateway) -> float:
    prefix = "mcp_client_operation_duration_seconds_count{"
    metrics = gateway.metrics()
    return sum(value for name, value in metrics.items() if name.startswith(prefix) and '"tools/call"' in name)


@pytest.mark.parametrize("calls", [20, pytest.param(200, marks=pytest.mark.long)])
async def test_many_calls_that_are_asked_twice_get_their_own_results_and_none_runs_twice(
    start_gateway: Callable[..., Gateway], calls: int
) -> None:
    gateway = start_gateway(MAX_PROCESSES="500", DRAIN_S="1")
    endpoint = gateway.endpoint(server_of("legacy"), max_processes=500)
    limits = httpx2.Limits(max_connections=calls)
    got: dict[int, str] = {}
    async with httpx2.AsyncClient(timeout=120, limits=limits) as http, anyio.create_task_group() as tasks:
        wire = ModernWire(http, endpoint)

        async def one(number: int) -> None:
            is_leaving = number % 10 == 9  # it is asked, and never comes back
            if is_leaving:
                await wire.call(ASKS_TWICE, arguments={"n": number})
                return
            got[number] = await wire.answer_all(ASKS_TWICE, {"n": number}, str(number), 2)

        for number in range(calls):
            tasks.start_soon(one, number)
    expected = {number: f"name-{number} likes color-{number}" for number in range(calls) if number % 10 != 9}
    assert got == expected
    assert _executed(gateway) == len(expected), "what is suspended has not run to its end, everything else once"


@asynccontextmanager
async def real_sessions(spec: BackendSpec, directory: Path, suspended_s: float) -> AsyncIterator[Any]:
    """Implicit sessions in this process, over real processes and with a suspension time of the test's own."""
    metrics = Metrics("test")
    environment = ProcessEnvironment.of_this_process(str(directory), str(directory))
    options = SupervisorOptions(environment=environment, limits=PipeLimits())
    store = FakeStore(spec, limits=Limits(sessions=None, processes=None, in_flight=None, spawns_per_minute=None))
    backends = BackendDirectory(SimpleNamespace(get=store.get_backend), SimpleNamespace(get=store.get_tenant))
    async with (
        Supervisor(metrics, options) as supervisor,
        ProcessPool(supervisor, metrics, PoolOptions(max_processes=500)) as pool,
        SessionRegistry(backends, pool, metrics, max_sessions=500) as registry,
    ):
        yield SimpleNamespace(
            registry=registry, implicit=ImplicitSessions(registry, Sealer(b"k" * 32), suspended_s=suspended_s)
        )


async def test_processes_of_clients_that_never_come_back_are_free_after_the_time(tmp_path: Path) -> None:
    argv = server_of("legacy")
    spec = BackendSpec("acme", "echo", argv[0], tuple(argv[1:]), max_processes=50)
    suspended_s = 0.5
    async with real_sessions(spec, tmp_path, suspended_s) as node:
        client = InnerClient(node.implicit, Principal("acme", "key", "k1", frozenset()), ELICITS)
        results: list[Any] = []
        async with anyio.create_task_group() as tasks:

            async def begin() -> None:
                sent = await client.send(name=ASKS_TWICE)
                with anyio.fail_after(30):
                    await sent.reply.outcome
                results.append(await sent.outcome())

            for _ in range(5):
                tasks.start_soon(begin)
        started = time.monotonic()
        lines = list(node.implicit.lines.of(client.caller.key))
        await until(lambda: not len(node.implicit.suspended), 10)
        await until(lambda: all(line.held_by is None for line in lines), 10)
        # The sweep looks every quarter of a second, and a cancelled call may take two seconds to stop.
        assert time.monotonic() - started < suspended_s + 0.25 + 2.0 + 1.0
        assert {session.gate.in_flight for session in node.registry} == {0}
        for result in results:
            with pytest.raises(StateRefused) as refused:
                await client.go_on(result, {}, name=ASKS_TWICE)
            assert refused.value.reason == "state_lost"
        again = await client.send(name="test_simple_text")
        with anyio.fail_after(10):
            await again.reply.outcome
        assert (await again.outcome())["resultType"] == "complete"
        assert len(list(node.implicit.lines.of(client.caller.key))) == len(lines), "a freed process is used again"


# --- the same as without a gateway

TIME_OR_CHANCE = {
    "get-env": "the environment is another one on purpose",
    "trigger-sampling-request": "needs a model",
    "trigger-elicitation-request": "needs a person",
    "get-roots-list": "needs roots",
    "toggle-simulated-logging": "starts a timer",
    "toggle-subscriber-updates": "starts a timer",
    "gzip-file-as-resource": "fetches from the network",
    "simulate-research-query": "takes seconds, and tasks",
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "echo": {"message": "grüße"},
    "get-sum": {"a": 2, "b": 40},
    "get-annotated-message": {"messageType": "error", "includeImage": True},
    "get-resource-links": {"count": 2},
    "get-resource-reference": {"resourceType": "Text", "resourceId": 1},
    "get-structured-content": {"location": "Chicago"},
    "trigger-long-running-operation": {"duration": 0.1, "steps": 1},
}
PROMPTS: dict[str, dict[str, str]] = {
    "args-prompt": {"city": "Lyon"},
    "completable-prompt": {"department": "Engineering", "name": "Alice"},
    "resource-prompt": {"resourceType": "Text", "resourceId": "1"},
}
_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\s?[AP]M)?")


def plain(result: Any) -> Any:
    """The result without what the gateway or the revision adds, and without the time of day."""
    found = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in ("_meta", "resultType", "ttlMs", "cacheScope"):
        found.pop(name, None)
    for content in found.get("contents", []):
        if "blob" in content and content["mimeType"] == "text/plain":
            content["blob"] = base64.b64decode(content["blob"]).decode()
    return json.loads(_CLOCK.sub("TIME", json.dumps(found)))


async def everything_it_says(client: Client) -> dict[str, Any]:
    """Every tool, resource, prompt and completion of server-everything."""
    said: dict[str, Any] = {}
    tools = await client.list_tools()
    said["tools"] = {tool.name: tool.model_dump(mode="json", exclude_none=True) for tool in tools.tools}
    for name in said["tools"].keys() - TIME_OR_CHANCE.keys():
        said[f"tool {name}"] = plain(await client.call_tool(name, ARGUMENTS.get(name, {})))
    resources = await client.list_resources()
    said["resources"] = plain(resources)
    said["templates"] = plain(await client.list_resource_templates())
    for resource in resources.resources:
        said[f"resource {resource.uri}"] = plain(await client.read_resource(resource.uri))
    for uri in ("demo://resource/dynamic/text/1", "demo://resource/dynamic/blob/2"):
        said[f"resource {uri}"] = plain(await client.read_resource(uri))
    prompts = await client.list_prompts()
    said["prompts"] = plain(prompts)
    for prompt in prompts.prompts:
        said[f"prompt {prompt.name}"] = plain(await client.get_prompt(prompt.name, PROMPTS.get(prompt.name, {})))
    for value in ("E", "", "x"):
        reference = types.PromptReference(type="ref/prompt", name="completable-prompt")
        said[f"completion {value}"] = plain(await client.complete(reference, {"name": "department", "value": value}))
    return said


@pytest.mark.node
async def test_server_everything_says_the_same_through_the_gateway_as_without(gateway: Gateway) -> None:
    server = StdioServerParameters(command=EVERYTHING[0], args=EVERYTHING[1:])
    async with Client(stdio_client(server), mode="legacy") as direct:
        expected = await everything_it_says(direct)
    assert len(expected) > 20
    endpoint = gateway.endpoint(EVERYTHING)
    for mode in ("legacy", "auto"):
        async with python_client(endpoint, "streamable", mode=mode) as client:
            found = await everything_it_says(client)
        for what in expected.keys() | found.keys():
            assert found.get(what) == expected.get(what), f"{mode}: {what}"
