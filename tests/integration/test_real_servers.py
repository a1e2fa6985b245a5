"""Servers from the registries under `sandbox: auto`, unmodified: initialize, tools/list and a call.

Directories among the arguments are read without an entry of `sandbox`. Servers that need one get it named by `:check`,
and work once it is there.
"""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from tests.clients import environments
from tests.clients.environments import Unavailable
from tests.integration.gateway import Endpoint, Gateway, running_gateway
from tests.integration.servers import python_client

NPM = "../integration/real_servers"  # beside the folders of tests/clients
DATA, PLACE = "{data}", "{place}"
WEB = {"network": "web"}


@dataclass(frozen=True)
class Server:
    """A server: `packages` of a Python environment, or a `package` of the npm folder. `needs`: which entry `:check`
    proposes; `call`: a tool with its arguments. {data} is a directory of the machine, {place} where something listens
    there, without an answer."""

    program: str
    packages: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    needs: Mapping[str, Any] = field(default_factory=dict)
    call: tuple[str, Mapping[str, Any]] | None = None

    def command(self) -> Path | Unavailable:
        made = environments.python(*self.packages) if self.packages else environments.node(NPM)
        if isinstance(made, Unavailable):
            return made
        return made / ("bin" if self.packages else "node_modules/.bin") / self.program


SERVERS = {
    "time": Server(
        "mcp-server-time", ("mcp-server-time==2026.10.19",), call=("get_current_time", {"timezone": "Europe/Zurich"})
    ),
    "git": Server(
        "mcp-server-git", ("mcp-server-git==2026.10.19",), ("--repository", DATA),
        call=("git_status", {"repo_path": DATA}),
    ),
    "fetch": Server("mcp-server-fetch", ("mcp-server-fetch==2026.10.24",), needs=WEB),
    "sqlite": Server(
        "mcp-server-sqlite", ("mcp-server-sqlite==2025.4.25", "mcp<2"), ("--db-path", f"{DATA}/notes.db"),
        {"write": [DATA]}, ("list_tables", {}),
    ),
    "calculator": Server(
        "mcp-server-calculator", ("mcp-server-calculator==0.2.1", "mcp<2"), call=("calculate", {"expression": "6*7"})
    ),
    "duckduckgo": Server(
        "duckduckgo-mcp-server", ("duckduckgo-mcp-server==0.7.0",), needs=WEB
    ),
    "arxiv": Server("arxiv-mcp-server", ("arxiv-mcp-server==0.8.2",), needs=WEB),
    "filesystem": Server(
        "mcp-server-filesystem", (), (DATA,), call=("list_directory", {"path": DATA})
    ),
    "memory": Server("mcp-server-memory", call=("read_graph", {})),
    "everything": Server("mcp-server-everything", (), (), WEB, ("echo", {"message": "hello"})),
    "sequential-thinking": Server("mcp-server-sequential-thinking"),
    "postgres": Server(
        "mcp-server-postgres", (), (f"postgresql://{PLACE}/none",), {"network": {"allow": [PLACE]}}
    ),
    "context7": Server("context7-mcp", needs=WEB),
    "notion": Server("notion-mcp-server"),
    "git-of-npm": Server("git-mcp-server", needs=WEB),
    "playwright": Server("playwright-mcp", needs=WEB),
}  # fmt: skip


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("real")) as running:
        yield running


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory outside of /tmp, in the place of which a process has its own. Whose user the process becomes, may
    use it: permissions of files hold in every sandbox."""
    environments.CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=environments.CACHE) as made:
        os.chmod(made, 0o777)
        yield Path(made)


@pytest.fixture
def here(data: Path) -> Iterator[dict[str, str]]:
    """What stands for what in a `Server`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {DATA: str(data), PLACE: f"127.0.0.1:{listener.getsockname()[1]}"}


def filled(value: Any, here: Mapping[str, str]) -> Any:
    """The value with what is here in it."""
    if isinstance(value, str):
        for mark, text in here.items():
            value = value.replace(mark, text)
        return value
    if isinstance(value, Mapping):
        return {name: filled(each, here) for name, each in value.items()}
    return [filled(each, here) for each in value]


async def talk(endpoint: Endpoint, call: tuple[str, Mapping[str, Any]] | None) -> int:
    """How many tools the server has; the call must succeed."""
    with anyio.fail_after(60):
        async with python_client(endpoint, "streamable") as client:
            tools = (await client.list_tools()).tools
            if call is not None:
                result = await client.call_tool(call[0], dict(call[1]))
                assert not result.is_error, result
            return len(tools)


@pytest.mark.clients
@pytest.mark.real
@pytest.mark.timeout(3 * environments.INSTALL_S)  # the first run installs
@pytest.mark.parametrize("name", SERVERS)
async def test_a_real_server_runs_in_its_sandbox_and_what_it_needs_is_named(
    gateway: Gateway, name: str, data: Path, here: dict[str, str]
) -> None:
    server = SERVERS[name]
    command = server.command()
    if isinstance(command, Unavailable):
        pytest.skip(command.reason)
    subprocess.run(["git", "init", "--quiet", str(data)], check=True)
    endpoint = gateway.endpoint([str(command), *filled(server.args, here)])
    backend = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    found = gateway.api("POST", f"{backend}:check")
    if server.needs:
        needs = filled(server.needs, here)
        # Whether `web` helps a server in Node depends on its version: then it is only named.
        is_proposed = needs in [each["proposal"] for each in found["missed"]]
        assert is_proposed or (not server.packages and "Node" in str([each["note"] for each in found["missed"]])), found
        gateway.api("PATCH", backend, {"sandbox": needs})
    else:
        assert found["ok"], found
        assert not found["missed"]
    assert await talk(endpoint, server.call and (server.call[0], filled(server.call[1], here))) > 0
