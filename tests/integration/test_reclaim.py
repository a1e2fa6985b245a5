"""Sessions that their clients have left make room for others where there is none: over real sockets and processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import psutil
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.nodes import Nodes
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import RpcError, Wire, error_of, rpc

ABANDONED = 10
SOON_S = 1.5
LATE_S = 3600.0
WITHIN_S = 30.0  # the gateway's own patience with who waits for a process

pytestmark = pytest.mark.timeout(120)


async def left(http: httpx2.AsyncClient, endpoint: Endpoint, count: int) -> list[Wire]:
    """Sessions whose clients say nothing any more, and have not said that they leave."""
    sessions = [Wire(http, endpoint) for _ in range(count)]
    for session in sessions:
        await session.open()
    return sessions


@asynccontextmanager
async def newcomer(http: httpx2.AsyncClient, endpoint: Endpoint) -> AsyncIterator[Wire]:
    session = Wire(http, endpoint)
    with anyio.fail_after(WITHIN_S):
        await session.open()
    yield session
    await session.close()


def closed(gateway: Gateway, reason: str) -> float:
    return gateway.metrics().get(f'trunkline_sessions_closed_total{{reason="{reason}"}}', 0.0)


async def test_ten_abandoned_sessions_do_not_block_an_eleventh_client(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = gateway.endpoint(ECHO, max_processes=ABANDONED, timeouts={"reclaim_idle_s": SOON_S})
    before = closed(gateway, "reclaimed")
    sessions = await left(http, endpoint, ABANDONED)
    async with newcomer(http, endpoint) as eleventh:
        assert await eleventh.call("echo", text="there is room") == "there is room"
        assert closed(gateway, "reclaimed") == before + 1
        response = await sessions[0].post(rpc("ping"))  # the one that has been silent for longest
        assert response.status_code == 404
        error = error_of(response)
        assert (error.reason, error.data["cause"]) == ("session_ended", "reclaimed")
        assert "reclaim_idle_s" in response.json()["error"]["message"]
        for session in sessions[1:]:
            assert (await session.post(rpc("ping"))).status_code == 200
    for session in sessions[1:]:
        await session.close()


async def test_as_many_make_room_as_there_are_newcomers(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = gateway.endpoint(ECHO, max_processes=6, timeouts={"reclaim_idle_s": SOON_S})
    before = closed(gateway, "reclaimed")
    abandoned = await left(http, endpoint, 6)
    newcomers = [Wire(http, endpoint) for _ in range(4)]
    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks:
            for each in newcomers:
                tasks.start_soon(each.open)
    assert closed(gateway, "reclaimed") == before + 4
    statuses = [(await session.post(rpc("ping"))).status_code for session in abandoned]
    assert statuses == [404] * 4 + [200] * 2
    for session in [*abandoned[4:], *newcomers]:
        await session.close()


def idle_s(endpoint: Endpoint) -> float:
    """For how long every session of the tenant has been silent, at least."""
    sessions = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return min(float(session["idle_s"]) for session in sessions)


def calls(endpoint: Endpoint) -> int:
    sessions = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return sum(int(session["calls"]) for session in sessions)


async def test_the_process_of_a_client_without_sessions_makes_room_and_comes_back(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = gateway.endpoint(ECHO, max_processes=1, timeouts={"reclaim_idle_s": SOON_S})
    sessionless = SessionlessClient(http, endpoint, [endpoint.mcp])
    assert await sessionless.call("echo", text="first") == "first"
    async with newcomer(http, endpoint) as session:
        with anyio.fail_after(WITHIN_S):
            assert await sessionless.call("echo", text="it notices nothing") == "it notices nothing"
        assert (await session.post(rpc("ping"))).status_code == 404  # it was idle meanwhile


async def test_a_place_among_the_tenants_sessions_is_made_as_well(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    tenant = gateway.add_tenant(sessions=2)
    endpoint = gateway.endpoint(ECHO, tenant=tenant, timeouts={"reclaim_idle_s": LATE_S})
    sessions = await left(http, endpoint, 2)
    with pytest.raises(RpcError, match="2 sessions open; its limit is 2"):
        await Wire(http, endpoint).open()
    gateway.api("PATCH", f"/tenants/{tenant}/backends/{endpoint.name}", {"timeouts": {"reclaim_idle_s": 0.01}})
    await until(lambda: idle_s(endpoint) > 0.01, 10)
    async with newcomer(http, endpoint):  # a changed backend keeps its sessions
        assert [(await each.post(rpc("ping"))).status_code for each in sessions] == [404, 200]


async def test_a_node_makes_room_with_its_own_sessions(own_nodes: Nodes, http: httpx2.AsyncClient) -> None:
    """The quota is counted over all nodes: the place that has come free here is one everywhere."""
    here, there = own_nodes.all
    tenant = here.add_tenant(sessions=2)
    endpoint = here.endpoint(ECHO, tenant=tenant, timeouts={"reclaim_idle_s": 0.01})
    mine, theirs = Wire(http, endpoint), Wire(http, endpoint)
    theirs.url = own_nodes.urls(endpoint)[1]
    await theirs.open()
    await mine.open()
    await until(lambda: idle_s(endpoint) > 0.01, 10)

    def used(node: Gateway) -> tuple[Any, ...]:
        use = node.api("GET", f"/tenants/{tenant}")["use"]
        return use["sessions"], use["sessions_per_principal"], use["processes"], use["silent_nodes"]

    # A node that does not answer within a second is asked again.
    await until(lambda: used(here) == used(there) == (2, 2, 2, []), 20, lambda: (used(here), used(there)))
    async with newcomer(http, endpoint) as session:
        assert (await theirs.post(rpc("ping"))).status_code == 200
        assert (await mine.post(rpc("ping"))).status_code == 404
        assert await session.call("echo", text="x") == "x"
    assert there.metrics().get('trunkline_sessions_closed_total{reason="reclaimed"}', 0.0) == 0


async def test_a_session_whose_process_has_died_is_not_ended_to_free_one(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    """Somebody else has its place, and it waits for another one. Before, its own wait ended it: it was idle."""
    timeouts = {"reclaim_idle_s": SOON_S, "park_s": LATE_S}
    endpoint = gateway.endpoint(ECHO, max_processes=1, recovery="respawn", timeouts=timeouts)
    one, other = Wire(http, endpoint), Wire(http, endpoint)
    await one.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.open)
        await anyio.sleep(0.3)  # it stands in line
        for process in gateway.serving(endpoint.tenant):
            psutil.Process(process["pid"]).kill()
    await anyio.sleep(2 * SOON_S)
    for session in (one, other):
        response = await session.post(rpc("ping"))
        assert response.status_code == 200, response.text
        await session.close()
