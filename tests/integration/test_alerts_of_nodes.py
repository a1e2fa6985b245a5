"""Alerts about nodes that work together, each where its condition was really brought about. See test_alerts.py."""

import socket
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.alerting import Judge, judge, lasting, look, names, once, together
from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.test_overload import STATELESS
from tests.integration.wire import Wire, initialize, rpc

__all__ = ["judge"]

pytestmark = pytest.mark.timeout(300)


async def test_nothing_fires_on_two_healthy_nodes(own_nodes: Nodes, judge: Judge) -> None:
    endpoint = own_nodes.all[0].endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open()
        before = [look(node, f"node-{number}") for number, node in enumerate(own_nodes.all)]
        for number in range(20):
            session.url = own_nodes.urls(endpoint)[number % 2]
            assert await session.call("echo", text=str(number)) == str(number)
        after = [look(node, f"node-{number}") for number, node in enumerate(own_nodes.all)]
    assert judge(together(*(lasting(*pair, 4200) for pair in zip(before, after, strict=True)))) == set()


async def test_redis_is_away(own_nodes: Nodes, judge: Judge) -> None:
    node = own_nodes.all[0]
    endpoint = node.endpoint(ECHO)
    before = look(node)
    own_nodes.redis.kill()
    async with httpx2.AsyncClient(timeout=30) as http:
        with anyio.fail_after(60):
            for number in range(8):
                response = await Wire(http, endpoint).post(initialize())
                assert response.status_code == 503, (number, response.text)
    alerts = judge(lasting(before, look(node), 900))
    own_nodes.redis.start()
    assert {"TrunklineRedis", "TrunklineErrors"} <= names(alerts)
    assert ("TrunklineRefuses", "routes_unavailable") in {(a.name, dict(a.labels).get("reason")) for a in alerts}


async def test_a_record_in_redis_that_no_node_has_written(own_nodes: Nodes, judge: Judge) -> None:
    before = [look(node, f"node-{number}") for number, node in enumerate(own_nodes.all)]

    def poisoned() -> float:
        return sum(node.metrics()['trunkline_route_store_errors_total{reason="poisoned"}'] for node in own_nodes.all)

    with own_nodes.redis.client() as client:
        async with httpx2.AsyncClient(timeout=30) as http:
            endpoint = own_nodes.all[0].endpoint(ECHO)
            session = Wire(http, endpoint)
            await session.open()
            (route,) = client.keys("trunkline:route:*")
            client.hset(route, "v", b"not ours")
            session.url = own_nodes.urls(endpoint)[1]
            await session.post(rpc("ping"))
    await until(poisoned, 20)
    after = [look(node, f"node-{number}") for number, node in enumerate(own_nodes.all)]
    alerts = judge(together(*(once(*pair, 300) for pair in zip(before, after, strict=True))))
    assert names(alerts) == {"TrunklineForgedRecords"}


async def test_a_node_that_the_others_cannot_reach(tmp_path: Path, postgres_database: str, judge: Judge) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with running_nodes(tmp_path, postgres_database, 1) as nodes:
        far, near = nodes.start(NODE_URL=nowhere), nodes.all[0]
        await nodes.all_know_each_other()
        endpoint = far.endpoint(ECHO)
        async with httpx2.AsyncClient(timeout=30) as http:
            session = Wire(http, endpoint)
            await session.open()
            session.url = near.url + session.url.removeprefix(far.url)
            before = look(near)
            for number in range(8):
                assert (await session.post(rpc("ping", number))).status_code == 503
            alerts = judge(lasting(before, look(near), 900))
    assert {"TrunklineForwardsFail", "TrunklineErrors", "TrunklineRefuses"} <= names(alerts)
    assert {a.label("result") for a in alerts if a.name == "TrunklineForwardsFail"} == {"unreachable"}


async def test_sessions_that_nobody_can_take_over(tmp_path: Path, postgres_database: str, judge: Judge) -> None:
    with running_nodes(tmp_path, postgres_database, 1) as nodes:
        dies, full = nodes.all[0], nodes.start(MAX_SESSIONS="1")
        await nodes.all_know_each_other()
        endpoint = dies.endpoint(STATELESS, recovery="respawn")
        async with httpx2.AsyncClient(timeout=60) as http:
            occupant, session = Wire(http, endpoint), Wire(http, endpoint)
            occupant.url = full.url + endpoint.mcp.removeprefix(dies.url)
            await occupant.open()
            await session.open()
            before = look(full)
            dies.kill()
            session.url = occupant.url

            async def fails() -> bool:
                await session.post(rpc("ping"))
                return full.metrics()['trunkline_takeovers_total{result="failed"}'] > 3

            with anyio.fail_after(60):
                while not await fails():
                    await anyio.sleep(0.1)
            alerts = judge(once(before, look(full), 300))
    assert "TrunklineTakeoversFail" in names(alerts)


class OfAnotherRelease(Gateway):
    """A gateway of a version that is to come."""

    FIRST = "import app.node.gateway as gateway; gateway.__version__ = '99.0'"


def test_nodes_of_different_versions(tmp_path: Path, judge: Judge) -> None:
    with running_gateway(tmp_path / "old") as old, running_gateway(tmp_path / "new", OfAnotherRelease) as new:
        seen = look(old, "node-1"), look(new, "node-2")
        assert names(judge(together(*(lasting(each, each, 4200) for each in seen)))) == {"TrunklineVersionsDiffer"}
        assert judge(together(*(lasting(each, each, 1800) for each in seen))) == set()
