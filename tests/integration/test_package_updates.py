"""`backends update`: new sessions get the new version, open ones keep theirs, and changed tools wait for approval."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.packages.rig import add_wheel
from tests.integration.gateway import Endpoint, Gateway
from tests.integration.wire import Wire, wire
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.programs import run_program

pytestmark = needs_bubblewrap

SERVER = """
import json, sys

TOOLS, VERSION = {tools!r}, {version!r}

def answer(asked):
    if asked["method"] == "initialize":
        about = {{"name": "notes", "version": VERSION}}
        revision = asked["params"]["protocolVersion"]
        return {{"protocolVersion": revision, "capabilities": {{"tools": {{}}}}, "serverInfo": about}}
    if asked["method"] == "tools/list":
        return {{"tools": TOOLS}}
    return {{"content": [{{"type": "text", "text": VERSION}}]}}

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}}), flush=True)
"""


def publish(index: Path, version: str, **tools: str) -> None:
    """A version of a server of MCP with these tools and descriptions."""
    listed = [{"name": name, "description": words, "inputSchema": {"type": "object"}} for name, words in tools.items()]
    add_wheel(index, "mcp-notes", version, files={"mcp_notes.py": SERVER.format(tools=listed, version=version)})


def run(endpoint: Endpoint, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    gateway = endpoint.gateway
    environment = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key, "PATH": "/usr/bin:/bin"}
    done = run_program(["backends", *words, "--tenant", endpoint.tenant], environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def registered(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")
    return found


async def tools(session: Wire) -> set[str]:
    return {each["name"] for each in (await session.request("tools/list"))["tools"]}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    place = tmp_path / "index"
    place.mkdir()
    publish(place, "1.0", same="Reads a note", other="Writes a note")
    return place


@pytest.fixture
def endpoint(start_gateway: Callable[..., Gateway], index: Path) -> Endpoint:
    gateway = start_gateway(PYPI_INDEX=index.as_uri())
    endpoint = gateway.endpoint(["uvx", "mcp-notes"], pin="block", pin_minor="ask")
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    assert gateway.api("POST", f"{path}:check")["ok"]
    gateway.api("POST", f"{path}/tools:approve", {})
    return endpoint


async def test_new_sessions_get_the_new_version_and_open_ones_keep_theirs(endpoint: Endpoint, index: Path) -> None:
    name = endpoint.name
    assert "no backend has a package" in run(endpoint, "outdated").stderr
    publish(index, "2.0", same="Reads a note", other="Writes a note, and sends it to everybody", new="Removes a note")
    (row,) = json.loads(run(endpoint, "outdated", "--json").stdout)
    assert (row["backend"], row["version"], row["newest"], row["problem"]) == (name, "1.0", "2.0", None)
    async with wire(endpoint) as before:
        assert await before.call("same") == "1.0"
        dry = run(endpoint, "update", name, "--dry-run")
        told = ["mcp-notes: 1.0 -> 2.0", "  tool added: new", "  tool changed: other"]
        waits = [f"  withheld until somebody approves it: {each}" for each in ("new", "other")]
        assert dry.stdout.splitlines() == told + waits
        assert "this was a dry run" in dry.stderr
        assert registered(endpoint)["package"]["version"] == "1.0"

        done = run(endpoint, "update", name)
        assert done.stdout == dry.stdout
        assert f"updated {name}" in done.stderr
        assert registered(endpoint)["package"]["version"] == "2.0"
        assert await before.call("same") == "1.0"
        async with wire(endpoint) as after:
            assert await after.call("same") == "2.0"
            assert await tools(after) == {"same"}
    assert "nothing to change" in run(endpoint, "update", name).stderr
    run(endpoint, "update", name, "--to", "1.0")
    async with wire(endpoint) as again:
        assert (await again.call("same"), await tools(again)) == ("1.0", {"same", "other"})
    acts = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/audit?action=backend.update")["items"]
    assert [each["detail"] for each in acts] == ["mcp-notes 1.0", "mcp-notes 2.0", "dry run"]


async def test_a_version_that_does_not_work_changes_nothing(endpoint: Endpoint, index: Path) -> None:
    before = registered(endpoint)
    stops = "def main():\n    raise SystemExit('TOKEN is required')\n"
    add_wheel(index, "mcp-notes", "3.0", files={"mcp_notes.py": stops})
    done = run(endpoint, "update", endpoint.name, code=1)
    assert "nothing is changed, as the new version does not work" in done.stderr
    assert "TOKEN is required" in done.stderr
    refused = run(endpoint, "update", endpoint.name, "--to", "9.9", code=1)
    assert "has no mcp-notes==9.9" in refused.stderr
    now = registered(endpoint)
    assert (now["package"], now["version"]) == (before["package"], before["version"])
    async with wire(endpoint) as session:
        assert await session.call("same") == "1.0"
