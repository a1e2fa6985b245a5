"""A server elsewhere, behind several nodes: any node takes any request, and a node that dies takes no session with it
where the server keeps no state."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.integration.gateway import Endpoint, Gateway
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.remote import LOOPBACK, SDK, free_port, listening, reached
from tests.integration.wire import RpcError, Wire

AGAIN_WITHIN_S = 30.0


@pytest.fixture
def nodes(tmp_path: Path, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path, postgres_database, 2, **LOOPBACK) as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


@pytest.fixture
def remote(nodes: Nodes) -> Iterator[Endpoint]:
    port = free_port()
    with listening([*SDK, "streamable", str(port)], port):
        headers = {"Authorization": "Bearer sdk"}
        yield reached(nodes.all[0], f"http://127.0.0.1:{port}/mcp", headers=headers, recovery="respawn")


async def test_any_node_takes_any_request_and_the_session_outlives_its_node(nodes: Nodes, remote: Endpoint) -> None:
    urls = nodes.urls(remote)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, remote)
        await session.open()
        for number in range(6):
            session.url = urls[number % 2]
            assert await session.call("echo", text=str(number)) == str(number)
        (first,) = [each for each in nodes.all if upstream_sessions(each) == 1]
        (other,) = [each for each in nodes.all if each is not first]
        assert upstream_sessions(other) == 0
        first.kill()
        (session.url,) = nodes.urls(remote)
        with anyio.fail_after(AGAIN_WITHIN_S):
            assert await again(session) == "again"
        assert upstream_sessions(other) == 1
        assert (await session.close()).status_code == 204
        with anyio.fail_after(AGAIN_WITHIN_S):
            while upstream_sessions(other):
                await anyio.sleep(0.05)


def upstream_sessions(node: Gateway) -> float:
    return node.metrics()["trunkline_upstream_sessions"]


async def again(session: Wire) -> str:
    """The first call that the other node takes: until it knows that its neighbour is gone it says so."""
    while True:
        try:
            return await session.call("echo", text="again")
        except (RpcError, httpx2.HTTPStatusError, AssertionError, StopIteration):
            await anyio.sleep(0.1)
