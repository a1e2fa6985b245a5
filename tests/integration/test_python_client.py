"""The official Python client against real servers, over both handshake-era transports."""

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from mcp import types

from tests.integration.gateway import Endpoint, Gateway, is_alive, until
from tests.integration.servers import (
    EVERYTHING,
    FILESYSTEM,
    MEMORY,
    POSTGRES,
    TIME,
    TRANSPORTS,
    Transport,
    git_server,
    python_client,
    text_of,
)
from tests.integration.wire import wire

pytestmark = [
    pytest.mark.parametrize("transport", TRANSPORTS),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]


class Heard:
    """What a client was told without asking, and how to wait for it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._news = anyio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        self._news.set()
        self._news = anyio.Event()

    async def wait_for(self, kind: type, within_s: float = 20.0) -> Any:
        with anyio.fail_after(within_s):
            while True:
                news = self._news
                for message in self.messages:
                    if isinstance(message, kind):
                        return message
                await news.wait()


@pytest.fixture(scope="module")
def everything(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(EVERYTHING)


@pytest.fixture(scope="module")
def clock(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(TIME)


async def test_the_time_server_tells_the_time(clock: Endpoint, transport: Transport) -> None:
    async with python_client(clock, transport) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"get_current_time", "convert_time"}
        answer = json.loads(text_of(await client.call_tool("get_current_time", {"timezone": "Europe/Paris"})))
        assert answer["timezone"] == "Europe/Paris"


async def test_the_git_server_reads_a_repository(gateway: Gateway, tmp_path: Path, transport: Transport) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Test", "-c", "user.email=test@example.com"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "the first line"], check=True)
    async with python_client(gateway.endpoint(git_server(tmp_path)), transport) as client:
        log = await client.call_tool("git_log", {"repo_path": str(tmp_path)})
        assert "the first line" in text_of(log)


@pytest.mark.node
async def test_the_everything_server_calls_tools(everything: Endpoint, transport: Transport) -> None:
    async with python_client(everything, transport) as client:
        assert client.server_info.name == "mcp-servers/everything"
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"echo", "get-sum", "trigger-long-running-operation"} <= names
        assert text_of(await client.call_tool("echo", {"message": "höß 日本"})) == "Echo: höß 日本"
        assert "is 5" in text_of(await client.call_tool("get-sum", {"a": 2, "b": 3}))
        structured = await client.call_tool("get-structured-content", {"location": "Chicago"})
        assert structured.structured_content is not None
        image = await client.call_tool("get-tiny-image", {})
        assert any(content.type == "image" for content in image.content)
        await client.send_ping()


@pytest.mark.node
async def test_an_unknown_tool_is_the_backends_own_error(everything: Endpoint, transport: Transport) -> None:
    async with python_client(everything, transport) as client:
        result = await client.call_tool("no-such-tool", {})
        assert result.is_error
        assert "no-such-tool" in result.content[0].text


@pytest.mark.node
async def test_resources_and_templates_are_read(everything: Endpoint, transport: Transport) -> None:
    async with python_client(everything, transport) as client:
        resources = (await client.list_resources()).resources
        assert len(resources) >= 5
        read = await client.read_resource(str(resources[0].uri))
        assert read.contents
        templates = {each.uri_template for each in (await client.list_resource_templates()).resource_templates}
        assert "demo://resource/dynamic/text/{resourceId}" in templates
        dynamic = await client.read_resource("demo://resource/dynamic/text/7")
        assert "Resource 7" in dynamic.contents[0].text


@pytest.mark.node
async def test_a_subscriber_hears_that_a_resource_changed(everything: Endpoint, transport: Transport) -> None:
    heard = Heard()
    uri = "demo://resource/dynamic/text/1"
    async with python_client(everything, transport, message_handler=heard) as client:
        await client.subscribe_resource(uri)
        await client.call_tool("toggle-subscriber-updates", {})
        updated = await heard.wait_for(types.ResourceUpdatedNotification)
        assert str(updated.params.uri) == uri
        await client.unsubscribe_resource(uri)


@pytest.mark.node
async def test_prompts_are_filled_in_and_completed(everything: Endpoint, transport: Transport) -> None:
    async with python_client(everything, transport) as client:
        names = {prompt.name for prompt in (await client.list_prompts()).prompts}
        assert {"simple-prompt", "args-prompt", "completable-prompt"} <= names
        prompt = await client.get_prompt("args-prompt", {"city": "Lyon"})
        assert "Lyon" in prompt.messages[0].content.text
        found = await client.complete(
            types.PromptReference(type="ref/prompt", name="completable-prompt"), {"name": "department", "value": "E"}
        )
        assert found.completion.values == ["Engineering"]


@pytest.mark.node
async def test_log_messages_reach_the_client_at_the_level_it_set(everything: Endpoint, transport: Transport) -> None:
    logged = Heard()
    async with python_client(everything, transport, logging_callback=logged) as client:
        await client.set_logging_level("debug")
        await client.call_tool("toggle-simulated-logging", {})
        message = await logged.wait_for(types.LoggingMessageNotificationParams)
        assert message.level
        await client.call_tool("toggle-simulated-logging", {})


@pytest.mark.node
async def test_progress_reaches_the_call_it_belongs_to(everything: Endpoint, transport: Transport) -> None:
    steps: dict[str, list[float]] = {"three": [], "five": []}

    async with python_client(everything, transport) as client:

        async def run(name: str, count: int) -> None:
            async def progressed(progress: float, total: float | None, message: str | None) -> None:
                assert total == count
                steps[name].append(progress)

            arguments = {"duration": 0.3, "steps": count}
            await client.call_tool("trigger-long-running-operation", arguments, progress_callback=progressed)

        async with anyio.create_task_group() as calls:
            calls.start_soon(run, "three", 3)
            calls.start_soon(run, "five", 5)
        await until(lambda: steps == {"three": [1, 2, 3], "five": [1, 2, 3, 4, 5]}, 10, lambda: steps)


@pytest.mark.node
async def test_questions_of_the_backend_reach_the_client_and_its_answers_the_backend(
    everything: Endpoint, transport: Transport
) -> None:
    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        text = types.TextContent(type="text", text=f"answer to {params.messages[0].content.text}")
        return types.CreateMessageResult(role="assistant", content=text, model="canned")

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada Lovelace"})

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/project", name="project")])

    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
    heard = Heard()
    async with python_client(everything, transport, message_handler=heard, **callbacks) as client:
        await heard.wait_for(types.ToolListChangedNotification)
        sampled = text_of(await client.call_tool("trigger-sampling-request", {"prompt": "a riddle", "maxTokens": 9}))
        assert "a riddle" in sampled
        elicited = await client.call_tool("trigger-elicitation-request", {})
        assert "Ada Lovelace" in json.dumps([content.text for content in elicited.content])
        assert "file:///srv/project" in text_of(await client.call_tool("get-roots-list", {}))


@pytest.mark.node
async def test_a_cancelled_call_leaves_the_session_usable(everything: Endpoint, transport: Transport) -> None:
    async with python_client(everything, transport) as client:
        started = anyio.Event()

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            started.set()

        async with anyio.create_task_group() as calls:
            calls.start_soon(
                lambda: client.call_tool(
                    "trigger-long-running-operation", {"duration": 60, "steps": 300}, progress_callback=progressed
                )
            )
            with anyio.fail_after(20):
                await started.wait()
            calls.cancel_scope.cancel()
        assert text_of(await client.call_tool("echo", {"message": "still here"})) == "Echo: still here"


@pytest.mark.node
async def test_the_filesystem_server_asks_for_roots_and_uses_them(
    gateway: Gateway, tmp_path: Path, transport: Transport
) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "note.txt").write_text("a line of its own")
    asked = anyio.Event()

    async def roots(context: Any) -> types.ListRootsResult:
        asked.set()
        return types.ListRootsResult(roots=[types.Root(uri=allowed.as_uri())])

    endpoint = gateway.endpoint([*FILESYSTEM, str(other)], sandbox={"read": [str(allowed)]})
    async with python_client(endpoint, transport, list_roots_callback=roots) as client:
        with anyio.fail_after(30):
            await asked.wait()
            while str(allowed) not in text_of(await client.call_tool("list_allowed_directories", {})):
                await anyio.lowlevel.checkpoint()  # the server takes in the answer when it comes to it
        read = await client.call_tool("read_text_file", {"path": str(allowed / "note.txt")})
        assert "a line of its own" in text_of(read)


@pytest.mark.node
async def test_the_memory_server_remembers(gateway: Gateway, tmp_path: Path, transport: Transport) -> None:
    endpoint = gateway.endpoint(MEMORY, env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    entity = {"name": "Trunkline", "entityType": "gateway", "observations": ["has a line per client"]}
    async with python_client(endpoint, transport) as client:
        await client.call_tool("create_entities", {"entities": [entity]})
        graph = text_of(await client.call_tool("read_graph", {}))
        assert "has a line per client" in graph


@pytest.mark.node
async def test_the_postgres_server_queries_a_real_database(
    gateway: Gateway, postgres_url: str, transport: Transport
) -> None:
    table = f"lines_{transport}"
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute(f"DROP TABLE IF EXISTS {table}")
        database.execute(f"CREATE TABLE {table} AS SELECT generate_series(1, 42)")
    async with python_client(
        gateway.endpoint([*POSTGRES, postgres_url], sandbox={"network": "host"}), transport
    ) as client:
        rows = json.loads(text_of(await client.call_tool("query", {"sql": f"SELECT count(*)::int AS n FROM {table}"})))
        assert rows == [{"n": 42}]


async def test_the_end_of_a_session_ends_its_process(echo: Endpoint, transport: Transport) -> None:
    async with python_client(echo, transport) as client:
        (process,) = echo.gateway.processes_of(json.loads(text_of(await client.call_tool("whoami", {})))["process"])
        assert is_alive(process)
    await until(lambda: not is_alive(process), 10)


async def test_two_sessions_of_one_backend_have_two_processes(echo: Endpoint, transport: Transport) -> None:
    async with python_client(echo, transport) as one, wire(echo) as other:
        mine = json.loads(text_of(await one.call_tool("whoami", {})))
        theirs = json.loads(await other.call("whoami"))
        assert mine["process"] != theirs["process"]
