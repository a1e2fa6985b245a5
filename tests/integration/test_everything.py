"""server-everything says the same through the gateway as without: every tool, resource, prompt and completion.

The yardstick is the official client on the server's own stdin and stdout. What it is told, and what it is asked, must
be what a client of either era is told and asked through the gateway. What varies by itself is replaced, and only that:

- the time of day in the texts of dynamic resources;
- the name of the process in the environment that `get-env` shows (TRUNKLINE_PROCESS);
- the level of a simulated log message, which the server draws at random;
- ids of tasks and of URL elicitations, which the server draws at random, and the times of tasks;
- within a toolset, what the other members offer; and the tools that the server adds once it knows its client's
  capabilities are there after the first call, as a member starts with that;
- what the revisions write differently: 2026-07-28 has no `elicitationId`, and before it a form need not say its `mode`.
"""

import base64
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import TaskGroup
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.message import SessionMessage

from tests.integration.gateway import Endpoint, Gateway, marked, name_of, until
from tests.integration.servers import EVERYTHING, python_client
from tests.integration.toolboxes import among_toolboxes

pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")]

SESSIONLESS = "2026-07-28"
URL_ELICITATION_REQUIRED = -32042  # of 2025-11-25
WATCHED = "demo://resource/dynamic/text/1"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "echo": {"message": "grüße"},
    "get-sum": {"a": 2, "b": 40},
    "get-annotated-message": {"messageType": "error", "includeImage": True},
    "get-resource-links": {"count": 2},
    "get-resource-reference": {"resourceType": "Text", "resourceId": 1},
    "get-structured-content": {"location": "Chicago"},
    "gzip-file-as-resource": {"name": "a.txt.gz", "data": "data:text/plain,hello", "outputType": "resource"},
    "simulate-research-query": {"topic": "python"},
    "trigger-long-running-operation": {"duration": 0.3, "steps": 3},
    "trigger-sampling-request": {"prompt": "a riddle", "maxTokens": 9},
    "trigger-url-elicitation": {"url": "https://a.example/", "elicitationId": "mine"},
}
# What is called once more, with other arguments or because it toggles.
AGAIN: dict[str, dict[str, Any]] = {
    "get-annotated-message": {"messageType": "debug"},
    "gzip-file-as-resource": {"name": "b.txt.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"},
    "toggle-simulated-logging": {},
    "trigger-url-elicitation": {"url": "https://b.example/", "elicitationId": "mine", "errorPath": True},
}
WITH_TASKS = {
    "trigger-sampling-request-async": {"prompt": "a riddle", "maxTokens": 9},
    "trigger-elicitation-request-async": {},
    "simulate-research-query": {"topic": "python", "ambiguous": True},
}
PROMPTS: dict[str, dict[str, str]] = {
    "args-prompt": {"city": "Lyon"},
    "completable-prompt": {"department": "Engineering", "name": "Alice"},
    "resource-prompt": {"resourceType": "Text", "resourceId": "1"},
}
COMPLETIONS: list[tuple[Any, str, str]] = [
    *((types.PromptReference(name="completable-prompt"), "department", value) for value in ("E", "", "x")),
    (types.PromptReference(name="completable-prompt"), "name", "A"),
    (types.PromptReference(name="resource-prompt"), "resourceType", "B"),
    (types.PromptReference(name="resource-prompt"), "resourceId", "7"),
    (types.ResourceTemplateReference(uri="demo://resource/dynamic/text/{resourceId}"), "resourceId", "7"),
]
OTHERS = ("red_", "blue_", "note://", "red://", "blue://")  # what the toolboxes beside it in a toolset offer
TOOLS = 17  # for a client with all capabilities
MADE = "demo://resource/session/b.txt.gz"  # by AGAIN
FORM = {"name": "Ada Lovelace", "check": True, "integer": 7}
_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\s?[AP]M)?")
_PROCESS = re.compile(r'(?<=TRUNKLINE_PROCESS\\": \\")\w+')
_LEVEL = re.compile(r"\w+(-level| level-)\s?message")


def plain(result: Any) -> Any:
    """The result without what the gateway or the revision adds, and without the time of day."""
    found = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in ("_meta", "resultType", "ttlMs", "cacheScope"):
        found.pop(name, None)
    for content in found.get("contents", []):
        if "blob" in content and content["mimeType"] == "text/plain":
            content["blob"] = base64.b64decode(content["blob"]).decode()
    return json.loads(_PROCESS.sub("PROCESS", _CLOCK.sub("TIME", json.dumps(found))))


def without_others(listed: Any) -> Any:
    """A list without what other members of a toolset offer."""
    found = plain(listed)
    for member, items in found.items():
        if isinstance(items, list):
            names = [each.get("uri") or each.get("uriTemplate") or each["name"] for each in items]
            found[member] = [each for each, name in zip(items, names, strict=True) if not name.startswith(OTHERS)]
    return found


class Person:
    """Who sits at the client: gives the same answers whoever asks, and remembers what was asked and told."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.roots_asked = 0
        self.logged: set[str] = set()
        self.updated: set[str] = set()
        self.steps: list[Any] = []

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.list_roots,
            "logging_callback": self.log,
            "message_handler": self.hear,
        }

    async def sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self._note(params)
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="what?"), model="canned")

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self._note(params)
        is_url = isinstance(params, types.ElicitRequestURLParams)
        return types.ElicitResult(action="accept", content=None if is_url else dict(FORM))

    async def list_roots(self, context: Any) -> types.ListRootsResult:
        self.roots_asked += 1
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/project", name="project")])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.add(_LEVEL.sub("SOME level", str(params.data)))

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updated.add(str(message.params.uri))

    async def step(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append((progress, total, message))

    def _note(self, params: Any) -> None:
        asked = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name in ("_meta", "elicitationId"):
            asked.pop(name, None)
        if "requestedSchema" in asked:
            asked.setdefault("mode", "form")
        self.asked.append(asked)


class Conversation:
    """One client's talk with the server, from the first list to the last tool."""

    def __init__(self, client: Client, person: Person) -> None:
        self.client, self.person = client, person
        self.said: dict[str, Any] = {}

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A tool's result or error. Up to 2025-11-25 a client that is sent to a URL calls again afterwards."""
        try:
            return plain(await self.client.call_tool(name, arguments, progress_callback=self.person.step))
        except MCPError as error:
            if error.error.code != URL_ELICITATION_REQUIRED:
                return error.error.model_dump(mode="json", exclude_none=True)
            assert self.client.protocol_version != SESSIONLESS, (
                "2026-07-28 has no such error: there the client is asked"
            )
            for elicitation in error.error.data["elicitations"]:
                await self.person.elicit(None, types.ElicitRequestURLParams.model_validate(elicitation))
        return plain(await self.client.call_tool(name, arguments))

    async def tools(self) -> None:
        listed = (await self.client.list_tools()).tools
        mine = [tool for tool in listed if not tool.name.startswith(OTHERS)]
        self.said["tools"] = {tool.name: tool.model_dump(mode="json", exclude_none=True) for tool in mine}
        for name in sorted(self.said["tools"].keys() - {"toggle-subscriber-updates", "get-roots-list"}):
            self.said[f"tool {name}"] = await self.call(name, ARGUMENTS.get(name, {}))
            if name in AGAIN:
                self.said[f"tool {name} again"] = await self.call(name, AGAIN[name])
        # The server wants the roots by itself a third of a second after its start; by now it has had them, or asks.
        self.said["tool get-roots-list"] = await self.call("get-roots-list", {})

    async def updates(self) -> None:
        """`toggle-subscriber-updates`, with a subscription as the client's revision has it."""
        async with self._subscribed():
            self.said["tool toggle-subscriber-updates"] = await self.call("toggle-subscriber-updates", {})
            await until(lambda: self.person.updated, 20)
            self.said["tool toggle-subscriber-updates again"] = await self.call("toggle-subscriber-updates", {})

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        if self.client.protocol_version != SESSIONLESS:
            await self.client.subscribe_resource(WATCHED)
            yield
            await self.client.unsubscribe_resource(WATCHED)
            return
        async with (
            self.client.listen(resource_subscriptions=[WATCHED]) as subscription,
            anyio.create_task_group() as tasks,
        ):

            async def hear() -> None:
                async for event in subscription:
                    assert isinstance(event, ResourceUpdated)
                    self.person.updated.add(str(event.uri))

            tasks.start_soon(hear)
            yield
            tasks.cancel_scope.cancel()

    async def resources(self) -> None:
        with anyio.fail_after(20):  # a toolset lists what a tool has made when it was told so
            while MADE not in str(resources := without_others(await self.client.list_resources())):
                await anyio.sleep(0.05)
        self.said["resources"] = resources
        self.said["templates"] = without_others(await self.client.list_resource_templates())
        uris = [resource["uri"] for resource in resources["resources"]]
        for uri in [*uris, "demo://resource/dynamic/text/1", "demo://resource/dynamic/blob/2"]:
            self.said[f"resource {uri}"] = plain(await self.client.read_resource(uri))

    async def prompts(self) -> None:
        prompts = without_others(await self.client.list_prompts())
        self.said["prompts"] = prompts
        for name in [prompt["name"] for prompt in prompts["prompts"]]:
            self.said[f"prompt {name}"] = plain(await self.client.get_prompt(name, PROMPTS.get(name, {})))

    async def completions(self) -> None:
        for reference, name, value in COMPLETIONS:
            found = await self.client.complete(reference, {"name": name, "value": value})
            self.said[f"completion {reference} {name} {value}"] = plain(found)

    async def everything(self) -> dict[str, Any]:
        """What was said, asked and told."""
        await self.tools()
        await self.updates()
        await self.resources()
        await self.prompts()
        await self.completions()
        wanted = {"SOME level", "Roots updated: 1 root(s) received from client"}
        await until(lambda: wanted <= self.person.logged, 20, lambda: self.person.logged)
        assert self.person.roots_asked, "once by itself, or by the tool; asked twice if both come together"
        return {**self.said, "asked": self.person.asked, "steps": self.person.steps, "updated": self.person.updated}


def without_gateway(gateway: Gateway, mark: str) -> StdioServerParameters:
    """The server on its own, in the very environment that the gateway gives it: `get-env` shows all of it."""
    (server, *_) = [each for each in marked(mark) if name_of(each) != "bwrap"]
    environment = server.environ()
    words = [f"{name}={value}" for name, value in environment.items()]
    return StdioServerParameters(command="env", args=["-i", *words, *EVERYTHING])


@asynccontextmanager
async def both(gateway: Gateway) -> AsyncIterator[tuple[Endpoint, StdioServerParameters]]:
    """The server behind the gateway, and on its own."""
    mark = uuid.uuid4().hex
    endpoint = gateway.endpoint(EVERYTHING, env={"EVERYTHING_MARK": mark})
    async with python_client(endpoint, "streamable") as client:
        assert client.server_info is not None
        alone = without_gateway(gateway, mark)
    yield endpoint, alone


async def started(client: Client) -> None:
    """Has the server's process started by its first call, and told the client of its further tools."""
    await client.call_tool("echo", ARGUMENTS["echo"])
    with anyio.fail_after(20):
        while sum(not each.name.startswith(OTHERS) for each in (await client.list_tools()).tools) < TOOLS:
            await anyio.sleep(0.05)


@pytest.mark.parametrize("is_member", [False, True], ids=["alone", "in a toolset"])
async def test_server_everything_says_and_asks_the_same_through_the_gateway_as_without(
    gateway: Gateway, *, is_member: bool
) -> None:
    async with both(gateway) as (behind_gateway, alone):
        endpoint = among_toolboxes(behind_gateway) if is_member else behind_gateway
        person = Person()
        async with Client(stdio_client(alone), mode="legacy", **person.callbacks) as direct:
            expected = await Conversation(direct, person).everything()
        assert {f"tool {name}" for name in expected["tools"]} <= expected.keys(), "no tool is left out"
        assert len(expected["tools"]) == TOOLS
        assert len(expected["asked"]) == 5, "a sample, a form, three URLs"
        for mode in ("legacy", "auto"):
            person = Person()
            options = {"mode": mode, "log_level": "debug", **person.callbacks}
            async with python_client(endpoint, "streamable", **options) as client:
                assert (client.protocol_version == SESSIONLESS) == (mode == "auto")
                if is_member:
                    await started(client)
                found = await Conversation(client, person).everything()
            for what in expected.keys() | found.keys():
                assert found.get(what) == expected.get(what), f"{mode}: {what}"


async def test_no_step_is_lost_while_a_sessionless_client_answers_a_question(gateway: Gateway) -> None:
    """Once, under load, the comparison above missed the first of three steps.

    The server asks for the roots by itself, a third of a second after its start. If that meets a call of a 2026-07-28
    client, the call is answered with `input_required`, and until the client has sent its answer no request waits that
    could carry a step: the gateway threw away what came in between. Here the client takes its time on purpose.
    """
    asked = 0

    async def list_roots(context: Any) -> types.ListRootsResult:
        nonlocal asked
        asked += 1
        await anyio.sleep(0.25)
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/project", name="project")])

    for _ in range(5):  # on a busy machine the question may come before the call
        person = Person()
        endpoint = gateway.endpoint(EVERYTHING)
        async with python_client(endpoint, "streamable", mode="auto", list_roots_callback=list_roots) as client:
            arguments = {"duration": 1, "steps": 10}
            await client.call_tool("trigger-long-running-operation", arguments, progress_callback=person.step)
        assert [progress for progress, *_ in person.steps] == list(range(1, 11))
        if asked:
            return
    pytest.fail("the server never asked in the middle of the call")


# --- tasks of 2025-11-25, which neither SDK's client speaks: message by message


TASK_CAPABILITIES: dict[str, Any] = {
    "sampling": {},
    "elicitation": {},
    "tasks": {"requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
}
TASK_ANSWERS: dict[str, Any] = {
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "what?"}, "model": "m"},
    "elicitation/create": {"action": "accept", "content": {"name": "Ada", "interpretation": "snake"}},
}


class TaskPeer:
    """A client of 2025-11-25 that declares tasks, on the streams of an official transport."""

    def __init__(self, read: Any, write: Any, tasks: TaskGroup) -> None:
        self._read, self._write = read, write
        self._answers: dict[Any, Any] = {}
        self._news = anyio.Event()
        self._last: Any = None
        self.asked: list[Any] = []
        tasks.start_soon(self._listen)

    async def _send(self, **message: Any) -> None:
        parsed = types.jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
        await self._write.send(SessionMessage(parsed))

    async def _listen(self) -> None:
        async for each in self._read:
            message = each.message.model_dump(mode="json", by_alias=True, exclude_none=True)
            if "method" not in message:
                self._answers[message["id"]] = message.get("result", message.get("error"))
                self._news.set()
                self._news = anyio.Event()
            elif "id" in message:
                self.asked.append([message["method"], _without_ids(message.get("params", {}))])
                await self._send(id=message["id"], result=self._answer(message["method"], message.get("params", {})))

    def _answer(self, method: str, params: dict[str, Any]) -> Any:
        """A question with a task becomes one, which is done when it is asked for."""
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 60000}
        if "task" in params:
            self._last = TASK_ANSWERS[method]
            return {"task": {"taskId": "task-of-the-client", "status": "working", "pollInterval": 10, **times}}
        if method == "tasks/get":
            return {"taskId": params["taskId"], "status": "completed", "statusMessage": "done", **times}
        return self._last if method == "tasks/result" else TASK_ANSWERS[method]

    async def request(self, method: str, params: Any) -> Any:
        """The result, or the error."""
        request_id = f"{method}-{uuid.uuid4().hex}"
        await self._send(id=request_id, method=method, params=params)
        while request_id not in self._answers:
            await self._news.wait()
        return self._answers.pop(request_id)

    async def run_task(self, name: str, arguments: dict[str, Any]) -> Any:
        """A tool as a task: what it went through, and its result."""
        made = await self.request("tools/call", {"name": name, "arguments": arguments, "task": {"ttl": 60000}})
        task, states = {"taskId": made["task"]["taskId"]}, [_without_ids(made["task"])]
        while states[-1]["status"] == "working":
            state = _without_ids(await self.request("tasks/get", task))
            if state != states[-1]:
                states.append(state)
        return {"states": states, "result": _without_ids(await self.request("tasks/result", task))}

    async def everything(self) -> dict[str, Any]:
        about = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "tasks", "version": "1"}}
        await self.request("initialize", {**about, "capabilities": TASK_CAPABILITIES})
        await self._send(method="notifications/initialized")
        await self.request("tools/call", {"name": "echo", "arguments": ARGUMENTS["echo"]})
        listed: list[Any] = []
        while not WITH_TASKS.keys() <= {tool["name"] for tool in listed}:
            listed = (await self.request("tools/list", {}))["tools"]
        listed = [tool for tool in listed if not tool["name"].startswith(OTHERS)]
        said: dict[str, Any] = {"tools": listed}
        for name, arguments in WITH_TASKS.items():
            (tool,) = (tool for tool in listed if tool["name"] == name)
            if tool.get("execution", {}).get("taskSupport") == "required":
                said[name] = await self.run_task(name, arguments)
            else:
                said[name] = await self.request("tools/call", {"name": name, "arguments": arguments})
        return {**said, "asked": self.asked}


def _without_steps(said: Any) -> Any:
    """Of a task only its first and its last state: who asks late misses some in between."""
    if not isinstance(said, dict) or "states" not in said:
        return said
    return {**said, "states": [said["states"][0], said["states"][-1]]}


def _without_ids(value: Any) -> Any:
    """The value without what is drawn at random: the server's ids of tasks, and times."""
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    varying = ("taskId", "createdAt", "lastUpdatedAt")
    return {name: "…" if name in varying else _without_ids(member) for name, member in value.items()}


@pytest.mark.parametrize("is_member", [False, True], ids=["alone", "in a toolset"])
async def test_the_tools_that_run_as_tasks_say_and_ask_the_same_through_the_gateway(
    gateway: Gateway, *, is_member: bool
) -> None:
    async with both(gateway) as (behind_gateway, alone):
        endpoint = among_toolboxes(behind_gateway) if is_member else behind_gateway
        talks: dict[str, dict[str, Any]] = {}

        async def talk(name: str, transport: Any) -> None:
            async with transport as streams, anyio.create_task_group() as tasks:
                talks[name] = await TaskPeer(streams[0], streams[1], tasks).everything()
                tasks.cancel_scope.cancel()

        async with httpx2.AsyncClient(headers=endpoint.headers, timeout=30) as http, anyio.create_task_group() as ways:
            ways.start_soon(talk, "direct", stdio_client(alone))
            ways.start_soon(talk, "gateway", streamable_http_client(endpoint.mcp, http_client=http))
    assert WITH_TASKS.keys() <= talks["direct"].keys()
    assert [status["status"] for status in talks["direct"]["simulate-research-query"]["states"]][-1] == "input_required"
    steps, passed_on = (talks[way]["simulate-research-query"]["states"] for way in ("direct", "gateway"))
    assert all(each in steps for each in passed_on) or all(each in passed_on for each in steps)
    for what in talks["direct"].keys() | talks["gateway"].keys():
        assert _without_steps(talks["gateway"].get(what)) == _without_steps(talks["direct"].get(what)), what


def test_what_a_sessionless_client_is_not_shown() -> None:
    pytest.skip(
        "trigger-sampling-request-async and trigger-elicitation-request-async exist for clients that declare tasks of "
        "2025-11-25; 2026-07-28 has no such capability, so there is nothing to compare in that era"
    )
