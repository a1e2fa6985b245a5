"""Two and three nodes: any of them takes any request."""

import asyncio
import json
import sys
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, may_write, until
from tests.integration.nodes import Nodes, said_of_all
from tests.integration.roaming import Roaming, RoamingSse, RoamingWire
from tests.integration.test_isolation import Findings, live
from tests.integration.wire import RpcError, Wire, answer, events, rpc

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
ERAS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/eras.py"), "legacy"]
OWN_SESSIONS, CALLS = 100, 10

pytestmark = pytest.mark.timeout(300)


def counted(full: int, request: pytest.FixtureRequest) -> int:
    """The acceptance count under --long, a tenth of it otherwise."""
    return full if request.config.getoption("--long") else full // 10


async def roam(nodes: Nodes, endpoint: Endpoint, sessions: int, findings: Findings, kind: type = Roaming) -> None:
    """So many sessions whose every request goes to a node drawn by lot."""
    urls, gate = nodes.urls(endpoint), asyncio.Semaphore(50)

    async def one(number: int) -> None:
        async with gate:
            await live(kind(urls, endpoint.headers), f"session {number}", CALLS, findings)

    await asyncio.gather(*(one(number) for number in range(sessions)))


@pytest.mark.parametrize("kind", [Roaming, RoamingSse])
async def test_sessions_with_a_process_each_get_their_own_answers_whichever_node_is_asked(
    nodes: Nodes, request: pytest.FixtureRequest, kind: type
) -> None:
    sessions, findings = counted(OWN_SESSIONS, request), Findings()
    endpoint = nodes.all[0].endpoint(ECHO)
    await roam(nodes, endpoint, sessions, findings, kind)
    assert findings.faults == 0, findings
    assert findings.answers == sessions * CALLS


async def test_a_session_has_one_process_whichever_node_is_asked(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = RoamingWire(http, endpoint, nodes.urls(endpoint))
        await session.open()
        processes = {json.loads(await session.call("whoami"))["process"] for _ in range(12)}
        assert len(processes) == 1
        closed = await session.close()
        assert closed.status_code == 204
        response = await session.post({"jsonrpc": "2.0", "id": 99, "method": "ping"})
        assert response.status_code == 404, response.text


async def test_a_question_reaches_the_client_whose_stream_hangs_on_another_node(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(STATELESS)
    first, second, third = nodes.urls(endpoint)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = RoamingWire(http, endpoint, [first])
        await session.open(capabilities={"sampling": {}})
        session.nodes = [second]
        asking = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "ask_and_wait"}}
        async with session.stream("POST", asking) as stream:
            received = events(stream)
            with anyio.fail_after(30):
                question = await anext(event async for event in received if event.data)
            assert question.message["method"] == "sampling/createMessage"
            session.nodes = [third]
            answered = {"jsonrpc": "2.0", "id": question.message["id"], "result": {"text": "yes"}}
            assert (await session.post(answered)).status_code == 202
            with anyio.fail_after(30):
                result = await anext(event async for event in received if event.data)
        assert result.message["id"] == 7
        assert result.message["result"]["content"][0]["text"] == "yes"
        await session.close()


async def test_news_of_the_server_come_on_the_stream_that_hangs_on_another_node(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(STATELESS)
    first, second, third = nodes.urls(endpoint)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = RoamingWire(http, endpoint, [first])
        await session.open()
        session.nodes = [second]
        async with session.stream("GET") as stream:
            session.nodes = [third]
            await session.call("change")
            with anyio.fail_after(30):
                news = await anext(event async for event in events(stream) if event.data)
        assert news.message["method"] == "notifications/tools/list_changed"
        await session.close()


async def test_another_principal_gets_the_same_404_at_every_node(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    stranger = Endpoint(
        endpoint.gateway, endpoint.tenant, endpoint.name, endpoint.base, nodes.all[0].key(endpoint.tenant)
    )
    async with httpx2.AsyncClient(timeout=30) as http:
        session = RoamingWire(http, endpoint, nodes.urls(endpoint)[:1])
        await session.open()
        bodies = set()
        for session_id in (session.session_id, session.session_id[:-4] + "AAAA", "nobody"):
            for url in nodes.urls(endpoint):
                thief = RoamingWire(http, stranger, [url])
                response = await thief.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, Mcp_Session_Id=session_id)
                assert response.status_code == 404, response.text
                bodies.add(response.content)
        assert len(bodies) == 1, bodies
        assert answer(await session.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})) == {}
        await session.close()


async def test_a_client_that_leaves_a_stream_at_another_node_frees_it_at_the_owner(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = RoamingWire(http, endpoint, nodes.urls(endpoint)[:1])
        await session.open()
        session.nodes = nodes.urls(endpoint)[1:2]
        owner = nodes.all[0]

        def open_streams() -> float:
            return owner.metrics().get('trunkline_streams{kind="get"}', 0)

        before = open_streams()
        async with session.stream("GET") as stream:
            assert stream.status_code == 200
            await until(lambda: open_streams() == before + 1, 20)
        await until(lambda: open_streams() == before, 20)
        await session.close()


async def test_lists_of_sessions_processes_and_nodes_are_those_of_all_nodes(nodes: Nodes) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        sessions = [RoamingWire(http, endpoint, [url]) for url in nodes.urls(endpoint)]
        for session in sessions:
            await session.open()
        for node in nodes.all:
            listed = (await said_of_all(node, f"/tenants/{endpoint.tenant}/sessions"))["items"]
            assert len(listed) == 3
            await until(lambda node=node: len(node.serving(endpoint.tenant)) == 3, 20)  # type: ignore[misc]
            assert len(node.api("GET", "/nodes")["items"]) == 3
        for each in listed:
            nodes.all[0].api("DELETE", f"/tenants/{endpoint.tenant}/sessions/{each['id']}", expect=204)
        for session in sessions:
            response = await session.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            assert response.status_code == 404


async def test_the_number_of_sessions_is_limited_over_all_nodes(nodes: Nodes) -> None:
    tenant = nodes.all[0].add_tenant(sessions=10)
    endpoint = nodes.all[0].endpoint(STATELESS, tenant=tenant, isolation="shared", max_processes=2)
    urls, opened = nodes.urls(endpoint), []
    async with httpx2.AsyncClient(timeout=30) as http:
        for number in range(15):
            session = RoamingWire(http, endpoint, [urls[number % 3]])
            if number < 10:
                await session.open()
                opened.append(session)
            else:
                with pytest.raises(RpcError, match="quota_exceeded"):
                    await session.open()
        for session in opened:
            await session.close()


async def test_an_answer_from_before_the_end_of_its_process_can_be_fetched_at_every_node(
    nodes: Nodes, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    endpoint = nodes.all[0].endpoint(ERAS, sandbox=may_write(tmp_path))
    urls, session = nodes.urls(endpoint), Wire(http, endpoint)
    await session.open()
    call = rpc("tools/call", 7, {"name": "last", "arguments": {"after": str(tmp_path / "cut")}})
    session.url = urls[1]
    async with session.stream("POST", call, Accept="text/event-stream") as response:
        place = (await anext(events(response))).id
    (tmp_path / "cut").touch()
    with anyio.fail_after(20):
        while (await session.post(rpc("ping"))).status_code != 404:
            await anyio.sleep(0.05)
    for url in urls:
        resumed = await http.get(url, headers={**session.headers, "Last-Event-ID": place or ""})
        assert answer(resumed)["content"][0]["text"] == "last words"
        assert (await http.get(url, headers=session.headers)).status_code == 404
