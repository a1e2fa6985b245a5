"""Activity and problems of two nodes: what REST says of both, whichever is asked, and of one that is silent."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.incidents.stage import TROUBLE, Client
from tests.integration.gateway import ECHO, Gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.postgres import new_database

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, postgres_template: str) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("nodes")
    with new_database(postgres_url, postgres_template) as url, running_nodes(directory, url, 2) as nodes:
        nodes.settle()
        yield nodes


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client(opened: ExitStack, node: Gateway, tenant: str, backend: str) -> Client:
    made = Client(f"{node.url}/t/{tenant}/{backend}/mcp", node.key(tenant))
    opened.callback(made.http.close)
    return made


def kinds(node: Gateway, path: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in node.api("GET", path)["items"]}


def total(series: list[float | None]) -> float:
    return sum(each or 0 for each in series)


async def test_calls_of_both_nodes_are_in_one_series_and_of_one_node_in_its_own(
    nodes: Nodes, opened: ExitStack
) -> None:
    first, second = nodes.all
    first.add_tenant("acme")
    first.add_backend("acme", "notes", ECHO[0], ECHO[1:])
    for node, calls in ((first, 5), (second, 10)):
        each = client(opened, node, "acme", "notes")
        assert each.open().status_code == 200
        for _ in range(calls):
            assert each.call("echo", text="x").status_code == 200
    path = "/tenants/acme/activity"

    def calls_of(node: str = "") -> float:
        shown = first.api("GET", f"{path}?node={node}" if node else path)
        # Who does not answer within a second is left out, and is asked again.
        return 0.0 if shown["silent_nodes"] else 5 * total(shown["calls_per_second"])

    await until(lambda: calls_of() >= 17, 20, calls_of)  # and two of `initialize`
    ids = [each["id"] for each in first.api("GET", "/nodes")["items"]]

    def of_each() -> list[float]:
        return sorted(calls_of(node) for node in ids)

    await until(lambda: of_each() == [6, 11], 20, of_each)

    def now() -> tuple[int, object, object]:
        shown = first.api("GET", path)
        return len(shown["nodes"]), shown["sessions"][-1], shown["processes"]["leased"][-1]

    await until(lambda: now() == (2, 2, 2), 20, now)  # the last step of each node has its own end
    assert total(first.api("GET", "/tenants/default/activity")["calls_per_second"]) == 0
    await until(lambda: 5 * total(second.api("GET", "/activity")["calls_per_second"]) >= 17, 20)


async def test_a_breaker_that_one_node_has_opened_is_named_by_the_other(nodes: Nodes, opened: ExitStack) -> None:
    first, second = nodes.all
    first.add_tenant("zenith")
    first.add_backend("zenith", "billing", TROUBLE[0], [*TROUBLE[1:], "needs", "BILLING_TOKEN"])
    broken = client(opened, second, "zenith", "billing")
    await until(lambda: broken.open().json()["error"]["data"]["reason"] == "backend_unavailable", 20)
    await until(lambda: "breaker_open" in kinds(first, "/tenants/zenith/problems"), 20)
    problem = kinds(first, "/tenants/zenith/problems")["breaker_open"]
    assert (problem["about"], problem["severity"]) == ({"kind": "backend", "name": "billing"}, "critical")
    assert len(problem["nodes"]) == 1
    assert "breaker_open" not in kinds(first, "/tenants/acme/problems")
    assert kinds(first, "/problems")["breaker_open"]["tenant"] == "zenith"


async def test_a_node_that_does_not_answer_is_a_problem_and_is_named_as_silent(nodes: Nodes) -> None:
    first, second = nodes.all

    def silent() -> list[str]:
        found = first.api("GET", "/problems")
        named = [each["about"]["name"] for each in found["items"] if each["kind"] == "node_silent"]
        return named if named == found["silent_nodes"] else []

    def silent_in_activity() -> list[str]:
        named: list[str] = first.api("GET", "/activity")["silent_nodes"]
        return named

    os.kill(second.process.pid, signal.SIGSTOP)
    try:
        # One question after the other: for how long it is known at all is up to its lease.
        await until(lambda: len(found := silent()) == 1 and silent_in_activity() == found, 20.0)
    finally:
        os.kill(second.process.pid, signal.SIGCONT)
