"""Who takes how much of the machine, over all tenants and all nodes, as a platform administrator sees it."""

import itertools
import sys
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, until
from tests.integration.nodes import Nodes, said_of_all
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import Wire, rpc, wire

SESSIONLESS_SERVER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/eras.py"), "sessionless"]
STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
# Is an echo server in the main thread; in another one it spins, or it holds memory.
SPINS = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"
PRETENDED = {"Trunkline-Client-Address": "192.0.2.66"}  # what only another node may say
HOLDS = "held = bytearray(b'x') * (200 << 20)\n"


def greedy(node: Gateway, habit: str) -> Endpoint:
    echo = ROOT / "bench/echo_backend.py"
    program = f"{habit}import runpy\nrunpy.run_path({str(echo)!r}, run_name='__main__')"
    return node.endpoint([sys.executable, "-I", "-S", "-c", program], sandbox={"read": [str(echo)]})


def running(node: Gateway, what: str, **query: str) -> dict[str, Any]:
    """A list of all tenants, as this node gives it."""
    answer: dict[str, Any] = node.api("GET", f"/{what}?{urlencode(query)}")
    return answer


async def of_all(node: Gateway, what: str, **query: str) -> dict[str, Any]:
    """The same, when no node is left out."""
    answer: dict[str, Any] = await said_of_all(node, f"/{what}?{urlencode(query)}")
    return answer


def first(node: Gateway, what: str, sort: str) -> dict[str, Any]:
    found: dict[str, Any] = running(node, what, sort=sort, limit="1")["items"][0]
    return found


async def becomes_first(node: Gateway, what: str, sort: str, tenant: str) -> None:
    def is_first() -> bool:
        return bool(first(node, what, sort)["tenant"] == tenant)

    await until(is_first, 60, lambda: running(node, what, sort=sort))


def is_seen_to_spin(process: dict[str, Any], tenant: str) -> bool:
    return process["tenant"] == tenant and process["cpu_s"] > 0.1 and process["cpu_percent"] > 5


@pytest.mark.timeout(240)
async def test_who_eats_memory_and_who_eats_the_processor_is_first_on_either_node(own_nodes: Nodes) -> None:
    one, two = own_nodes.all
    quiet, spins, holds = one.endpoint(ECHO), greedy(one, SPINS), greedy(two, HOLDS)
    async with wire(quiet) as calm, wire(quiet), wire(spins) as spinning, wire(holds) as holding:
        for node, what in itertools.product((one, two), ("tenants/-/processes", "tenants/-/sessions", "use")):
            await becomes_first(node, what, "memory", holds.tenant)
            await becomes_first(node, what, "cpu", spins.tenant)
        # On a busy machine even who spins gets little in the time between two looks.
        await until(lambda: is_seen_to_spin(first(two, "tenants/-/processes", "cpu"), spins.tenant), 60)

        def theirs() -> set[str]:
            return {first(two, "tenants/-/processes", sort)["node"] for sort in ("cpu", "memory")}

        await until(lambda: len(theirs()) == 2, 30, theirs)
        # It may have been looked at while it took its memory; and is again, soon.
        await until(lambda: first(two, "tenants/-/processes", "memory")["resident_bytes"] > 200 << 20, 30)
        use = {each["tenant"]: each for each in (await of_all(one, "use"))["items"]}
        assert {tenant: (each["sessions"], each["processes"]) for tenant, each in use.items()} == {
            quiet.tenant: (2, 2), spins.tenant: (1, 1), holds.tenant: (1, 1),
        }  # fmt: skip
        for _ in range(3):
            await calm.call("whoami")
        most = (await of_all(two, "tenants/-/sessions", sort="calls", limit="1"))["items"][0]
        assert most["tenant"] == quiet.tenant
        assert (await of_all(two, "use", sort="calls", limit="1"))["items"][0]["calls_total"] >= 4
        oldest = (await of_all(two, "tenants/-/processes", sort="age"))["items"]
        assert oldest == sorted(oldest, key=lambda each: each["started_at"])
        assert {spinning.session_id, holding.session_id}.isdisjoint(str(running(two, "tenants/-/sessions")))


async def test_nodes_are_shown_with_their_address_and_their_load(own_nodes: Nodes) -> None:
    one, two = own_nodes.all
    async with wire(one.endpoint(ECHO)):
        await until(lambda: all(node["load"]["descriptors_limit"] for node in running(two, "nodes")["items"]), 20)
        nodes = running(two, "nodes")["items"]
    assert len({node["url"] for node in nodes}) == 2
    assert {node["load"]["pid"] for node in nodes} == {one.pid, two.pid}
    for node in nodes:
        load = node["load"]
        assert 0 < load["descriptors_used"] < load["descriptors_limit"]
        assert 0 < load["memory_used_bytes"] < load["memory_limit_bytes"]
        assert load["loop_lag_s"] < 30
    assert sum(node["load"]["connections"] for node in nodes) >= 1


async def test_a_session_says_which_program_opened_it_and_from_where(start_gateway: Any) -> None:
    gateway = start_gateway(TRUSTED_PROXIES="127.0.0.1/32")
    spoken_for = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7", **PRETENDED}

    def shown(endpoint: Any) -> dict[str, Any]:
        (found,) = gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
        return {name: found[name] for name in ("client_name", "client_version", "address", "protocol_version")}

    async with httpx2.AsyncClient(timeout=30, headers=spoken_for) as http:
        for argv in (ECHO, SESSIONLESS_SERVER):
            endpoint = gateway.endpoint(argv)
            await Wire(http, endpoint).open()
            assert shown(endpoint) == {
                "client_name": "wire", "client_version": "1", "address": "198.51.100.7",
                "protocol_version": "2025-11-25",
            }  # fmt: skip
        for argv, tool in ((ECHO, "whoami"), (SESSIONLESS_SERVER, "heard")):
            endpoint = gateway.endpoint(argv)
            client = SessionlessClient(http, endpoint, [endpoint.mcp])
            info = {"io.modelcontextprotocol/clientInfo": {"name": "new", "version": "2"}}
            await client.request("tools/call", name=tool, meta=info)
            found = shown(endpoint)
            assert (found["client_name"], found["client_version"], found["address"]) == ("new", "2", "198.51.100.7")
        endpoint = gateway.endpoint(ECHO)
        async with http.stream("GET", endpoint.sse, headers=endpoint.headers) as stream:
            lines = stream.aiter_lines()
            while not (line := await anext(lines)).startswith("data:"):
                pass
            hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "0"}}
            address = gateway.url + line.removeprefix("data:").strip()
            await http.post(address, json=rpc("initialize", params=hello), headers=endpoint.headers)
            await until(lambda: shown(endpoint)["client_name"] == "old", 10)
            assert shown(endpoint)["address"] == "198.51.100.7"


async def test_what_another_node_opens_and_takes_over_is_known_there(own_nodes: Nodes) -> None:
    one, two = own_nodes.all
    endpoint = one.endpoint(ECHO)
    first_url, second_url = own_nodes.urls(endpoint)
    async with httpx2.AsyncClient(timeout=30, headers=PRETENDED) as http:
        here = SessionlessClient(http, endpoint, [first_url])
        there = SessionlessClient(http, endpoint, [second_url], {"sampling": {}})
        await here.request("tools/list")
        await there.request("tools/list")  # a second process, which the first node opens for the second
        found = (await of_all(two, f"tenants/{endpoint.tenant}/sessions"))["items"]
        assert [each["address"] for each in found] == ["127.0.0.1"] * 2
        assert len({each["node"] for each in found}) == 1

        endpoint = one.endpoint(STATELESS, recovery="respawn")
        session = Wire(http, endpoint)
        await session.open()
        one.kill()
        session.url = own_nodes.urls(endpoint)[-1]
        path = f"/tenants/{endpoint.tenant}/sessions"
        with anyio.fail_after(60):
            while (await session.post(rpc("ping", 99))).status_code != 200:
                await anyio.sleep(0.1)
        (found_one,) = two.api("GET", path)["items"]
        assert (found_one["client_name"], found_one["address"]) == ("wire", None)
