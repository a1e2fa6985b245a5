"""Packages behind real nodes, from registries of the test's own: every node has the same, and a file names them."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.backends.packages.rig import Npm, add_wheel, index, needs_npm, npm, unconfigured
from tests.integration.gateway import Endpoint, Gateway, running_gateway, until
from tests.integration.nodes import running_nodes
from tests.integration.test_files_as_truth import Files, secret_in
from tests.integration.wire import Wire
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.protocol.openapi.documents import SHOP

__all__ = ["index", "npm", "unconfigured"]  # fixtures

pytestmark = [
    needs_bubblewrap,
    needs_npm,
    pytest.mark.timeout(300),  # npm and uv install something on each node
]
START_S = 180.0

# Servers with one tool that says which version it is.
ANSWERS = """{
    "initialize": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": text}]}
}"""
PYTHON = f"""import json, sys

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        text = "VERSION " + asked.get("params", {{}}).get("arguments", {{}}).get("text", "")
        answers = {ANSWERS}
        if "id" in asked:
            print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": answers[asked["method"]]}}), flush=True)
"""
NODE = f"""#!/usr/bin/env node
require("readline").createInterface({{ input: process.stdin }}).on("line", (line) => {{
  const {{ id, method, params }} = JSON.parse(line);
  const text = `VERSION ${{params?.arguments?.text}}`;
  const answers = {ANSWERS};
  if (id !== undefined) console.log(JSON.stringify({{ jsonrpc: "2.0", id, result: answers[method] }}));
}});
"""
COMMANDS = (["uvx", "mcp-notes"], ["npx", "-y", "@acme/notes"])


def publish(index: Path, npm: Npm, version: str) -> None:
    """Both servers in this version, which is the newest, each with another package that it needs."""
    if version == "1.0.0":
        add_wheel(index, "more-notes", "2.1")
        npm.add("left", "1.0.0")
    files = {"mcp_notes.py": PYTHON.replace("VERSION", version)}
    add_wheel(index, "mcp-notes", version, files=files, requires=("more-notes>=2",))
    server = {"package/server.js": NODE.replace("VERSION", version)}
    npm.add("@acme/notes", version, files=server, dependencies={"left": "^1.0.0"})


def settings(index: Path, npm: Npm) -> dict[str, str]:
    return {"NPM_REGISTRY": npm.url, "PYPI_INDEX": index.as_uri()}


def installed(node: Gateway) -> dict[str, dict[str, str]]:
    """By lock, what is in its folder: code, and what is known of it. Compiled files have times in them."""
    kept = (".py", ".js", ".json")
    return {
        folder.name: {
            str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.rglob("*")
            if file.is_file() and (file.suffix in kept or file.name == "METADATA")
        }
        for folder in (node.data_dir / "packages").glob("*")
    }


def registered(gateway: Gateway, tenant: str) -> dict[str, tuple[int, Any]]:
    """By name, which version of its registration a backend is at, and its package."""
    found = gateway.api("GET", f"/tenants/{tenant}/backends")["items"]
    return {each["name"]: (each["version"], each["package"]) for each in found}


def at(node: Gateway, endpoint: Endpoint) -> Endpoint:
    """The same backend, reached at this node."""
    base = f"{node.url}/t/{endpoint.tenant}/{endpoint.name}"
    return Endpoint(node, endpoint.tenant, endpoint.name, base, endpoint.key)


def working_in(folder: Path) -> list[int]:
    """Processes that run there."""
    found = list[int]()
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(each.cwd()).is_relative_to(folder):
                found.append(each.pid)
    return found


async def said(endpoint: Endpoint) -> Any:
    """What the tool answers in a session of its own."""
    async with httpx2.AsyncClient(timeout=START_S) as http:  # the node may have to install it
        session = Wire(http, endpoint)
        await session.open()
        try:
            return await session.call("echo", text="hello")
        finally:
            await session.close()


async def test_a_node_with_an_empty_cache_has_the_same_files_and_gives_the_same_answers(
    tmp_path: Path, postgres_database: str, index: Path, npm: Npm
) -> None:
    publish(index, npm, "1.0.0")
    with running_nodes(tmp_path, postgres_database, 2, **settings(index, npm)) as nodes:
        await nodes.all_know_each_other()
        first, second = nodes.all
        tenant = first.add_tenant()
        endpoints = [first.endpoint(argv, tenant=tenant) for argv in COMMANDS]
        packages = [first.api("GET", f"/tenants/{tenant}/backends/{each.name}")["package"] for each in endpoints]
        assert [each["version"] for each in packages] == ["1.0.0", "1.0.0"]
        assert sorted(installed(first)) == sorted(each["lock"] for each in packages)
        assert installed(second) == {}

        publish(index, npm, "1.1.0")
        for endpoint in endpoints:
            assert [await said(at(node, endpoint)) for node in (first, second)] == ["1.0.0 hello", "1.0.0 hello"]
        assert installed(second) == installed(first)
        told = [second.api("GET", f"/tenants/{tenant}/backends/{each.name}")["package"] for each in endpoints]
        assert told == packages


async def test_nothing_of_an_installation_is_used_in_which_the_node_was_killed(
    tmp_path: Path, index: Path, npm: Npm
) -> None:
    publish(index, npm, "1.0.0")
    npm.never_ends.add("left")
    data = tmp_path / "data"
    with running_gateway(data, **settings(index, npm)) as gateway:
        body = {"name": "notes", "command": "npx", "args": ["-y", "@acme/notes"]}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(gateway.api, "POST", "/tenants/default/backends", body)
            await until(lambda: "/files/left-1.0.0.tgz" in npm.asked)
            gateway.kill()
            assert isinstance(asked.exception(), httpx2.HTTPError)
        assert list(installed(gateway)) != []
        await until(lambda: not working_in(data))
    npm.never_ends.clear()
    with running_gateway(data, **settings(index, npm)) as gateway:
        assert gateway.api("GET", "/tenants/default/backends")["items"] == []
        await until(lambda: installed(gateway) == {})
        endpoint = gateway.endpoint(["npx", "-y", "@acme/notes"])
        assert await said(endpoint) == "1.0.0 hello"
        package = gateway.api("GET", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")["package"]
        assert list(installed(gateway)) == [package["lock"]]


def test_a_file_with_packages_places_and_secrets_is_applied_once(tmp_path: Path, index: Path, npm: Npm) -> None:
    publish(index, npm, "1.0.0")
    backends: dict[str, dict[str, Any]] = {
        "notes": {
            "command": "uvx",
            "args": ["mcp-notes", "--api-key", "${env:NOTES_TOKEN}"],
            "env": {"TOKEN": "${env:NOTES_TOKEN}"},
            "sandbox": {"network": {"allow": ["127.0.0.1:5432", "db.internal:5432"], "web": True}},
        },
        "left": {"command": "npx", "args": ["-y", "@acme/notes"], "limits": {"memory_mb": 512}},
        "far": {"url": "https://far.example/mcp", "headers": {"Authorization": "Bearer ${env:FAR_KEY}"}},
        "shop": {"url": "https://shop.example/v1", "openapi": "shop.json", "headers": {"X-Key": "${env:FAR_KEY}"}},
    }
    tenant = {"network_allow": ["10.20.0.0/16:443", "db.internal:5432"], "backends": backends}
    with running_gateway(tmp_path / "data", **settings(index, npm)) as gateway:
        files = Files(index.parent, gateway.url, gateway.admin_key)
        (tmp_path / "shop.json").write_text(json.dumps(SHOP))
        path = files.put({"version": 1, "tenants": {"whole": tenant}})
        made = files.apply(path, "--yes")
        before = registered(gateway, "whole")
        assert {name: (package or {}).get("version") for name, (_, package) in before.items()} == {
            "notes": "1.0.0", "left": "1.0.0", "far": None, "shop": None,
        }  # fmt: skip

        publish(index, npm, "1.1.0")
        asked = len(npm.asked)
        again = files.apply(path, "--yes")
        assert again.stdout == "nothing differs: 5 as the files say\n"
        assert files.apply(path, "--check").stdout == again.stdout
        assert registered(gateway, "whole") == before
        assert len(npm.asked) == asked
        exported = files.run("export", "--tenant", "whole").stdout
        assert secret_in(made.stdout, made.stderr, again.stderr, exported) == []
        assert secret_in(json.dumps(gateway.api("GET", "/tenants/whole/backends"))) == []
