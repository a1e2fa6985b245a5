"""Real stdio servers from the registries: how each is installed and started, and the call that is made to it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import environments
from tests.clients.environments import Unavailable

ROOT = Path(__file__).resolve().parents[2]
NPM = "../../bench/capacity/npm"  # beside the folders of tests/clients
DATA = "{data}"


@dataclass(frozen=True)
class Server:
    """`package` is of PyPI or npm, by `language`; {data} in arguments is a directory with a git repository."""

    name: str
    language: str
    package: str
    program: str
    call: tuple[str, Mapping[str, Any]]
    args: tuple[str, ...] = ()


SERVERS = (
    Server(
        "time", "Python", "mcp-server-time==2026.10.19", "mcp-server-time",
        ("get_current_time", {"timezone": "Europe/Zurich"}),
    ),
    Server(
        "git", "Python", "mcp-server-git==2026.10.19", "mcp-server-git",
        ("git_status", {"repo_path": DATA}), ("--repository", DATA),
    ),
    Server(
        "everything", "Node", "@modelcontextprotocol/server-everything", "mcp-server-everything",
        ("echo", {"message": "hello"}),
    ),
    Server(
        "filesystem", "Node", "@modelcontextprotocol/server-filesystem", "mcp-server-filesystem",
        ("list_directory", {"path": DATA}), (DATA,),
    ),
)  # fmt: skip
ECHO = [sys.executable, "-I", "-S", str(ROOT / "bench/echo_backend.py")]


@dataclass(frozen=True)
class Installed:
    """A server that can be started: its command line, its version, and a call to it."""

    server: Server
    argv: list[str]
    version: str
    tool: str
    arguments: dict[str, Any]


def data_directory() -> Path:
    """A repository outside of /tmp, in the place of which a process has its own; any user may read it."""
    directory = environments.CACHE / "capacity-data"
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    (directory / "notes.txt").write_text("one\n")
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    return directory


def install(server: Server) -> Installed | Unavailable:
    """Made once, and kept for the next run."""
    is_python = server.language == "Python"
    made = environments.python(server.package) if is_python else environments.node(NPM)
    if isinstance(made, Unavailable):
        return made
    data = str(data_directory())
    program = made / ("bin" if is_python else "node_modules/.bin") / server.program
    version = server.package.rpartition("==")[2] if is_python else _version_of_npm(server.package)
    return Installed(
        server,
        [str(program), *(each.replace(DATA, data) for each in server.args)],
        version,
        server.call[0],
        {name: each.replace(DATA, data) for name, each in server.call[1].items()},
    )


def supergateway() -> Path | Unavailable:
    """Its program for Node."""
    made = environments.node(NPM)
    return made if isinstance(made, Unavailable) else made / "node_modules/supergateway/dist/index.js"


def _version_of_npm(package: str) -> str:
    named = json.loads((ROOT / "bench/capacity/npm/package.json").read_text())
    return str(named["dependencies"][package])
