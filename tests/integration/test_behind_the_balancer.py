"""Two nodes behind the balancer of deploy/haproxy, as the compose file puts them together."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp_clients import CallFailed, Session, SseSession, StreamableSession

from tests.console.browser import Browser
from tests.haproxy import running_balancer
from tests.integration.gateway import ECHO, Endpoint
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.person import Person, Program
from tests.integration.wire import ACCEPT

SESSIONS = 12
BOTH_WITHIN_S = 60.0  # the balancer knows both nodes

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("nodes")
    with running_nodes(directory, postgres_database, 2, DRAIN_DELAY_S="1", DRAIN_S="10") as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


@pytest.fixture(scope="module")
def balancer(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> Iterator[str]:
    ports = [urlsplit(node.url).port or 80 for node in nodes.all]
    with running_balancer(tmp_path_factory.mktemp("balancer"), ports) as (port, _):
        yield f"http://127.0.0.1:{port}"


def session(balancer: str, endpoint: Endpoint) -> StreamableSession:
    return StreamableSession(balancer + urlsplit(endpoint.mcp).path, endpoint.headers)


def sse_session(balancer: str, endpoint: Endpoint) -> SseSession:
    return SseSession(balancer + urlsplit(endpoint.sse).path, endpoint.headers)


async def test_what_nodes_say_to_each_other_does_not_pass_the_balancer(nodes: Nodes, balancer: str) -> None:
    asks = {"Trunkline-Challenge": "x"}
    async with httpx2.AsyncClient(timeout=30) as http:
        assert (await http.get(nodes.all[0].url + "/internal/node", headers=asks)).status_code == 403
        assert (await http.get(balancer + "/internal/node", headers=asks)).status_code == 404


def forwards(nodes: Nodes) -> float:
    """How many requests one node has sent on to another."""
    of_each = [node.metrics() for node in nodes.living()]
    return sum(value for each in of_each for name, value in each.items() if name.startswith("trunkline_forwards_total"))


@pytest.mark.parametrize("connect", [session, sse_session])
async def test_requests_of_a_session_reach_their_own_node(
    nodes: Nodes, balancer: str, connect: Callable[[str, Endpoint], Session]
) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    sessions = [connect(balancer, endpoint) for _ in range(6)]
    before = forwards(nodes)
    try:
        for each in sessions:
            await each.open()
            for number in range(4):
                assert await each.call_tool("echo", {"text": str(number)}) == str(number)
        assert {name_in(each) for each in sessions} == {"gateway-1", "gateway-2"}, "one of the nodes has got nothing"
        assert forwards(nodes) == before
        await astray(nodes, sessions[0], endpoint)
        assert forwards(nodes) == before + 1, "which is how it is counted"
    finally:
        for each in sessions:
            await each.close()


def name_in(each: Session) -> str:
    """The name of the node that gave its id out."""
    return (each.session_id or "").removeprefix("sessionId=").partition(".")[0]


async def astray(nodes: Nodes, each: Session, endpoint: Endpoint) -> None:
    """A request of this session at the other node."""
    (other,) = [node for node in nodes.all if node.environment["TRUNKLINE_NODE_NAME"] != name_in(each)]
    headers = {**endpoint.headers, "Accept": ACCEPT}
    if isinstance(each, SseSession):
        address = each.post_path or ""
    else:
        address, headers["Mcp-Session-Id"] = urlsplit(endpoint.mcp).path, each.session_id or ""
    ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
    async with httpx2.AsyncClient(timeout=30) as http:
        assert (await http.post(other.url + address, json=ping, headers=headers)).status_code in (200, 202)


class Outside(Browser):
    """A browser that reaches the console by the balancer."""

    def __init__(self, url: str) -> None:
        self.url, self.http = url, httpx2.Client(base_url=url, timeout=30)

    @property
    def from_here(self) -> dict[str, str]:
        return {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}


def test_a_person_signs_in_and_a_program_gets_its_token_by_the_balancer(nodes: Nodes, balancer: str) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    nodes.all[0].api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    address, issuer = balancer + urlsplit(endpoint.mcp).path, f"{balancer}/oauth/{endpoint.tenant}"
    with Outside(balancer) as browser, httpx2.Client(timeout=30) as http:
        for name in ("oauth-authorization-server", "openid-configuration"):
            for place in (f"{balancer}/.well-known/{name}/oauth/{endpoint.tenant}", f"{issuer}/.well-known/{name}"):
                assert http.get(place).json()["issuer"] == issuer
        person = Person(browser, endpoint.key)
        assert Program(http, issuer, address).connected(person)["access_token"]
        assert len(person.pages) == 1


async def test_no_call_fails_while_a_node_drains(nodes: Nodes, balancer: str) -> None:
    """The last test here: one of the nodes is gone afterwards."""
    endpoint = nodes.all[0].endpoint(ECHO, recovery="respawn")
    sessions = list[StreamableSession]()
    try:
        with anyio.fail_after(BOTH_WITHIN_S):
            # On a busy machine the balancer may hold one of the nodes for dead until its next check.
            while len(sessions) < SESSIONS or len(made_by(sessions)) < 2:
                if len(sessions) == SESSIONS:
                    await sessions.pop(0).close()
                sessions.append(session(balancer, endpoint))
                await sessions[-1].open()
        await drain_under_load(nodes, sessions)
    finally:
        for each in sessions:
            await each.close()


def made_by(sessions: Sequence[StreamableSession]) -> Counter[str]:
    """How many sessions each node has opened."""
    return Counter((each.session_id or "").partition(".")[0] for each in sessions)


async def drain_under_load(nodes: Nodes, sessions: Sequence[StreamableSession]) -> None:
    calls, failures = Counter[str](), Counter[str]()
    is_over = asyncio.Event()

    async def keep_calling(each: StreamableSession, name: str) -> None:
        while not is_over.is_set():
            try:
                assert await each.call_tool("echo", {"text": name}) == name
                calls[name] += 1
            except CallFailed as failure:
                failures[str(failure)] += 1
                return

    assert len(made_by(sessions)) == 2, "the balancer has given one of the nodes nothing"
    leaving, staying = nodes.all
    async with asyncio.TaskGroup() as tasks:
        for number, each in enumerate(sessions):
            tasks.create_task(keep_calling(each, f"session {number}"))
        leaving.terminate()
        assert await asyncio.to_thread(leaving.process.wait, 60) == 0
        so_far = Counter(calls)
        with anyio.fail_after(40):
            while any(calls[name] < so_far[name] + 5 for name in so_far) and not failures:
                await asyncio.sleep(0.01)
        is_over.set()
    print(f"{calls.total()} calls in {len(sessions)} sessions, {so_far.total()} of them until the node was gone")
    assert not failures, staying.log_tail()
    assert len(calls) == len(sessions)
    assert staying.process.poll() is None
