"""A key is used from an address that it has never come from: what whoever is called at night finds."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.nodes import Nodes, running_nodes, said_of_all
from tests.integration.wire import Wire, rpc

BEHIND_PROXY = {"TRUSTED_PROXIES": "127.0.0.1/32"}  # the tests are the proxy
LINE = "a credential is used from a new address"
COUNTER = "trunkline_credential_new_addresses_total"
OFFICE, STRANGER = "192.0.2.17", "198.51.100.66"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("proxied") / "data", **BEHIND_PROXY) as gateway:
        yield gateway


def from_(address: str) -> httpx2.AsyncClient:
    """A client there, as the proxy names it."""
    return httpx2.AsyncClient(timeout=60, headers={"X-Forwarded-For": address})


def key_of(endpoint: Endpoint, at: Gateway) -> dict[str, Any]:
    """The key of the endpoint's client, as an administrator sees it at this node."""
    (listed,) = at.api("GET", f"/tenants/{endpoint.tenant}/keys")["items"]
    assert "used_from" not in listed
    shown: dict[str, Any] = at.api("GET", f"/tenants/{endpoint.tenant}/keys/{listed['id']}")
    return shown


async def key_of_all(endpoint: Endpoint, at: Gateway) -> dict[str, Any]:
    """The same, with what every node has seen of it."""
    shown: dict[str, Any] = await said_of_all(at, f"/tenants/{endpoint.tenant}/keys/{key_of(endpoint, at)['id']}")
    return shown


def requests_of(shown: dict[str, Any]) -> dict[str, int]:
    return {use["address"]: use["requests"] for use in shown["used_from"]}


def told(*nodes: Gateway) -> list[dict[str, Any]]:
    """The lines about new addresses."""
    texts = (line for node in nodes for line in node.log.read_text().splitlines())
    return [json.loads(text) for text in texts if text.startswith("{") and LINE in text and text.endswith("}")]


def told_of(endpoint: Endpoint, *nodes: Gateway) -> list[dict[str, Any]]:
    return [line for line in told(*nodes) if line["tenant"] == endpoint.tenant]


async def test_a_key_that_is_used_a_thousand_times_from_a_new_address_says_so_once(gateway: Gateway) -> None:
    endpoint, before = gateway.endpoint(ECHO), gateway.metrics()[COUNTER]
    began = datetime.now(UTC)
    async with from_(OFFICE) as http:
        session = Wire(http, endpoint)
        await session.open()
        await session.call("whoami")
        await session.close()
    usual = requests_of(key_of(endpoint, gateway))
    assert list(usual) == [OFFICE]
    assert told_of(endpoint, gateway) == []
    async with from_(STRANGER) as http:
        session = Wire(http, endpoint)
        await session.open()
        opening = requests_of(key_of(endpoint, gateway))[STRANGER]
        for _ in range(1000):
            await session.call("whoami")
        shown = key_of(endpoint, gateway)
        assert requests_of(shown) == {STRANGER: opening + 1000, **usual}
        await session.close()
    newest = shown["used_from"][0]
    assert newest["address"] == STRANGER
    first_at, last_at = (datetime.fromisoformat(newest[name]) for name in ("first_at", "last_at"))
    assert began < first_at <= last_at < datetime.now(UTC)
    assert shown["silent_nodes"] == []
    await until(lambda: told_of(endpoint, gateway), 10)
    (line,) = told_of(endpoint, gateway)
    assert (line["client"], line["principal"], line["addresses"]) == (STRANGER, f"key {shown['id']}", 2)
    assert (line["level"], line["backend"], line["node"]) == ("info", endpoint.name, newest["node"])
    assert line["request"]
    assert gateway.metrics()[COUNTER] == before + 1


async def test_requests_to_the_rest_api_count_and_refused_ones_do_not(gateway: Gateway) -> None:
    tenant = gateway.add_tenant()
    key = gateway.key(tenant, ["tenant:read"])
    path = f"{gateway.url}/api/v1/tenants/{tenant}/keys"
    (identifier,) = [each["id"] for each in gateway.api("GET", f"/tenants/{tenant}/keys")["items"]]
    async with from_(OFFICE) as http:
        for _ in range(2):
            assert (await http.get(path, headers={"Authorization": f"Bearer {key}"})).status_code == 200
    async with from_(STRANGER) as http:
        wrong = f"Bearer {key[:-1]}{'a' if key[-1] != 'a' else 'b'}"
        assert (await http.get(path, headers={"Authorization": wrong})).status_code == 401
        shown = gateway.api("GET", f"/tenants/{tenant}/keys/{identifier}")
        assert requests_of(shown) == {OFFICE: 2}
        named = {"Authorization": f"Bearer {key}", "X-Request-Id": f"asks-{tenant}"}
        assert (await http.get(path, headers=named)).status_code == 200

    def lines() -> list[dict[str, Any]]:
        return [line for line in told(gateway) if line["tenant"] == tenant]

    await until(lines, 10)
    (line,) = lines()
    assert (line["client"], line["principal"]) == (STRANGER, f"key {identifier}")
    assert (line["request"], line["path"]) == (f"asks-{tenant}", f"/api/v1/tenants/{tenant}/keys")


@pytest.fixture
async def nodes(tmp_path: Path, postgres_database: str) -> Any:
    with running_nodes(tmp_path, postgres_database, 2, **BEHIND_PROXY) as nodes:
        await nodes.all_know_each_other()
        yield nodes


@pytest.mark.timeout(120)
async def test_a_request_that_is_sent_on_counts_at_the_node_that_let_it_in(nodes: Nodes) -> None:
    one, two = nodes.all
    endpoint = one.endpoint(ECHO)
    here, there = nodes.urls(endpoint)
    ids = {node: each["id"] for node, each in zip(nodes.all, one.api("GET", "/nodes")["items"], strict=True)}
    async with from_(OFFICE) as at_home, from_(STRANGER) as abroad:
        session = Wire(at_home, endpoint)
        session.url = here
        await session.open()
        opening = {(OFFICE, ids[one]): requests_of(await key_of_all(endpoint, one))[OFFICE]}
        named = {
            **endpoint.headers,
            "Mcp-Session-Id": session.session_id,
            "Accept": "application/json, text/event-stream",
        }
        for number in range(5):
            answer = await abroad.post(there, json=rpc("ping", 100 + number), headers=named)
            assert answer.status_code == 200, answer.text
        used = (await key_of_all(endpoint, two))["used_from"]
        by_node = {(use["address"], use["node"]): use["requests"] for use in used}
        assert by_node == {**opening, (STRANGER, ids[two]): 5}
        # For the second node it was the first address at all; what the first has seen it does not ask.
        assert told_of(endpoint, *nodes.all) == []
        answer = await abroad.post(here, json=rpc("ping", 200), headers=named)
        assert answer.status_code == 200
        await until(lambda: len(told_of(endpoint, *nodes.all)) == 1, 10)
        (line,) = told_of(endpoint, *nodes.all)
        assert (line["client"], line["node"]) == (STRANGER, ids[one])
        assert line["session"] == hashlib.sha256(session.session_id.encode()).hexdigest()[:12]
    shown = await key_of_all(endpoint, two)
    assert (await key_of_all(endpoint, one))["used_from"] == shown["used_from"]
    assert len(shown["used_from"]) == 3
    os.kill(two.pid, signal.SIGSTOP)
    try:
        shown = key_of(endpoint, one)
        assert {use["node"] for use in shown["used_from"]} == {ids[one]}
        assert shown["silent_nodes"] == [ids[two]]
    finally:
        os.kill(two.pid, signal.SIGCONT)
