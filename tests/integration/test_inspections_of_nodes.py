"""Inspections over two nodes: their parts, and what becomes of them when a node is killed, paused or drained."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.inspected import CALL, Inspected, shape
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.parked import STATELESS
from tests.integration.wire import Wire

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def two_nodes(tmp_path: Path, postgres_database: str) -> Iterator[Nodes]:
    """Nodes that may end."""
    with running_nodes(tmp_path, postgres_database, 2) as nodes:
        anyio.run(nodes.all_know_each_other)
        nodes.settle()
        yield nodes


async def opened_at(node: Gateway, endpoint: Endpoint, http: httpx2.AsyncClient) -> Wire:
    """A session of this node."""
    session = Wire(http, endpoint)
    session.url = node.url + urlsplit(endpoint.mcp).path
    await session.open()
    return session


def ends(node: Gateway, seen: Inspected) -> list[str]:
    """What the trail says of the end."""
    tenant = seen.path.split("/")[2]
    found = node.api("GET", f"/tenants/{tenant}/audit?target=inspections/{seen.about['id']}&action=inspection.close")
    return [each["detail"].partition(";")[0] for each in found["items"]]


async def test_the_parts_of_an_inspection_are_those_of_all_nodes(two_nodes: Nodes, http: httpx2.AsyncClient) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(ECHO)
    seen = Inspected(endpoint, other, backend=endpoint.name)
    assert len(seen.about["nodes"]) == 2
    sessions = [await opened_at(node, endpoint, http) for node in (one, other)]
    for turn in range(4):
        await sessions[turn % 2].call("echo", text=f"turn {turn}")
    found: list[Any] = []

    def all_are_seen() -> bool:
        found.extend(seen.messages())
        return len(found) == 2 * 6 + 4 * 4

    await until(all_are_seen, 20)
    numbers = [each["number"] for each in found]
    assert numbers == sorted(set(numbers))
    said = [each["payload"] for each in found if (each["side"], each["kind"], each["method"]) == (
        "client", "request", "tools/call")]  # fmt: skip
    assert [f"turn {turn}" in text for turn, text in enumerate(said)] == [True] * 4
    assert {each["session"] for each in found} == {each["id"] for each in one.api(
        "GET", f"/tenants/{endpoint.tenant}/sessions")["items"]}  # fmt: skip
    (listed,) = one.api("GET", f"/tenants/{endpoint.tenant}/inspections")["items"]
    assert (listed["sessions"], listed["kept"], listed["last"]) == (2, 28, numbers[-1])
    other.api("DELETE", seen.path)
    assert one.api("GET", seen.path)["ending"] == "closed"
    assert ends(one, seen) == ["closed"]
    for session in sessions:
        await session.close()


async def test_an_inspection_whose_node_is_killed_is_over(two_nodes: Nodes, http: httpx2.AsyncClient) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(ECHO)
    await opened_at(other, endpoint, http)
    seen = Inspected(endpoint, one)
    assert seen.now()["nodes"] == [node["id"] for node in one.api("GET", "/nodes")["items"] if other.url in node["url"]]
    other.process.kill()
    with anyio.fail_after(120):
        await until(lambda: httpx2.get(
            f"{one.url}/api/v1{seen.path}/messages", headers={"Authorization": f"Bearer {one.admin_key}"}, timeout=20,
        ).status_code == 404, 60)  # fmt: skip
        gone = one.api("GET", f"{seen.path}/messages", expect=404)
        assert "its node has ended" in gone["detail"]
        assert one.api("GET", f"/tenants/{endpoint.tenant}/inspections")["items"] == []


async def test_while_a_node_is_paused_nobody_hangs_and_awake_again_it_looks_no_more(
    two_nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(ECHO)
    await opened_at(other, endpoint, http)
    seen, whole, another = Inspected(endpoint, one), Inspected(endpoint, one, backend=endpoint.name), one.endpoint(ECHO)
    said = dict[str, Any]()

    def ask(what: str, method: str, path: str, body: Any = None, expect: int = 0) -> None:
        said[what] = one.api(method, path, body, expect=expect)

    other.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        path, unknown, known = "/tenants/{}/inspections", {"backend": "other"}, {"backend": another.name}
        asked: dict[str, tuple[Any, ...]] = {
            "silent": ("GET", f"{seen.path}/messages", None, 503),
            "page": ("GET", f"{whole.path}/messages"),
            "unknown": ("POST", path.format(endpoint.tenant), {**unknown, "reason": "x"}, 404),
            "refused": ("POST", path.format(another.tenant), {**known, "reason": "x"}, 503),
        }
        async with anyio.create_task_group() as tasks:  # at once: it counts as silent for five seconds, then as dead
            for what, words in asked.items():
                tasks.start_soon(anyio.to_thread.run_sync, ask, what, *words)
        assert "no answer from" in said["silent"]["detail"]
        assert (len(said["page"]["silent_nodes"]), said["page"]["inspection"]["ending"]) == (1, None)
        assert said["unknown"]["reason"] == "backend_not_found"
        assert "whose sessions it would not see" in said["refused"]["detail"]
        assert time.monotonic() - began < 20
        await anyio.sleep(5.5)  # a standstill is longer than that
    finally:
        other.process.send_signal(signal.SIGCONT)
    await until(lambda: "standstill" in ends(one, seen), 60)
    assert other.api("GET", seen.path)["ending"] == "standstill"

    def are_open(tenant: str) -> list[str]:
        found = other.api("GET", f"/tenants/{tenant}/inspections")["items"]
        return [each["id"] for each in found if each["ending"] is None]

    await until(lambda: are_open(another.tenant) == [], 30)  # what was asked of it meanwhile is not open either


async def test_a_node_that_drains_writes_the_end_and_the_parts_of_others_go_on(
    two_nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(ECHO)
    await opened_at(other, endpoint, http)
    seen, whole = Inspected(endpoint, one), Inspected(endpoint, one, backend=endpoint.name)
    other.terminate()
    assert await anyio.to_thread.run_sync(other.process.wait, 60) == 0
    await until(lambda: ends(one, seen) == ["session_ended"] or ends(one, seen) == ["shutdown"], 30)
    assert ends(one, whole) == ["shutdown"]
    now = one.api("GET", whole.path)
    assert (now["ending"], len(now["nodes"])) == (None, 1)
    session = await opened_at(one, endpoint, http)
    assert one.api("GET", whole.path)["sessions"] == 1
    await session.close()


async def test_of_sessions_that_move_only_those_that_were_opened_after_it_are_seen(
    two_nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(STATELESS, recovery="respawn")
    before = await opened_at(other, endpoint, http)
    seen = Inspected(endpoint, one, backend=endpoint.name)
    after = await opened_at(other, endpoint, http)
    other.terminate()
    assert await anyio.to_thread.run_sync(other.process.wait, 60) == 0
    for session, text in ((before, "nobody sees it"), (after, "somebody sees it")):
        session.url = one.url + urlsplit(endpoint.mcp).path
        assert await session.call("echo", text=text) == text
    messages = [each for each in seen.messages() if each["method"] == "tools/call"]
    assert "nobody" not in json.dumps(messages)
    assert shape(messages) == CALL
    assert seen.now()["sessions"] == 1


async def test_what_could_not_be_closed_at_a_silent_node_is_closed_there_later(
    two_nodes: Nodes, http: httpx2.AsyncClient
) -> None:
    one, other = two_nodes.all
    endpoint = one.endpoint(ECHO)
    seen = Inspected(endpoint, one, backend=endpoint.name)
    sessions = [await opened_at(node, endpoint, http) for node in (one, other)]
    for session in sessions:
        await session.call("echo", text="before")
    path = "/api/v1" + seen.path
    other.process.send_signal(signal.SIGSTOP)
    try:
        refused = one.http.delete(path).status_code == 503  # else the pause was so long that its part is over for all
    finally:
        other.process.send_signal(signal.SIGCONT)

    def is_gone_everywhere() -> bool:
        one.http.delete(path)
        found = [node.api("GET", seen.path) for node in (one, other)]
        return all((each["kept"], len(each["nodes"])) == (0, 2) for each in found)

    await until(is_gone_everywhere, 30)
    assert {node.api("GET", seen.path)["ending"] for node in (one, other)} <= (
        {"closed"} if refused else {"closed", "standstill"}
    )
