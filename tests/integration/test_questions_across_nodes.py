"""Questions of a backend to its client (sampling, elicitation), whose stream, calls and answers go to a node each."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client, types

from tests.integration.asked import LISTENING, METHODS, Asked, AskedClient, AskedSseClient, Places, answer_to
from tests.integration.gateway import ROOT, STOP_S, Endpoint, Gateway, until
from tests.integration.nodes import Nodes
from tests.integration.servers import TRANSPORTS, Transport, python_client, text_of
from tests.integration.sessionless_wire import at, forwarded, others, owner_of
from tests.integration.test_isolation import Findings
from tests.integration.wire import Wire

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
ASKS_TWICE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/asks_twice.py")]
SESSIONLESS_SERVER = [
    sys.executable,
    "-I",
    "-S",
    str(ROOT / "tests/conformance/stdio_backend.py"),
    "--era",
    "sessionless",
]
PROXY = [sys.executable, str(ROOT / "tests/conformance/header_proxy.py")]

SESSIONS, LONG_SESSIONS, CALLS, AT_ONCE = 24, 240, 3, 24  # 12 placements, 2 revisions
CONNECTIONS = AT_ONCE * (CALLS + 4)
REVISIONS = ("2025-06-18", "2025-11-25")
SHARERS = 6

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]


@pytest.fixture
def sessions(full: bool) -> int:
    return LONG_SESSIONS if full else SESSIONS


def placements(urls: Sequence[str]) -> list[Places]:
    """Every way to have owner, stream and calls at three nodes; answers go to each node that gets no calls."""
    orders = itertools.permutations(urls)
    return [Places(opens, listens, calls, at) for opens, listens, calls in orders for at in (opens, listens)]


def sse_placements(urls: Sequence[str]) -> list[Places]:
    """Every way to have stream, calls and answers at three nodes."""
    return [Places(listens, listens, calls, answers) for listens, calls, answers in itertools.permutations(urls)]


def text_of_call(number: int, call: int) -> str:
    return f"session {number} call {call}"


async def ask(client: AskedClient | AskedSseClient, number: int, call: int, among: int, findings: Findings) -> None:
    """One call and its question; the methods alternate."""
    text = text_of_call(number, call)
    try:
        answer = await client.ask(text, METHODS[(number + call) % 2], among=among)
    except TimeoutError:
        findings.lost += 1
    else:
        findings.answers += answer == answer_to(text)
        findings.crossed += answer != answer_to(text)


async def ask_at_once(client: AskedClient | AskedSseClient, number: int, findings: Findings) -> None:
    """Calls that are all in flight when the first of them asks."""
    await asyncio.gather(*(ask(client, number, call, CALLS, findings) for call in range(CALLS)))


async def ask_in_turn(client: AskedClient | AskedSseClient, number: int, findings: Findings) -> None:
    for call in range(CALLS):
        await ask(client, number, call, 1, findings)


async def look_back(client: AskedClient | AskedSseClient, number: int, findings: Findings) -> None:
    """What was asked, and by whom; what came without having been asked for, at either end."""
    own = {text_of_call(number, call) for call in range(CALLS)}
    unexpected = await client.heard()  # by now all has come that came before
    texts = [asked.text for asked in client.asked]
    findings.crossed += len(set(texts) - own)
    findings.lost += len(own - set(texts))
    findings.repeated += len(texts) - len(set(texts)) + len(client.strays) + len(unexpected)


async def opened(http: httpx2.AsyncClient, endpoint: Endpoint, number: int, places: Sequence[Places]) -> AskedClient:
    """A session at each of the places, of each revision in turn."""
    turn, place = divmod(number, len(places))
    client = AskedClient(http, endpoint, places[place])
    await client.open(REVISIONS[turn % len(REVISIONS)])
    return client


def own_streams(number: int) -> list[Asked]:
    """Each question on the stream of its own call."""
    return [Asked(text_of_call(number, call), text_of_call(number, call)) for call in range(CALLS)]


async def many(count: int, one: Callable[[httpx2.AsyncClient, int], Any]) -> None:
    """So many sessions, AT_ONCE at the same time, on fresh connections like those of so many clients."""
    gate, limits = asyncio.Semaphore(AT_ONCE), httpx2.Limits(max_connections=CONNECTIONS)

    async def gated(http: httpx2.AsyncClient, number: int) -> None:
        async with gate:
            await one(http, number)

    async with httpx2.AsyncClient(timeout=30, limits=limits) as http, asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(gated(http, number))


def require_all(findings: Findings, sessions: int) -> None:
    assert findings.faults == 0, findings
    assert findings.answers == sessions * CALLS


async def converse_everywhere(
    nodes: Nodes, sessions: int, asks: Callable[[AskedClient, int, Findings], Awaitable[None]], *, listens: bool = True
) -> list[AskedClient]:
    """So many sessions, a placement each in turn, of whose questions none may go wrong; the clients by number."""
    endpoint, findings = nodes.all[0].endpoint(STATELESS), Findings()
    places, clients = placements(nodes.urls(endpoint)), dict[int, AskedClient]()

    async def one(http: httpx2.AsyncClient, number: int) -> None:
        client = clients[number] = await opened(http, endpoint, number, places)
        async with client.listening() if listens else nullcontext():
            await asks(client, number, findings)
            await look_back(client, number, findings)
            await client.close()
        findings.repeated += len(client.strays)

    await many(sessions, one)
    require_all(findings, sessions)
    return [clients[number] for number in range(sessions)]


async def test_the_only_call_in_flight_is_asked_on_its_own_stream_although_the_client_listens_elsewhere(
    nodes: Nodes, sessions: int
) -> None:
    for number, client in enumerate(await converse_everywhere(nodes, sessions, ask_in_turn)):
        assert client.asked == own_streams(number)


async def test_several_calls_in_flight_are_asked_on_the_stream_that_hangs_on_another_node(
    nodes: Nodes, sessions: int
) -> None:
    for client in await converse_everywhere(nodes, sessions, ask_at_once):
        assert {asked.stream for asked in client.asked} == {LISTENING}


async def test_a_client_that_does_not_listen_is_asked_on_the_stream_of_its_oldest_call(
    nodes: Nodes, sessions: int
) -> None:
    for client in await converse_everywhere(nodes, sessions, ask_at_once, listens=False):
        assert {asked.stream for asked in client.asked} == {client.asked[0].text}


async def test_an_sse_client_is_asked_on_the_stream_that_hangs_on_another_node_than_its_posts(
    nodes: Nodes, sessions: int
) -> None:
    """The node of the stream has the session: it is the stream that opens it."""
    endpoint, findings = nodes.all[0].endpoint(STATELESS), Findings()
    places = sse_placements(nodes.urls(endpoint))

    async def one(http: httpx2.AsyncClient, number: int) -> None:
        async with AskedSseClient(http, endpoint, places[number % len(places)]) as client:
            await client.open()
            await ask_at_once(client, number, findings)
            await look_back(client, number, findings)

    await many(sessions, one)
    require_all(findings, sessions)


# --- a stream at a node that does not have its session


@asynccontextmanager
async def draining(nodes: Nodes, node: Gateway, endpoint: Endpoint, http: httpx2.AsyncClient) -> AsyncIterator[None]:
    """A node that drains as long as the block runs, because of a call that is not answered sooner."""

    def of_node(path: str) -> Any:
        return node.api("GET", path)["items"]

    session = Wire(http, endpoint)
    session.url = at(nodes, endpoint, node)
    await session.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.call, "later")
        await until(lambda: [each["calls"] for each in of_node(f"/tenants/{endpoint.tenant}/sessions")] == [1], 30)
        await until(lambda: len(of_node("/nodes")) == len(nodes.living()), 30)
        node.terminate()
        await until(lambda: any(each["draining"] for each in of_node("/nodes")), 30)
        yield
        await session.call("release")
    with anyio.fail_after(STOP_S):
        assert await anyio.to_thread.run_sync(node.process.wait) == 0, node.log_tail()


async def test_an_sse_client_is_asked_on_its_stream_at_a_draining_node_while_another_has_the_session(
    nodes: Nodes,
) -> None:
    """Of four nodes one has the stream, one the session, one gets the calls and one the answers."""
    endpoint, findings = nodes.all[0].endpoint(STATELESS), Findings()
    leaving = nodes.start(DRAIN_S="60")
    listens = at(nodes, endpoint, leaving)
    async with httpx2.AsyncClient(timeout=30) as http, draining(nodes, leaving, endpoint, http):
        for number in range(len(METHODS)):
            async with AskedSseClient(http, endpoint, Places(listens, listens, listens, listens)) as client:
                await client.open()
                owner = owner_of(nodes, await client.process())
                assert owner is not leaving
                calls, answers = [url for url in others(nodes, endpoint, owner) if url != listens]
                client.places = Places(listens, listens, calls, answers)
                await ask_at_once(client, number, findings)
                await look_back(client, number, findings)
    require_all(findings, len(METHODS))


# --- the official client


@asynccontextmanager
async def in_turn(nodes: Nodes, endpoint: Endpoint, directory: Path) -> AsyncIterator[Endpoint]:
    """The endpoint behind a proxy that sends each request to the next node."""
    port_file = directory / "port"
    targets = [word for node in nodes.living() for word in ("--target", node.url)]
    proxy = subprocess.Popen([*PROXY, *targets, "--port-file", str(port_file)])
    try:
        await until(lambda: port_file.exists() and port_file.read_text(), 30)
        base = f"http://127.0.0.1:{port_file.read_text()}{urlsplit(endpoint.base).path}"
        yield Endpoint(endpoint.gateway, endpoint.tenant, endpoint.name, base, endpoint.key)
    finally:
        proxy.kill()
        proxy.wait()


class Person:
    """Answers for the official client: each question by its number, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _number(self, kind: str, text: str) -> str:
        number = text.split()[0]
        self.asked.append(f"{kind} {number}")
        return number

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        number = self._number("name", params.message)
        return types.ElicitResult(action="accept", content={"name": f"person {number}"})

    async def sample(self, context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        number = self._number("color", params.messages[0].content.text)
        text = types.TextContent(type="text", text=f"color {number}")
        return types.CreateMessageResult(role="assistant", content=text, model="canned")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_official_client_is_asked_both_when_three_nodes_are_asked_in_turn(
    nodes: Nodes, tmp_path: Path, transport: Transport
) -> None:
    endpoint, person = nodes.all[0].endpoint([*ASKS_TWICE, str(tmp_path / "journal")]), Person()
    before = forwarded(nodes)

    async def poll(client: Client, number: int) -> None:
        answer = text_of(await client.call_tool("poll", {"n": number}))
        assert answer == f"person {number} likes color {number}"

    callbacks = {"elicitation_callback": person.elicit, "sampling_callback": person.sample}
    async with (
        in_turn(nodes, endpoint, tmp_path) as behind,
        python_client(behind, transport, **callbacks) as client,
    ):
        for number in range(3):
            await poll(client, number)
            await client.list_tools()  # a fourth request: the next call goes to another node than this one
        async with anyio.create_task_group() as tasks:
            for number in range(3, 6):
                tasks.start_soon(poll, client, number)
    assert sorted(person.asked) == sorted(f"{kind} {number}" for kind in ("name", "color") for number in range(6))
    assert forwarded(nodes) > before


async def test_clients_that_share_processes_are_asked_what_their_own_calls_ask_whichever_node_is_asked(
    nodes: Nodes, tmp_path: Path
) -> None:
    """A shared process of the handshake era may ask nothing; in 2026-07-28 a question belongs to a call."""
    endpoint = nodes.all[0].endpoint(SESSIONLESS_SERVER, isolation="shared", max_processes=1)

    async def be_asked(behind: Endpoint, name: str) -> None:
        async def elicit(context: Any, params: Any) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"name": name})

        async def sample(context: Any, params: Any) -> types.CreateMessageResult:
            text = types.TextContent(type="text", text=name)
            return types.CreateMessageResult(role="assistant", content=text, model="canned")

        callbacks = {"elicitation_callback": elicit, "sampling_callback": sample}
        async with python_client(behind, "streamable", **callbacks) as client:
            for _ in range(2):
                elicited = text_of(await client.call_tool("test_input_required_result_elicitation", {}))
                sampled = text_of(await client.call_tool("test_input_required_result_sampling", {}))
                assert elicited == f"Hello, {name}!"
                assert f'"text": "{name}"' in sampled

    async with in_turn(nodes, endpoint, tmp_path) as behind, anyio.create_task_group() as tasks:
        for number in range(SHARERS):
            tasks.start_soon(be_asked, behind, f"client {number}")
