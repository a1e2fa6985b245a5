"""What a node that stops owes the other nodes: to say so first, to be there until they have their answers, and to bring
what it passes on from them to an end."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx2
import pytest

from app.cluster.node_status.listing import Window
from app.cluster.node_status.questions import SESSIONS
from app.cluster.peers.client import PeerClient, PeerRequest
from app.cluster.peers.credentials import NodeCredentials, Word
from tests.cluster.peers.rig import ALICE, record
from tests.integration.gateway import ECHO, Gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.wire import Wire, answer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def two_nodes(tmp_path: Path, postgres_database: str) -> AsyncIterator[Nodes]:
    with running_nodes(tmp_path, postgres_database, 2, DRAIN_S="8", STREAM_AFTER_S="1") as nodes:
        await nodes.all_know_each_other()
        yield nodes


def known_by(node: Gateway) -> dict[str, bool]:
    """The nodes by id, and whether they leave."""
    return {each["id"]: each["draining"] for each in node.api("GET", "/nodes")["items"]}


async def test_a_node_that_leaves_says_so_and_answers_probes_while_another_waits_for_it(two_nodes: Nodes) -> None:
    """The other order (first the port is closed, then the others hear of it) has failed calls: whoever saw a node that
    was gone from the list refuse a connection gave up those that it had, and what was under way on them."""
    staying, leaving = two_nodes.all
    secret = bytes.fromhex(leaving.environment["TRUNKLINE_SECRET_KEY"])
    third = PeerClient(NodeCredentials(secret, "third", time.time))
    node = await third.probe(leaving.url)
    assert node is not None
    question = PeerRequest("POST", b"/internal/overview/sessions", (), Word(ALICE, ""))
    under_way = await third.send(record(leaving.url, node), question, SESSIONS.encode("a", Window()))
    assert SESSIONS.decode(await under_way.body(100)).rows == []  # and the connection is kept
    assert "1 idle" in repr(third)
    leaving.terminate()
    await until(lambda: node not in known_by(staying) or known_by(staying)[node], 20)
    await until(lambda: node not in known_by(staying), 20)
    assert await third.probe(leaving.url) == node
    assert leaving.process.poll() is None
    third.retire(leaving.url)
    assert await asyncio.to_thread(leaving.process.wait, 40) == 0
    await third.aclose()


async def test_what_a_node_passes_on_is_drained_like_its_own(two_nodes: Nodes) -> None:
    staying, leaving = two_nodes.all
    endpoint = staying.endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        wire = Wire(http, endpoint)
        await wire.open()
        wire.url = two_nodes.urls(endpoint)[1]

        async def call(ms: int, accept: str) -> httpx2.Response:
            params = {"name": "sleep", "arguments": {"ms": ms}}
            message = {"jsonrpc": "2.0", "id": next(wire.ids), "method": "tools/call", "params": params}
            return await wire.post(message, Accept=accept)

        async with wire.stream("GET", Accept="text/event-stream") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            calls = [
                asyncio.ensure_future(call(ms, accept))
                for ms in (4000, 60_000)
                for accept in ("application/json", "application/json, text/event-stream")
            ]
            tenant = endpoint.tenant

            def in_flight() -> int:
                return int(staying.api("GET", f"/tenants/{tenant}/sessions")["items"][0]["calls"])

            await until(lambda: in_flight() == len(calls), 20, in_flight)
            leaving.terminate()
            with anyio.fail_after(40):
                rest = [line async for line in lines]
                short, short_stream, long, long_stream = await asyncio.gather(*calls)
        assert [line for line in rest if line.startswith("retry: ")]
        for each in (short, short_stream):
            assert answer(each)["content"][0]["text"] == "slept"
        assert (long.status_code, long.json()["error"]["data"]["reason"]) == (200, "node_lost")
        assert "retry: " in long_stream.text.rpartition("\n\n")[2]
        assert "result" not in long_stream.text
        assert await asyncio.to_thread(leaving.process.wait, 40) == 0
        wire.url = two_nodes.urls(endpoint)[0]
        assert await wire.call("echo", text="the session is well") == "the session is well"
