"""Client programs, each in an environment of its own and with its defaults, in front of backends of every era.

Each program (a file beside this one) connects to $URL with $KEY, calls a tool, lists resources, hears progress and
answers a question where it can, and prints what came of it as one JSON object. docs/protocol.md has the table.
With $TRIAL it goes through one of `trials.py` instead, in front of a server with state.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.backend_defaults import announced
from tests.clients import environments
from tests.clients.environments import HERE, Unavailable
from tests.integration.gateway import ROOT, Endpoint, Gateway, running_gateway
from tests.integration.toolboxes import among_toolboxes

RUN_S = 60
TRIAL_S = 300  # a client that waits twenty seconds, or starts a process fifty times
LEDGER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/ledger.py")]
BACKEND = [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era"]
MCP_2 = "mcp==2.3.0"

HANDSHAKE, SESSIONLESS = "streamable_http", "modern"  # as the gateway's metrics call them
RESOURCES = ["test://static-text", "test://static-binary", "test://watched-resource"]
TEXT_RESOURCES_PROGRESS = {
    "text": "This is a simple text response for testing.",
    "resources": RESOURCES,
    "progress": [0, 50, 100],
}
ALL = {**TEXT_RESOURCES_PROGRESS, "elicitation": "Hello, Ada!"}
MISSING_CAPABILITY = -32021
IN_FRONT_OF = pytest.mark.parametrize("is_member", [False, True], ids=["a server", "a toolset"])
# `mcp` 2.3 takes 1 MiB of one event (`max_sse_event_size` of its transport), and any size of a JSON body. After 15 s of
# silence the answer is an event; these clients have no option for it, or one that nobody sets.
LARGE_EVENT = {"large": "Server-sent event exceeded the 1048576 byte limit"}


@dataclass(frozen=True)
class Client:
    """A program around a client: `packages` are those of its Python, `npm` a folder here that has a lock."""

    program: str
    speaks: str
    packages: tuple[str, ...] = ()
    npm: str | None = None
    arguments: tuple[str, ...] = ()
    finds: Mapping[str, Any] = field(default_factory=lambda: ALL)
    limits: Mapping[str, str] = field(
        default_factory=dict
    )  # trials that the client does not bear, and what it says then

    def pins(self) -> list[tuple[str, str]]:
        """What is tested: names and versions."""
        locked = json.loads((HERE / self.npm / "package.json").read_text())["dependencies"] if self.npm else {}
        return [
            *locked.items(),
            *((name, version) for name, _, version in (pin.partition("==") for pin in self.packages)),
        ]


def _proxy(speaks: str, *arguments: str) -> Client:
    return Client("mcp_remote_proxy.py", speaks, (MCP_2,), "mcp_remote", arguments)


CLIENTS = {
    "python-sdk-1": Client("python_sdk_1.py", HANDSHAKE, ("mcp==1.30.0",)),
    "python-sdk-2": Client("python_sdk_2.py", SESSIONLESS, (MCP_2,), limits=LARGE_EVENT),
    "fastmcp": Client("fastmcp_client.py", SESSIONLESS, ("fastmcp==4.1.2", MCP_2), limits=LARGE_EVENT),
    "openai-agents": Client(
        "openai_agents.py",
        SESSIONLESS,
        ("openai-agents==0.24.0", MCP_2),
        finds={**TEXT_RESOURCES_PROGRESS, "refused": MISSING_CAPABILITY},  # it has no API for elicitation
        limits=LARGE_EVENT,
    ),
    "langchain": Client("langchain_adapters.py", HANDSHAKE, ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0")),
    "typescript-sdk-1": Client("client.mjs", HANDSHAKE, npm="typescript_sdk_1"),
    "typescript-sdk-2": Client("client.mjs", HANDSHAKE, npm="typescript_sdk_2"),
    "typescript-sdk-2-auto": Client("client.mjs", SESSIONLESS, npm="typescript_sdk_2", arguments=("auto",)),
    "mcp-remote-client": Client(
        "mcp_remote_client.py",
        HANDSHAKE,
        npm="mcp_remote",
        finds={"tools": True, "resources": RESOURCES},  # all that it does
    ),
    "mcp-remote": _proxy(HANDSHAKE, "legacy"),
    "mcp-remote-sessionless-host": _proxy(SESSIONLESS, "auto"),
    "mcp-remote-protocol-auto": _proxy(SESSIONLESS, "legacy", "--protocol", "auto"),
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway that the clients of one worker come to, one after the other."""
    with running_gateway(tmp_path_factory.mktemp("clients") / "data") as gateway:
        yield gateway
    assert "Traceback" not in gateway.log.read_text()


def _made(environment: Path | Unavailable) -> Path:
    if isinstance(environment, Unavailable):
        pytest.skip(environment.reason)
    return environment


def command_of(client: Client, npm: Path | None) -> list[str]:
    if client.program.endswith(".mjs"):
        assert npm is not None
        return ["node", str(npm / client.program), *client.arguments]
    python = str(_made(environments.python(*client.packages)) / "bin/python") if client.packages else sys.executable
    return [python, str(HERE / client.program), *client.arguments]


def run(client: Client, endpoint: Endpoint, home: Path, within_s: float = RUN_S, **more: str) -> Any:
    """What the program found. It knows nothing of the user's own settings and caches."""
    npm = _made(environments.node(client.npm)) if client.npm else None
    given = {"URL": endpoint.mcp, "KEY": endpoint.key, "NPM": str(npm), "HOME": str(home), **more}
    done = subprocess.run(
        command_of(client, npm),
        env={**os.environ, **given, "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{endpoint.gateway.log_tail()}"
    # What a client logs by itself is its own affair; what ends a task of its without anybody's knowing is not.
    assert not re.search("never retrieved|ExceptionGroup", done.stderr), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def answered(gateway: Gateway) -> Counter[str]:
    """How many resources/list each way of speaking has had so far."""
    counted: Counter[str] = Counter()
    for sample, value in gateway.metrics().items():
        if sample.startswith("mcp_server_operation_duration_seconds_count") and '"resources/list"' in sample:
            counted.update(dict.fromkeys(re.findall(r'network_transport="(\w+)"', sample), int(value)))
    return counted


@pytest.mark.clients
@pytest.mark.real
@pytest.mark.timeout(3 * environments.INSTALL_S)  # the first run installs
@IN_FRONT_OF
@pytest.mark.parametrize("era", ["legacy", "dual", "sessionless"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_with_its_defaults(
    gateway: Gateway, name: str, era: str, tmp_path: Path, *, is_member: bool
) -> None:
    client, before = CLIENTS[name], answered(gateway)
    endpoint = gateway.endpoint([*BACKEND, era])
    found = run(client, among_toolboxes(endpoint) if is_member else endpoint, tmp_path)
    if is_member and "resources" in found:
        found["resources"] = [uri for uri in found["resources"] if not uri.startswith("note://")]
    assert found == client.finds
    assert set(answered(gateway) - before) == {client.speaks}


def test_the_documents_table_names_what_is_tested() -> None:
    table = (ROOT / "docs/protocol.md").read_text().split("\n## Clients\n", 1)[1].split("\n## ", 1)[0]
    pins = {f"`{name}` {version}" for client in CLIENTS.values() for name, version in client.pins()}
    assert {pin for pin in pins if pin not in table} == set()


@dataclass(frozen=True)
class Trial:
    """One of `trials.py`: how often or how much, and what comes of so much."""

    times: int
    finds: Callable[[int], Any]
    long: int = 0  # the times of --long, if others


def in_turn(times: int) -> list[int]:
    """What a server says that has counted all of these calls, and nothing else."""
    return list(range(times))


TRIALS = {
    "close_after_timeout": Trial(10, lambda times: times, long=50),
    "at_once": Trial(40, in_turn),
    "large": Trial(5, lambda mib: mib << 20),
    "state": Trial(200, in_turn),
}
CALLS_NOTHING = {"mcp-remote-client"}  # it connects and lists, and has no other command


@pytest.mark.clients
@pytest.mark.real
@pytest.mark.timeout(3 * environments.INSTALL_S)
@IN_FRONT_OF
@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in CALLS_NOTHING])
def test_a_client_bears_what_agents_meet(
    gateway: Gateway, name: str, trial: str, tmp_path: Path, pytestconfig: pytest.Config, *, is_member: bool
) -> None:
    wanted, client = TRIALS[trial], CLIENTS[name]
    times = wanted.long if wanted.long and pytestconfig.getoption("long") else wanted.times
    given = {"TRIAL": trial, "TIMES": str(times), "TRIALS": str(HERE / "trials.mjs")}
    # With forks those that are warm at first were executed, before there was a template: the trial would show nothing.
    endpoint = gateway.endpoint(LEDGER, warm=0 if announced().forks else 5)
    found = run(client, among_toolboxes(endpoint) if is_member else endpoint, tmp_path, TRIAL_S, **given)
    # Some end no session: its process would stay, and the node has so many.
    gateway.api("DELETE", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")
    if trial in client.limits:
        assert re.search(client.limits[trial], str(found)), f"the limit of the client has changed: {found}"
    else:
        assert found == wanted.finds(times)
