"""PostgreSQL's server of npm in front of a real PostgreSQL, in three commands: create, `check --allow`, a query. On
loopback and at a private name, in each tier that has a network."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from app.jail.sandbox.tiers import Tier
from tests.chaos.proxies import Line
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.servers import POSTGRES
from tests.integration.test_allowed_network import NO_BUBBLEWRAP, of_loopback
from tests.jail.sandbox.inside import IS_ROOT
from tests.programs import run_program

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

NAME = "db.internal"
NO_SETPRIV = """
from app.jail.sandbox import machine
def find_none(): raise FileNotFoundError("there is no setpriv")
machine.find_setpriv = find_none
"""
# In a mount namespace of the gateway's own its machine has another hosts file: CLONE_NEWNS, MS_PRIVATE, MS_BIND.
OWN_HOSTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def require(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
require(libc.unshare(0x20000))
require(libc.mount(None, b"/", None, 0x44000, None))
require(libc.mount({!r}, b"/etc/hosts", None, 0x1000, None))
"""
OF_TIER = {Tier.KERNEL: NO_BUBBLEWRAP, Tier.NAMESPACES: NO_SETPRIV, Tier.ASSISTED: ""}


def own_address() -> str:
    """One of this machine that is not of loopback."""
    said = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True, timeout=30).stdout
    if not (found := [each for each in said.split() if ":" not in each]):
        pytest.skip("this machine has no address but loopback")
    return found[0]


@pytest.fixture(
    scope="module", params=[Tier.KERNEL, Tier.NAMESPACES, Tier.ASSISTED], ids=lambda tier: tier.name.lower()
)
def in_tier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose machine knows NAME."""
    if not IS_ROOT:
        pytest.skip("needs root: the gateway gets a hosts file of its own")
    hosts: Path = tmp_path_factory.mktemp("hosts") / "hosts"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n{own_address()} {NAME}\n")
    hosts.chmod(0o644)

    class Confining(Gateway):
        FIRST = OWN_HOSTS.format(str(hosts).encode()) + OF_TIER[request.param]

    with running_gateway(tmp_path_factory.mktemp("tier") / "data", Confining) as gateway:
        [node] = gateway.api("GET", "/nodes")["items"]
        if node["sandbox"]["networks"]["allow"]["tier"] != request.param:
            pytest.skip(f"this machine has not the tier {request.param.name}")
        yield gateway


def trunkline(gateway: Gateway, *words: str) -> str:
    """What the command prints."""
    environment = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key, "PATH": "/usr/bin:/bin"}
    done = run_program(words, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def three_commands(gateway: Gateway, url: str) -> tuple[Any, Any]:
    """What the query answers, and which network the backend has then."""
    tenant = gateway.add_tenant()
    trunkline(gateway, "backends", "create", "ledger", "--tenant", tenant, "--", *POSTGRES, url)
    trunkline(gateway, "backends", "check", "ledger", "--tenant", tenant, "--allow")
    said = trunkline(gateway, "call", "ledger", "query", "--tenant", tenant, "sql=select 6 * 7 as answer")
    return json.loads(said), gateway.api("GET", f"/tenants/{tenant}/backends/ledger")["sandbox"]["network"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_database_on_loopback(in_tier: Gateway, postgres_url: str, host: str) -> None:
    url, port = of_loopback(postgres_url, host)
    rows, network = three_commands(in_tier, url)
    assert rows == [{"answer": 42}]
    assert f"{host}:{port}" in network["allow"]  # and the other spelling, where the server tries both
    assert set(network["allow"]) <= {f"127.0.0.1:{port}", f"localhost:{port}"}
    assert network["web"] is False


async def test_a_database_at_a_private_name(in_tier: Gateway, postgres_url: str) -> None:
    there = ("127.0.0.1", of_loopback(postgres_url, NAME)[1])
    line = Line(lambda: there)
    await line.open(own_address())
    try:
        url = f"postgresql://postgres@{NAME}:{line.port}/postgres"
        rows, network = await anyio.to_thread.run_sync(three_commands, in_tier, url)
    finally:
        await line.aclose()
    assert rows == [{"answer": 42}]
    assert f"{NAME}:{line.port}" in network["allow"]  # and its address, where the hosts file of the node has it
    assert network["web"] is False
