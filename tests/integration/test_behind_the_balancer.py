"""Two nodes behind the balancer of deploy/haproxy, as the compose file puts them together."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp_clients import CallFailed, StreamableSession

from tests.haproxy import running_balancer
from tests.integration.gateway import ECHO, Endpoint
from tests.integration.nodes import Nodes, running_nodes

SESSIONS = 12

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


async def test_what_nodes_say_to_each_other_does_not_pass_the_balancer(nodes: Nodes, balancer: str) -> None:
    upgrade = {"Connection": "upgrade", "Upgrade": "trunkline-link", "Trunkline-Challenge": "x"}
    async with httpx2.AsyncClient() as http:
        assert (await http.get(nodes.all[0].url + "/internal/link", headers=upgrade)).status_code == 403
        assert (await http.get(balancer + "/internal/link", headers=upgrade)).status_code == 404


async def test_no_call_fails_while_a_node_drains(nodes: Nodes, balancer: str) -> None:
    """The last test here: one of the nodes is gone afterwards."""
    endpoint = nodes.all[0].endpoint(ECHO, recovery="respawn")
    sessions = [session(balancer, endpoint) for _ in range(SESSIONS)]
    try:
        for each in sessions:
            await each.open()
        await drain_under_load(nodes, sessions)
    finally:
        for each in sessions:
            await each.close()


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

    made_by = Counter((each.session_id or "").partition(".")[0] for each in sessions)
    assert len(made_by) == 2, "the balancer has given one of the nodes nothing"
    leaving, staying = nodes.all
    async with asyncio.TaskGroup() as tasks:
        for number, each in enumerate(sessions):
            tasks.create_task(keep_calling(each, f"session {number}"))
        leaving.terminate()
        assert await asyncio.to_thread(leaving.process.wait, 30) == 0
        so_far = Counter(calls)
        with anyio.fail_after(20):
            while any(calls[name] < so_far[name] + 5 for name in so_far) and not failures:
                await asyncio.sleep(0.01)
        is_over.set()
    print(f"{calls.total()} calls in {SESSIONS} sessions, {so_far.total()} of them until the node was gone")
    assert not failures, staying.log_tail()
    assert len(calls) == SESSIONS
    assert staying.process.poll() is None
