"""`backends check --allow` ends in a server that works: what it misses is added round by round, by who may add it."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway import Endpoint, Gateway
from tests.integration.needy import ARGV, three_places
from tests.integration.wire import wire
from tests.jail.sandbox.inside import SYSTEM_PYTHON, needs_bubblewrap
from tests.programs import run_program

pytestmark = needs_bubblewrap


@pytest.fixture
def place() -> Iterator[Path]:
    with three_places() as found:
        yield found


def check(
    gateway: Gateway, endpoint: Endpoint, *words: str, key: str | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    environment = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": key or gateway.admin_key, "PATH": "/usr/bin:/bin"}
    command = ["backends", "check", endpoint.name, "--tenant", endpoint.tenant, *words]
    done = run_program(command, environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def registered(gateway: Gateway, endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = gateway.api("GET", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")
    return found


async def test_what_a_server_needs_is_added_round_by_round_until_it_works(gateway: Gateway, place: Path) -> None:
    env = {"READS": f"{place}/one/file {place}/two/file", "WRITES": f"{place}/three/new", "THREADS": "100"}
    endpoint = gateway.endpoint(ARGV, env=env, limits={"pids": 64})
    before = check(gateway, endpoint, code=1)
    assert f"next: trunkline backends check {endpoint.name} --tenant {endpoint.tenant} --allow" in before.stderr
    found = json.loads(check(gateway, endpoint, "--allow", "--json").stdout)
    assert (found["ok"], found["missed"], found["patch"]) == (True, [], None)
    now = registered(gateway, endpoint)
    assert now["sandbox"]["read"] == [f"{place}/one/file", f"{place}/two/file"]
    assert now["sandbox"]["write"] == [f"{place}/three"]
    assert now["limits"]["pids"] == 128
    assert len(found["rounds"]) == 4
    assert found["rounds"][-1]["missed"][0]["kind"] == "limit"
    async with wire(endpoint) as session:
        assert await session.call("echo", text="works") == "works"
    audited = gateway.api("GET", f"/tenants/{endpoint.tenant}/audit")["items"]
    assert [each["action"] for each in audited].count("backend.change") == 4


def test_who_may_not_add_it_hears_who_may_and_nothing_is_changed(gateway: Gateway, place: Path) -> None:
    endpoint = gateway.endpoint(ARGV, env={"READS": f"{place}/one/file"})
    before = registered(gateway, endpoint)
    key = gateway.key(endpoint.tenant, ["tenant:admin"])
    told = check(gateway, endpoint, "--allow", key=key, code=1).stderr
    assert "a platform administrator may add" in told
    assert str(place) in told
    assert registered(gateway, endpoint)["version"] == before["version"]
    found = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check", key=key)
    assert [(each["granted_by"], each["may_grant"]) for each in found["missed"]] == [("platform:admin", False)]
    assert found["patch"] is None


CONNECTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"


def test_an_address_on_this_machine_is_added_with_its_port_and_nothing_else(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = str(database.getsockname()[1])
        endpoint = gateway.endpoint([SYSTEM_PYTHON, "-c", CONNECTS, "127.0.0.1", port])
        check(gateway, endpoint, "--allow", code=1)  # it is no MCP server
    assert registered(gateway, endpoint)["sandbox"]["network"] == {"allow": [f"127.0.0.1:{port}"], "web": False}


def test_an_administrator_of_the_tenant_adds_what_the_platform_lists_for_it(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = str(database.getsockname()[1])
        endpoint = gateway.endpoint([SYSTEM_PYTHON, "-c", CONNECTS, "127.0.0.1", port])
        key = gateway.key(endpoint.tenant, ["tenant:admin"])
        check(gateway, endpoint, "--allow", key=key, code=1)
        assert registered(gateway, endpoint)["sandbox"]["network"] == "none"
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"network_allow": [f"127.0.0.0/8:{port}"]})
        check(gateway, endpoint, "--allow", key=key, code=1)
    assert registered(gateway, endpoint)["sandbox"]["network"] == {"allow": [f"127.0.0.1:{port}"], "web": False}


def test_a_program_that_always_wants_more_is_given_up_after_five_rounds(gateway: Gateway, place: Path) -> None:
    for number in range(7):
        (place / f"file-{number}").write_text("x")
    reads = " ".join(f"{place}/file-{number}" for number in range(7))
    endpoint = gateway.endpoint(ARGV, env={"READS": reads})
    told = check(gateway, endpoint, "--allow", code=1).stderr
    assert "round 6: it does not work, and missed" in told
    assert "nothing more is added after 5 rounds" in told
    assert len(registered(gateway, endpoint)["sandbox"]["read"]) == 5


def test_a_backend_that_was_changed_meanwhile_is_left_as_it_is(gateway: Gateway, place: Path) -> None:
    endpoint = gateway.endpoint(ARGV, env={"READS": f"{place}/one/file"})
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    found = gateway.api("POST", f"{path}:check")
    gateway.api("PATCH", path, {"warm": 1})
    refused = gateway.http.patch(f"/api/v1{path}", json=found["patch"], headers={"If-Match": found["tag"]})
    assert refused.status_code == 412
    assert registered(gateway, endpoint)["sandbox"]["read"] == []
