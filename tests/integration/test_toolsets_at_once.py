"""Many sessions over toolsets, with equal ids: nothing crosses, is lost or comes twice; on one node and on two.

`--long` opens two hundred sessions with five members each; otherwise twelve.
"""

import json
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import Gateway, running_gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.toolboxes import Toolset, in_flight, toolboxes
from tests.integration.wire import RpcError, Wire, events, rpc

MEMBERS = ("a", "b", "c", "d", "e")
SESSIONS, LONG_SESSIONS = 12, 200
AT_ONCE = 20  # sessions that are open at the same time: a process for each of their members
ROUNDS = 3

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("at-once") / "data", MAX_PROCESSES="1000") as gateway:
        yield gateway


class Talk:
    """One session that talks to all members at once, in turn through each of the addresses."""

    def __init__(self, name: str, toolset: Toolset, *urls: str) -> None:
        self.name, self.toolset = name, toolset
        self.urls = [url + toolset.mcp.removeprefix(toolset.gateway.url) for url in urls]
        self.asked: dict[str, list[str]] = {}
        self.answers: dict[str, list[str]] = {}

    async def run(self) -> None:
        async with httpx2.AsyncClient(timeout=120) as http:
            self.session = Wire(http, self.toolset)
            await self.session.open(capabilities={"roots": {}})
            for number in range(ROUNDS):
                self.session.url = self.urls[number % len(self.urls)]
                async with anyio.create_task_group() as tasks:
                    for member in MEMBERS:
                        tasks.start_soon(self.ask, member, f"{number}-ask")
                        tasks.start_soon(self.say, member, f"{number}-say")
            self.session.url = self.urls[0]
            await self.session.close()

    async def ask(self, member: str, number: str) -> None:
        """The member asks for the roots; these say who is asked, and by whom."""
        text = await self._call(member, rpc("tools/call", f"{member}-{number}", {"name": f"{member}_ask"}))
        self.answers.setdefault(member, []).append(text)

    async def say(self, member: str, number: str) -> None:
        arguments = {"name": f"{member}_say", "arguments": {"text": self.name}}
        text = await self._call(member, rpc("tools/call", f"{member}-{number}", arguments))
        assert text == f"{member}: {self.name}"

    async def _call(self, member: str, request: dict[str, Any]) -> str:
        """The text of the one answer. A member's question may come in any of its calls, and a call that waits for
        its process for long becomes a stream."""
        async with self.session.stream("POST", request) as response:
            if response.headers["content-type"].startswith("text/event-stream"):
                heard = (event.message async for event in events(response) if event.data)
                answers = [message async for message in heard if not await self._answered(member, message)]
            else:
                answers = [json.loads(await response.aread())]
        (answer,) = answers
        assert answer["id"] == request["id"], answer
        return str(answer["result"]["content"][0]["text"])

    async def _answered(self, member: str, message: dict[str, Any]) -> bool:
        """Whether it was the member's question."""
        if message.get("method") != "roots/list":
            return False
        self.asked.setdefault(member, []).append(message["id"])
        root = {"uri": f"file:///{self.name}/{member}"}
        posted = await self.session.post({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": [root]}})
        assert posted.status_code == 202, posted.text
        return True

    def require_all(self) -> None:
        """Each question was answered by its own call's client, and each call once."""
        for member in MEMBERS:
            roots = json.dumps({"roots": [{"uri": f"file:///{self.name}/{member}"}]})
            assert self.answers[member] == [f"{member}: {roots}"] * ROUNDS
            assert len(set(self.asked[member])) == ROUNDS


async def talk(toolset: Toolset, sessions: int, *urls: str) -> None:
    talks = [Talk(f"s{number}", toolset, *urls) for number in range(sessions)]
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def run(each: Talk) -> None:
        async with limit:
            await each.run()

    async with anyio.create_task_group() as tasks:
        for each in talks:
            tasks.start_soon(run, each)
    for each in talks:
        each.require_all()


@pytest.mark.alone
async def test_nothing_crosses_between_members_and_sessions(gateway: Gateway, *, full: bool) -> None:
    toolset = toolboxes(gateway, *MEMBERS)
    await talk(toolset, LONG_SESSIONS if full else SESSIONS, gateway.url)
    await gateway.wait_for_backends(0, 30)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), postgres_database, 2) as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


@pytest.mark.alone
async def test_over_two_nodes_likewise(two_nodes: Nodes, *, full: bool) -> None:
    first, second = two_nodes.all
    toolset = toolboxes(first, *MEMBERS)
    await talk(toolset, LONG_SESSIONS // 4 if full else SESSIONS // 2, first.url, second.url)
    assert sum(node.metrics().get('trunkline_forwards_total{result="ok"}', 0) for node in two_nodes.all) > 0


async def test_a_member_killed_in_mid_call_over_two_nodes_fails_its_calls_only_and_once(two_nodes: Nodes) -> None:
    first, second = two_nodes.all
    toolset = toolboxes(first, "a", "b")
    async with httpx2.AsyncClient(timeout=60) as http:
        session = Wire(http, toolset)
        await session.open()
        session.url = second.url + toolset.mcp.removeprefix(first.url)
        outcomes: list[str] = []

        async def call(tool: str, **arguments: Any) -> None:
            try:
                outcomes.append(await session.call(tool, **arguments))
            except RpcError as error:
                outcomes.append(f"{tool} {error.reason}")

        assert await session.call("a_say", text="x") == "a: x"
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: call("b_slow", seconds=60))
            await until(lambda: in_flight(first, toolset) == 3, 20)
            tasks.start_soon(lambda: call("a_slow", seconds=3))
            await until(lambda: in_flight(first, toolset) == 4, 20)
            tasks.start_soon(call, "b_die")
        assert sorted(outcomes) == ["a: late", "b_die backend_exited", *["b_slow backend_exited"] * 3]
        assert await session.call("b_count") == "b: 1"
        await session.close()
