"""Interpreters where users have them, and what belongs to other users, under `sandbox: auto` without any entry."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.clients import environments
from tests.integration.gateway import ECHO, Gateway
from tests.integration.servers import git_server
from tests.integration.wire import wire

SOMEBODY = 60001
OF_NODE = """#!/usr/bin/env node
const { name } = require("./package.json");
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, params } = JSON.parse(line);
  if (id === undefined) return;
  const { protocolVersion } = params;
  const result = protocolVersion ? { protocolVersion, capabilities: {}, serverInfo: { name, version: "1" } } : {};
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
});
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a user, closed to others, and outside of /tmp, in the place of which a process has its own."""
    environments.CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=environments.CACHE) as made:
        yield Path(made)


def belongs_to_somebody(directory: Path) -> None:
    if os.geteuid() == 0:
        subprocess.run(["chown", "--recursive", "--no-dereference", str(SOMEBODY), str(directory)], check=True)


async def starts(gateway: Gateway, argv: list[str], **env: str) -> None:
    async with wire(gateway.endpoint(argv, env=env)):
        pass  # it has answered `initialize`


async def test_a_python_of_a_users_pyenv_starts_and_one_of_an_environment_made_with_it(
    gateway: Gateway, home: Path
) -> None:
    versions = home / ".pyenv/versions"
    versions.mkdir(parents=True)
    (versions / "3.x").symlink_to(sys.base_prefix)
    python = versions / "3.x/bin/python3"
    subprocess.run([python, "-m", "venv", "--without-pip", home / "work/.venv"], check=True)
    belongs_to_somebody(home)
    for each in (python, home / "work/.venv/bin/python"):
        await starts(gateway, [str(each), *ECHO[1:]])


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed (Debian: apt-get install nodejs)")
async def test_a_program_of_a_users_nvm_starts(gateway: Gateway, home: Path) -> None:
    version = home / ".nvm/versions/node/v20.1.0"
    package = version / "lib/node_modules/tool"
    package.mkdir(parents=True)
    (version / "bin").mkdir()
    shutil.copy(Path(str(shutil.which("node"))).resolve(), version / "bin/node")
    (package / "package.json").write_text('{"name": "tool", "bin": {"tool": "index.js"}}')
    (package / "index.js").write_text(OF_NODE)
    (package / "index.js").chmod(0o755)
    (version / "bin/tool").symlink_to("../lib/node_modules/tool/index.js")
    belongs_to_somebody(home)
    await starts(gateway, [str(version / "bin/node"), str(package / "index.js")])
    await starts(gateway, [str(version / "bin/tool")], PATH=f"{version}/bin:{os.environ['PATH']}")


async def test_git_reads_a_repository_of_another_user(gateway: Gateway, home: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(home)], check=True)
    home.chmod(0o755)
    belongs_to_somebody(home)
    async with wire(gateway.endpoint(git_server(home))) as session:
        result = await session.request("tools/call", {"name": "git_status", "arguments": {"repo_path": str(home)}})
    assert not result.get("isError"), result


@pytest.mark.parametrize("name", ["server.py", "server"])
async def test_a_script_finds_a_module_beside_it(gateway: Gateway, home: Path, name: str) -> None:
    script = home / "app" / name
    script.parent.mkdir()
    (script.parent / "helper.py").write_text(Path(ECHO[-1]).read_text())
    script.write_text(f"#!{sys.executable}\nimport helper\nhelper.main() if hasattr(helper, 'main') else None\n")
    script.chmod(0o755)
    belongs_to_somebody(home)
    for argv in ([str(script)], [sys.executable, str(script)]):
        await starts(gateway, argv)


def test_a_module_beside_a_script_in_a_home_is_named_with_the_entry_that_helps(gateway: Gateway, home: Path) -> None:
    (home / ".bashrc").touch()
    (home / "server.py").write_text("import helper")
    (home / "helper.py").write_text("raise SystemExit(7)")
    belongs_to_somebody(home)
    endpoint = gateway.endpoint([sys.executable, str(home / "server.py")])
    backend = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    check = gateway.api("POST", f"{backend}:check")
    assert [each["proposal"] for each in check["missed"]] == [{"read": [str(home / "helper.py")]}]
    gateway.api("PATCH", backend, {"sandbox": check["missed"][0]["proposal"]})
    assert "exit status 7" in gateway.api("POST", f"{backend}:check")["failure"]["detail"]
