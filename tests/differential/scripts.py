"""Five servers, and what a client says to each, step by step: the same in both eras, as far as both have it."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, types

from tests.differential.recording import Dialogue
from tests.integration.gateway import ROOT
from tests.integration.servers import EVERYTHING, FILESYSTEM, MEMORY, TIME

CONFORMANCE = [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era"]
FORM = {"name": "Ada", "color": "green", "check": True, "integer": 7}
LEVEL = "info"
AT_ONCE, CHANGES = "at once", "changes"  # steps with rules of their own
TIMES_OUT_S = 6.0  # a call that its client gives up; until then it has to arrive, on a busy machine too
EVENTS = {f"notifications/{what}/list_changed": 1 for what in ("tools", "prompts")}
EVENTS["notifications/resources/updated"] = 1


class Person:
    """Who sits at the client: the same answers whoever asks."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.list_roots,
            "logging_callback": self.ignore,
        }

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="a riddle"), model="canned")

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        is_url = isinstance(params, types.ElicitRequestURLParams)
        return types.ElicitResult(action="accept", content=None if is_url else dict(FORM))

    async def list_roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file://{self._root}", name="project")])

    async def ignore(self, params: Any) -> None:
        pass


@dataclass(frozen=True)
class Step:
    """One thing that a client does."""

    name: str
    act: Callable[[Client, Dialogue], Awaitable[object]]
    gives_up: bool = False  # its client does not wait for the answer


@dataclass(frozen=True)
class Server:
    """A server, and what is said to it."""

    command: Callable[[str, Path], list[str]]  # for this era, working in this directory
    eras: tuple[str, ...]
    says: Callable[[str, Path], list[Step]]  # the client of this era
    env: Callable[[Path], dict[str, str]] = lambda _: {}
    opening: Mapping[str, int] = field(default_factory=dict)  # what it says first by itself, and how often
    by_the_way: frozenset[str] = frozenset()  # methods of what it says when it likes
    needs_node: bool = True
    is_dual: bool = False  # every client finds it in its own era


# --- steps


async def _progress(progress: float, total: float | None, message: str | None) -> None:
    pass


def call(tool: str, arguments: dict[str, Any] | None = None, *, within_s: float | None = None) -> Step:
    async def act(client: Client, _: Dialogue) -> None:
        await client.call_tool(tool, arguments or {}, within_s, _progress)

    return Step(f"tool {tool} {arguments or ''}".strip(), act, gives_up=within_s is not None)


def _plain(name: str, ask: Callable[[Client], Awaitable[object]]) -> Step:
    return Step(name, lambda client, _: ask(client))


def prompt(name: str, arguments: dict[str, str] | None = None) -> Step:
    return _plain(f"prompt {name}", lambda client: client.get_prompt(name, arguments or {}))


def read(uri: str) -> Step:
    return _plain(f"resource {uri}", lambda client: client.read_resource(uri))


def complete(reference: Any, name: str, value: str) -> Step:
    return _plain(
        f"completion {name} {value}", lambda client: client.complete(reference, {"name": name, "value": value})
    )


LISTS = [
    _plain("tools", lambda client: client.list_tools()),
    _plain("prompts", lambda client: client.list_prompts()),
    _plain("resources", lambda client: client.list_resources()),
    _plain("templates", lambda client: client.list_resource_templates()),
]
UNKNOWN = _plain(
    "an unknown method",
    lambda client: client.session.send_request(
        types.Request[dict[str, Any], str](method="vendor/ask", params={"a": [1, {"b": "ü"}]}), types.EmptyResult
    ),
)
PING = _plain("ping", lambda client: client.send_ping())


def set_level(level: Any) -> Step:
    return _plain(f"level {level}", lambda client: client.set_logging_level(level))


def at_once(*calls: tuple[str, dict[str, Any]]) -> Step:
    """All of them in parallel."""

    async def act(client: Client, _: Dialogue) -> None:
        async with anyio.create_task_group() as tasks:
            for tool, arguments in calls:
                tasks.start_soon(partial(client.call_tool, tool, arguments, progress_callback=_progress))

    return Step(AT_ONCE, act)


def changes(era: str) -> Step:
    """Lists change, and a resource that the client has subscribed to."""
    uri = "test://watched-resource"

    async def trigger(client: Client, dialogue: Dialogue, began: int) -> None:
        for what in ("tool", "prompt"):
            await client.call_tool(f"test_trigger_{what}_change", {})
        await client.call_tool("test_trigger_resource_update", {"uri": uri})
        await dialogue.has_heard(EVENTS, began)

    async def act(client: Client, dialogue: Dialogue) -> None:
        began = len(dialogue.at_client)
        if era == "legacy":
            await client.subscribe_resource(uri)
            await trigger(client, dialogue, began)
            await client.unsubscribe_resource(uri)
            return
        lists = {"tools_list_changed": True, "prompts_list_changed": True}
        async with client.listen(**lists, resource_subscriptions=[uri]):
            await trigger(client, dialogue, began)

    return Step(CHANGES, act)


# --- servers

CONFORMANCE_TOOLS = (
    *("test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource"),
    *("test_multiple_content_types", "test_tool_with_logging", "test_tool_with_progress", "test_error_handling"),
    *("test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums", "test_streaming_elicitation"),
    *("test_missing_capability", "whoami", "test_input_required_result_elicitation"),
    *("test_input_required_result_sampling", "test_input_required_result_list_roots"),
    *("test_input_required_result_request_state", "test_input_required_result_multiple_inputs"),
    *("test_input_required_result_multi_round", "test_input_required_result_capabilities", "json_schema_2020_12_tool"),
)


def _conformance(era: str, root: Path) -> list[Step]:
    return [
        *([set_level(LEVEL), PING] if era == "legacy" else []),
        *LISTS,
        *(call(tool) for tool in CONFORMANCE_TOOLS),
        call("test_sampling", {"prompt": "grüße \U0001f600"}),
        call("test_elicitation", {"message": "who?"}),
        call("test_x_mcp_header", {"region": "eu-wést"}),
        call("no such tool"),
        at_once(
            ("test_simple_text", {"n": 1}), ("test_tool_with_progress", {}), ("test_error_handling", {"n": 2**53 + 1})
        ),
        prompt("test_simple_prompt"),
        prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "\u2028"}),
        prompt("test_input_required_result_prompt"),
        prompt("no such prompt"),
        read("test://static-text"),
        read("test://static-binary"),
        read("test://template/7/data"),
        read("test://unknown"),
        complete(types.PromptReference(name="test_simple_prompt"), "a", "b"),
        UNKNOWN,
        changes(era),
        # A client of 2026-07-28 cannot know when the server has heard that it listens no more.
        *([call("test_trigger_resource_update", {"uri": "test://watched-resource"})] if era == "legacy" else []),
        call("test_slow", within_s=TIMES_OUT_S),
    ]


def _everything(era: str, root: Path) -> list[Step]:
    return [
        *([set_level(LEVEL), PING] if era == "legacy" else []),
        *LISTS,
        call("echo", {"message": "grüße"}),
        call("echo", {}),
        call("get-sum", {"a": 2, "b": 40}),
        call("get-annotated-message", {"messageType": "error", "includeImage": True}),
        call("get-structured-content", {"location": "Chicago"}),
        call("get-tiny-image"),
        call("trigger-sampling-request", {"prompt": "a riddle", "maxTokens": 9}),
        call("trigger-elicitation-request"),
        call("get-roots-list"),
        call("trigger-long-running-operation", {"duration": 0.3, "steps": 3}),
        at_once(*(("get-sum", {"a": a, "b": 1}) for a in range(6))),
        prompt("simple-prompt"),
        prompt("args-prompt", {"city": "Lyon"}),
        prompt("args-prompt"),
        read("demo://resource/static/document/features.md"),
        read("demo://resource/dynamic/text/0"),
        complete(types.PromptReference(name="completable-prompt"), "department", "E"),
        UNKNOWN,
    ]


def _time(era: str, root: Path) -> list[Step]:
    return [
        LISTS[0],
        call("get_current_time", {"timezone": "Europe/Paris"}),
        call("convert_time", {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}),
        call("convert_time", {"source_timezone": "UTC"}),
        call("get_current_time", {"timezone": "Middle/Earth"}),
        call("no such tool"),
        at_once(*(("get_current_time", {"timezone": zone}) for zone in ("UTC", "Asia/Tokyo", "Europe/Rome"))),
        _plain("prompts", lambda client: client.list_prompts()),
        UNKNOWN,
    ]


def _filesystem(era: str, root: Path) -> list[Step]:
    file = str(root / "a file.txt")
    return [
        LISTS[0],
        call("list_allowed_directories"),
        call("write_file", {"path": file, "content": "grüße\r\n\u2028\x00 \U0001f600"}),
        call("read_text_file", {"path": file}),
        call("read_text_file", {"path": file, "head": 1}),
        call("edit_file", {"path": file, "edits": [{"oldText": "grüße", "newText": "greetings"}], "dryRun": True}),
        call("list_directory", {"path": str(root)}),
        call("read_text_file", {"path": "/etc/hostname"}),
        call("read_text_file", {"path": str(root / "missing")}),
        UNKNOWN,
    ]


def _memory(era: str, root: Path) -> list[Step]:
    entities = [{"name": name, "entityType": "person", "observations": ["lives"]} for name in ("Ada", "Grete")]
    relations = [{"from": "Ada", "to": "Grete", "relationType": "knows"}]
    return [
        LISTS[0],
        call("create_entities", {"entities": entities}),
        call("create_relations", {"relations": relations}),
        call("add_observations", {"observations": [{"entityName": "Ada", "contents": ["counts", "lives"]}]}),
        call("add_observations", {"observations": [{"entityName": "nobody", "contents": ["is"]}]}),
        call("search_nodes", {"query": "ada"}),
        call("delete_entities", {"entityNames": ["Grete"]}),
        call("read_graph"),
        UNKNOWN,
    ]


SERVERS = {
    "conformance": Server(
        lambda era, _: [*CONFORMANCE, era], ("legacy", "sessionless"), _conformance, needs_node=False
    ),
    "everything": Server(
        lambda *_: EVERYTHING,
        ("legacy",),
        _everything,
        opening={"roots/list": 1, "notifications/message": 1},
        by_the_way=frozenset({"roots/list", "notifications/message", "notifications/tools/list_changed"}),
    ),
    "time": Server(lambda *_: TIME, ("legacy", "sessionless"), _time, needs_node=False, is_dual=True),
    "filesystem": Server(
        lambda _, root: [*FILESYSTEM, str(root)],
        ("legacy",),
        _filesystem,
        opening={"roots/list": 1},
        by_the_way=frozenset({"roots/list"}),
    ),
    "memory": Server(
        lambda *_: MEMORY, ("legacy",), _memory, env=lambda root: {"MEMORY_FILE_PATH": str(root / "memory.json")}
    ),
}
