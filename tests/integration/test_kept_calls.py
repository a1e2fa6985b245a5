"""Calls that are kept in the database: over restarts and over nodes that are gone, until their tenant is."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.wire import Wire, wire

KEPT = {"CALLS_KEPT_DAYS": "1"}
WITHIN_S = 30.0


@pytest.fixture
def pair(tmp_path: Path, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path, postgres_database, 2, **KEPT) as nodes:
        yield nodes


def path(endpoint: Endpoint, query: str = "") -> str:
    return f"/tenants/{endpoint.tenant}/calls{query}"


def written(gateway: Gateway) -> float:
    return gateway.metrics()['trunkline_kept_calls_total{result="written"}']


async def test_they_outlive_the_node_and_go_with_their_tenant(tmp_path: Path):
    with running_gateway(tmp_path / "data", **KEPT, CALLS_PER_TENANT="5") as gateway:
        endpoint = gateway.endpoint(ECHO)
        async with wire(endpoint) as session:
            for number in range(4):
                await session.call("echo", text=str(number))
        before = gateway.api("GET", path(endpoint, "?tool=echo"))
        assert before["total"] == 4
    with running_gateway(tmp_path / "data", **KEPT, CALLS_PER_TENANT="5") as gateway:
        assert gateway.api("GET", path(endpoint, "?tool=echo")) == before
        first = gateway.api("GET", path(endpoint, "?tool=echo&limit=3"))
        rest = gateway.api("GET", path(endpoint, f"?tool=echo&limit=3&cursor={first['next_cursor']}"))
        assert first["items"] + rest["items"] == before["items"]
        (group,) = gateway.api("GET", path(endpoint, ":grouped?by=tool&tool=echo"))["items"]
        assert (group["count"], group["errors"], group["within"]) == (4, 0, endpoint.name)
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}")
        gateway.api("POST", "/tenants", {"name": endpoint.tenant})
        assert gateway.api("GET", path(endpoint))["items"] == []
    with running_gateway(tmp_path / "data") as gateway:  # they are not to be kept any more
        assert gateway.api("GET", path(endpoint))["total"] == 0


async def test_each_is_shown_and_counted_once_while_it_is_written(tmp_path: Path):
    """There are more than the memory holds, some of them are in both places, and the newest in memory only."""
    with running_gateway(tmp_path / "data", **KEPT, CALLS_PER_TENANT="30") as gateway:
        endpoint = gateway.endpoint(ECHO)
        async with wire(endpoint) as session:
            for number in range(20):
                await session.call("echo", text=str(number))
            await until(lambda: written(gateway) >= 20, WITHIN_S)
            for number in range(25):
                await session.call("echo", text=str(number))
            found = gateway.api("GET", path(endpoint, "?tool=echo&limit=200"))
            assert len({each["id"] for each in found["items"]}) == len(found["items"]) == 45
            (group,) = gateway.api("GET", path(endpoint, ":grouped?by=tool&tool=echo"))["items"]
            assert 25 <= group["count"] <= 45
            await until(lambda: gateway.api("GET", path(endpoint, "?tool=echo"))["total"] == 45, WITHIN_S)

            def is_exact() -> bool:
                (group,) = gateway.api("GET", path(endpoint, ":grouped?by=tool&tool=echo"))["items"]
                return bool(group["count"] == 45)

            await until(is_exact, WITHIN_S)


async def test_those_of_a_node_that_is_gone_are_found_on_another(pair: Nodes):
    first, second = pair.all
    endpoint = first.endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open()
        await session.call("echo", text="x")
        await until(lambda: written(first) >= 2, WITHIN_S)
    first.process.kill()
    first.process.wait()
    found = second.api("GET", path(endpoint, "?tool=echo"))
    assert [each["node"] for each in found["items"]] != []
    assert found["total"] == 1
    other = second.add_tenant()
    assert second.api("GET", f"/tenants/{other}/calls")["items"] == []
    headers = {"Authorization": f"Bearer {second.key(other, ['tenant:admin'])}"}
    url = f"{second.url}/api/v1{path(endpoint)}"
    assert httpx2.get(url, headers=headers).status_code == 404
