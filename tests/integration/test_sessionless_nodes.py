"""Clients of 2026-07-28 in front of several nodes: requests that name no session, at whichever node they arrive."""

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, server_at, until
from tests.integration.nodes import Nodes
from tests.integration.notebook import KINDS, NOTEBOOK, Person
from tests.integration.sessionless_wire import (
    ASKED,
    OF_CALL,
    SESSIONLESS,
    SessionlessClient,
    another_key,
    at,
    forwarded,
    others,
    owner_of,
    sessions_of,
)
from tests.integration.wire import error_of

ASKING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/asks_twice.py")]
STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
CONFORMANCE = [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era", "legacy"]
CALLERS, CALLS, SUSPENDED = 20, 20, 200

pytestmark = pytest.mark.timeout(300)


# --- which node a caller is served by


async def test_a_caller_of_a_server_with_state_has_one_process_whichever_node_is_asked(
    nodes: Nodes, http: httpx2.AsyncClient, full: bool
) -> None:
    first = nodes.all[0].endpoint(ECHO)
    callers = CALLERS if full else CALLERS // 4

    async def one(endpoint: Endpoint) -> int:
        client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
        said = [await client.whoami() for _ in range(CALLS)]
        (process,) = {each["process"] for each in said}
        assert [each["count"] for each in said] == list(range(1, CALLS + 1))
        return int(process)

    processes: set[int] = set()
    async with anyio.create_task_group() as tasks:
        for endpoint in [first, *[another_key(first) for _ in range(callers - 1)]]:

            async def run(endpoint: Endpoint = endpoint) -> None:
                processes.add(await one(endpoint))

            tasks.start_soon(run)
    assert len(processes) == callers, "no two principals share a process"


async def test_calls_of_every_kind_at_every_node_are_answered_by_one_process(
    nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    endpoint, before = nodes.all[0].endpoint(NOTEBOOK), forwarded(nodes)
    person = Person(http, endpoint, nodes.urls(endpoint))
    for kinds in KINDS:
        await person.run(kinds, 100, 8)
    said = await person.said("keys")
    assert said["stored"] == person.put
    assert len(person.processes) == 1
    assert forwarded(nodes) > before


async def test_of_several_nodes_that_a_new_caller_asks_at_once_one_serves_and_the_others_forward(
    nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    first, before = nodes.all[0].endpoint(ECHO), forwarded(nodes)
    endpoints = [first, *[another_key(first) for _ in range(4)]]
    found: dict[str, list[dict[str, Any]]] = {endpoint.key: [] for endpoint in endpoints}

    async def one(endpoint: Endpoint, url: str) -> None:
        found[endpoint.key].append(await SessionlessClient(http, endpoint, [url]).whoami())

    async with anyio.create_task_group() as tasks:
        for endpoint in endpoints:
            for url in nodes.urls(endpoint) * 2:
                tasks.start_soon(one, endpoint, url)
    for said in found.values():
        assert sorted(each["count"] for each in said) == [1, 2, 3, 4, 5, 6], said
        assert len({each["process"] for each in said}) == 1
    # Each is counted once its answer was sent on.
    await until(lambda: forwarded(nodes) == before + 4 * len(endpoints), 10, lambda: (before, forwarded(nodes)))


@pytest.mark.parametrize("declared", [{"isolation": "shared"}, {"recovery": "respawn"}])
async def test_a_caller_of_a_server_without_state_is_served_where_it_asks(
    nodes: Nodes, http: httpx2.AsyncClient, declared: dict[str, str]
) -> None:
    endpoint, before = nodes.all[0].endpoint(ECHO, **declared), forwarded(nodes)
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
    asked = []

    def serving() -> list[str]:
        return sorted(each["node"].rpartition("-")[0] for each in sessions_of(nodes, endpoint))

    for node in nodes.all:
        await client.whoami(at(nodes, endpoint, node))
        asked.append(node.environment["TRUNKLINE_NODE_NAME"])
        await until(lambda: serving() == sorted(asked), 10, serving)
    assert forwarded(nodes) == before


async def test_the_sets_of_capabilities_of_a_caller_are_four_over_all_nodes(
    nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    endpoint = nodes.all[0].endpoint(ECHO)
    sets: list[dict[str, Any]] = [{}, {"roots": {}}, {"sampling": {}}, {"elicitation": {}}, ASKED]
    clients = [SessionlessClient(http, endpoint, nodes.urls(endpoint), each) for each in sets]
    processes = [(await client.whoami())["process"] for client in clients]
    assert len(set(processes)) == 5
    assert len({owner_of(nodes, each).pid for each in processes[1:]}) == 1
    await until(
        lambda: {server_at(each["pid"]) for each in nodes.all[1].serving(endpoint.tenant)} == set(processes[1:]),
        20,
    )
    assert [(await client.whoami())["process"] for client in clients[1:]] == processes[1:]


@pytest.mark.parametrize("end", ["idle", "changed"])
async def test_a_caller_whose_lines_have_ended_may_be_served_by_another_node(
    nodes: Nodes, http: httpx2.AsyncClient, end: str
) -> None:
    timeouts = {"idle_s": 3} if end == "idle" else {}  # it is looked for before
    endpoint = nodes.all[0].endpoint(ECHO, timeouts=timeouts)
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
    for max_processes, node in enumerate([nodes.all[0], nodes.all[2], nodes.all[1]], 100):
        said = await client.whoami(at(nodes, endpoint, node))
        assert (said["count"], owner_of(nodes, said["process"])) == (1, node)
        if end == "changed":
            path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
            nodes.all[0].api("PATCH", path, {"max_processes": max_processes})
        await until(lambda: not sessions_of(nodes, endpoint), 20, lambda: sessions_of(nodes, endpoint))


async def test_callers_who_come_and_go_never_have_two_processes(
    nodes: Nodes, http: httpx2.AsyncClient, full: bool
) -> None:
    """Lines end after a second of silence, just when the next request may be on its way to another node."""
    first = nodes.all[0].endpoint(ECHO, timeouts={"idle_s": 1})
    rounds, lives = 40 if full else 8, Counter[str]()

    async def one(client: SessionlessClient, key: str) -> None:
        processes: list[int] = []
        for _ in range(rounds):
            await anyio.sleep(random.uniform(0.8, 2.4))  # idle sessions are looked for now and then
            batch: list[dict[str, Any]] = []

            async def ask(batch: list[dict[str, Any]] = batch) -> None:
                batch.append(await client.whoami())

            began_at = time.monotonic()
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
            found = {each["process"] for each in batch}
            assert found.isdisjoint(processes[:-1]), "it was over"
            if len(found) > 1:  # one after the other: between two of the three there was a second of silence as well
                assert time.monotonic() - began_at > 1.0
                processes += dict.fromkeys(each["process"] for each in batch if each["process"] not in processes)
                continue
            (process,) = found
            if process not in processes:
                processes.append(process)
                assert sorted(each["count"] for each in batch) == [1, 2, 3]
        lives[key] = len(processes)

    async with anyio.create_task_group() as tasks:
        for endpoint in [first, *[another_key(first) for _ in range(9)]]:
            tasks.start_soon(one, SessionlessClient(http, endpoint, nodes.urls(endpoint)), endpoint.key)
    print(f"\nprocesses of each caller: {sorted(lives.values())}")
    assert sum(lives.values()) > len(lives), "none has ended: this shows nothing"


async def test_a_server_that_cannot_be_started_ties_its_caller_to_no_node(
    nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    endpoint = nodes.all[0].endpoint(["/bin/false"])
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
    before = forwarded(nodes)
    for url in nodes.urls(endpoint):
        response = await client.post("tools/list", at=url)
        assert error_of(response).reason in ("backend_exited", "backend_unavailable"), response.text
    assert forwarded(nodes) == before


# --- what one node knows and another is asked


async def test_discover_lists_and_mirrored_headers_work_at_every_node(nodes: Nodes, http: httpx2.AsyncClient) -> None:
    endpoint = nodes.all[0].endpoint(CONFORMANCE)
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
    for url in nodes.urls(endpoint):
        discovered = await client.request("server/discover", at=url)
        assert discovered["supportedVersions"][0] == SESSIONLESS
        tools = (await client.request("tools/list", at=url))["tools"]
        assert "test_x_mcp_header" in {tool["name"] for tool in tools}
        call = {"name": "test_x_mcp_header", "arguments": {"region": "eu"}}
        right = await client.request("tools/call", at=url, more={"Mcp-Param-Region": "eu"}, **call)
        assert right["content"][0]["text"] == "region=eu"
        for wrong in ({}, {"Mcp-Param-Region": "us"}):
            response = await client.post("tools/call", at=url, more=wrong, **call)
            assert (response.status_code, error_of(response).code) == (400, -32020)
        response = await client.post("no/such", at=url)
        assert (response.status_code, error_of(response).code) == (404, -32601)
    (session,) = sessions_of(nodes, endpoint)
    assert session["transport"] == "modern"


async def test_a_subscription_at_another_node_hears_changes_and_ends_at_the_owner_with_its_stream(
    nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    endpoint = nodes.all[0].endpoint(STATELESS)
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint))
    owner = owner_of(nodes, (await client.whoami())["process"])
    second, third = others(nodes, endpoint, owner)

    def open_streams() -> float:
        return owner.metrics().get('trunkline_streams{kind="listen"}', 0)

    async with client.listen(second, toolsListChanged=True, resourceSubscriptions=["test://a"]) as messages:
        await client.call("change", at=third)
        await client.call("update", at=third, uri="test://b")
        await client.call("update", at=third, uri="test://a")
        with anyio.fail_after(10):
            news = [await anext(messages), await anext(messages)]
        assert [each["method"] for each in news] == [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        ]
        assert news[1]["params"]["uri"] == "test://a"
        assert open_streams() == 1
    await until(lambda: open_streams() == 0, 20)
    with anyio.fail_after(20):
        while "resources/unsubscribe test://a" not in (await client.whoami())["heard"]:
            await anyio.sleep(0.02)


async def test_a_call_is_counted_under_its_clients_revision(nodes: Nodes, http: httpx2.AsyncClient) -> None:
    endpoint = nodes.all[0].endpoint(ECHO, isolation="shared")
    client, before = SessionlessClient(http, endpoint, nodes.urls(endpoint)[:1]), nodes.all[0].metrics()
    await client.request("server/discover")
    await client.request("tools/list")
    await client.whoami()

    def grown() -> dict[str, float]:
        now = nodes.all[0].metrics()
        return {
            name: now[name] - before.get(name, 0)
            for name in now
            if name.startswith("mcp_server_operation_duration_seconds_count") and now[name] != before.get(name, 0)
        }

    labels = 'error_type="",mcp_method_name="{}",mcp_protocol_version="2026-07-28",network_transport="modern"'
    methods = ("server/discover", "tools/list", "tools/call")
    expected = {f"mcp_server_operation_duration_seconds_count{{{labels.format(method)}}}": 1 for method in methods}
    await until(lambda: grown() == expected, 10, grown)


# --- suspended calls


async def test_suspended_calls_go_on_where_they_stopped_whichever_node_is_asked(
    nodes: Nodes, http: httpx2.AsyncClient, tmp_path: Path, full: bool
) -> None:
    calls, journal = SUSPENDED if full else SUSPENDED // 10, tmp_path / "journal"
    first = nodes.all[0].endpoint([*ASKING, str(journal)], max_processes=1000)
    endpoints = [first, *[another_key(first) for _ in range(4)]]
    got: dict[int, str] = {}

    async def one(number: int) -> None:
        endpoint = endpoints[number % len(endpoints)]
        client = SessionlessClient(http, endpoint, nodes.urls(endpoint), ASKED)
        got[number] = await client.answer_all("poll", OF_CALL, n=number)

    began_at, before = time.monotonic(), forwarded(nodes)
    async with anyio.create_task_group() as tasks:
        for number in range(calls):
            tasks.start_soon(one, number)
    assert got == {number: f"name-{number} likes color-{number}" for number in range(calls)}
    words = [f"{word} {number}" for word in ("began", "ended") for number in range(calls)]
    assert Counter(journal.read_text().splitlines()) == Counter(words), "each ran once"
    print(f"\n{calls} calls in {time.monotonic() - began_at:.1f} s, {forwarded(nodes) - before:.0f} forwards")
    assert forwarded(nodes) > before
