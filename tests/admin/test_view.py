"""A view of the simplest kind over two nodes: its route, its pages and order, and the command line."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal

from app.cli import resources as commands
from app.cli.parser import parse
from app.cli.rest import Rest
from app.cluster.all_nodes import AllNodes
from app.cluster.node_status.listing import Use
from app.cluster.node_status.views import NodeStatus
from app.errors import NodeUnavailable
from app.sessions.routes import NodeRecord
from tests.admin import naps
from tests.admin.naps import Nap
from tests.admin.rig import AT, Rig, filled_file, open_rig
from tests.cli.files.test_exporting import Direct

TENANT, ALL = "/api/v1/tenants/acme/naps", "/api/v1/tenants/-/naps"


class Peers:
    """Instead of connections: every other node answers at once, as bytes, or not at all."""

    def __init__(self) -> None:
        self.others: dict[str, AllNodes] = {}

    async def send(self, node: NodeRecord, request: Any, body: bytes) -> Any:
        if node.id not in self.others:
            raise NodeUnavailable("it is gone")
        told = self.others[node.id].answer(request.target.decode().rpartition("/")[2], body)

        async def answer(_most: int) -> bytes | None:
            return told

        return SimpleNamespace(status=404 if told is None else 200, body=answer, close=lambda: None)


def nodes(peers: Peers, own: str, *others: str) -> AllNodes:
    overview: Any = SimpleNamespace(status=lambda: NodeStatus(own, "1", AT, 0, 0, draining=False))
    client: Any = peers
    records = [NodeRecord(each, f"http://{each}", "1", AT) for each in others]
    return AllNodes(overview, lambda: records, client, questions=[naps.NAPS])


@asynccontextmanager
async def two_nodes(url: str, patch: pytest.MonkeyPatch, *silent: str) -> AsyncIterator[Rig]:
    peers = Peers()
    peers.others["n2"] = nodes(peers, "n2")
    patch.setattr(naps, "TAKEN", {
        "n1": [Nap("b", "acme", 2.0, Use(calls=1)), Nap("d", "zenith", 4.0, Use(calls=9))],
        "n2": [Nap("a", "acme", 1.0), Nap("c", "acme", 3.0, Use(resident_bytes=5, calls=2))],
    })  # fmt: skip
    with naps.application(patch) as app:
        async with open_rig(url) as rig:
            app.state, rig.app = rig.app.state, app
            app.state.admin_context = replace(app.state.admin_context, node=nodes(peers, "n1", "n2", *silent))
            yield rig


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "test.db").write_bytes(filled_file())
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
async def rig(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with two_nodes(url, monkeypatch, "n3") as rig:
        yield rig


def test_adding_one_is_short():
    assert len(Path(naps.__file__).read_text().splitlines()) <= 60


@pytest.mark.parametrize(("sort", "order"), [("id", "abcd"), ("calls", "dcba"), ("memory", "cabd"), ("age", "abcd")])
async def test_its_pages_are_of_all_nodes_in_the_order_that_is_asked_for(rig, sort, order):
    found, cursor = "", ""
    while cursor is not None:
        page = (await rig.ask("GET", f"{ALL}?sort={sort}&limit=1&cursor={cursor}")).json()
        found += "".join(each["id"] for each in page["items"])
        assert (page["total"], page["silent_nodes"]) == (4, ["n3"])
        cursor = page["next_cursor"]
    assert found == order
    (first, _, _) = (await rig.ask("GET", TENANT)).json()["items"]
    nothing = {"resident_bytes": 0, "cpu_s": 0.0, "cpu_percent": None, "calls": 0, "calls_total": 0}
    assert first == {**nothing, "id": "a", "tenant": "acme", "seconds": 1.0}


@pytest.mark.parametrize("query", ["sort=size", "sort=", "backend=UP", "sort=memory&sort=cpu", "limit=0", "more=1"])
async def test_what_no_list_is_asked_for_is_refused(rig, query):
    assert (await rig.ask("GET", f"{ALL}?{query}")).status_code == 422


async def test_a_cursor_belongs_to_its_order(rig):
    cursor = (await rig.ask("GET", f"{ALL}?sort=memory&limit=1")).json()["next_cursor"]
    refused = await rig.ask("GET", f"{ALL}?sort=cpu&cursor={cursor}")
    assert refused.status_code == 422
    assert "sort=memory" in refused.text


async def test_all_tenants_are_for_platform_administrators(rig):
    reader = await rig.key("acme", "tenant:read")
    refused, unknown = await rig.ask("GET", ALL, key=reader), await rig.ask("GET", "/api/v1/tenants/x/naps", key=reader)
    assert (refused.status_code, refused.json()["detail"]) == (404, unknown.json()["detail"])
    assert (await rig.ask("GET", TENANT, key=reader)).json()["total"] == 3
    assert (await rig.ask("GET", TENANT, key=await rig.key("acme", "mcp:connect"))).status_code == 403
    members = rig.app.openapi()["components"]["schemas"]["NapAnswer"]["properties"]
    assert members["seconds"]["description"] == "How long it was."


def test_the_command_line_knows_it(url, monkeypatch, capsys):
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(two_nodes(url, monkeypatch)) as rig,
        httpx2.Client(transport=Direct(rig, portal)) as client,
    ):
        monkeypatch.setattr(commands, "open_rest", lambda _: nullcontext(Rest("http://here", client, is_patient=True)))

        def run(*words: str) -> str:
            options = parse(["naps", "list", *words])
            assert options.run(options) == 0
            return capsys.readouterr().out

        assert [each["id"] for each in json.loads(run("--tenant", "acme", "sort=calls", "--json"))] == ["c", "b", "a"]
        titles, *rows = run("--tenant", "-").splitlines()
        assert (titles.split()[:2], len(rows)) == (["seconds", "id"], 4)
