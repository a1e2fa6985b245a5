"""What a check proposes is what helps: the same start with the proposed entry misses nothing of the kind any more."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway import Gateway
from tests.jail.sandbox.inside import SYSTEM_PYTHON, needs_bubblewrap

pytestmark = needs_bubblewrap

CONNECTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
FETCHES = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
NODE_FETCHES = "fetch(process.argv[1]).catch(error => { console.error(error.cause); process.exit(1); })"


CANNOT = "import sys; sys.exit('API_TOKEN is required')"
MAKES = {
    "os.makedirs": "import os, sys; os.makedirs(sys.argv[1], exist_ok=True)",
    "pathlib": "import pathlib, sys; pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)",
}


@pytest.fixture
def beside_tmp() -> Iterator[Path]:
    """A directory that everybody may write, in one that no sandbox has of its own."""
    try:
        place = Path(tempfile.mkdtemp(prefix="trunkline-check-", dir="/srv"))
    except OSError as error:
        pytest.skip(f"/srv cannot be written: {error}")
    try:
        place.chmod(0o755)
        (place / "data").mkdir()
        (place / "data").chmod(0o777)
        yield place / "data"
    finally:
        shutil.rmtree(place)


def files(gateway: Gateway, argv: list[str], **fields: Any) -> tuple[list[tuple[str, str, Any]], Any]:
    """What a check names, and how it failed."""
    endpoint = gateway.endpoint(argv, **fields)
    check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert not check["ok"]
    found = [each for each in check["missed"] if each["kind"] == "file"]
    return [(each["what"], each["access"], each["proposal"]) for each in found], check["failure"]


def missed(gateway: Gateway, argv: list[str], **fields: Any) -> list[tuple[str, Any]]:
    endpoint = gateway.endpoint(argv, **fields)
    check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert not check["ok"]
    return [(each["what"], each["proposal"]) for each in check["missed"] if each["kind"] == "address"]


def test_a_database_on_this_machine_is_reached_by_its_port(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = str(database.getsockname()[1])
        argv, entry = [SYSTEM_PYTHON, "-c", CONNECTS, "127.0.0.1", port], {"network": {"allow": [f"127.0.0.1:{port}"]}}
        for network in ("none", "web", {"allow": ["127.0.0.1:1"]}):
            assert missed(gateway, argv, sandbox={"network": network}) == [(f"127.0.0.1:{port}", entry)]
        for sandbox in (entry, {"network": "host"}):
            assert missed(gateway, argv, sandbox=sandbox) == []
    endpoint = gateway.endpoint(argv)
    check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert "Nothing listens there" in check["failure"]["hint"]


def test_localhost_is_one_entry_for_both_of_its_addresses(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as database:
        port = str(database.getsockname()[1])
        argv, entry = [SYSTEM_PYTHON, "-c", CONNECTS, "localhost", port], {"network": {"allow": [f"localhost:{port}"]}}
        found = missed(gateway, argv)
        assert found == [(f"localhost:{port}", entry)] or found == [
            (f"127.0.0.1:{port}", {"network": {"allow": [f"127.0.0.1:{port}"]}})
        ]  # where the machine's hosts file has only that
        assert missed(gateway, argv, sandbox=found[0][1]) == []


@pytest.mark.parametrize("host", ["example.com", "93.184.215.14", "10.1.2.3", "169.254.169.254"])
@pytest.mark.parametrize("rest", [":8080/", "/x"])
def test_who_asks_the_proxy_gets_what_it_asked_for_but_no_credentials_of_the_machine(
    gateway: Gateway, host: str, rest: str
) -> None:
    where = host + (rest.rstrip("/") if rest[0] == ":" else ":80")
    entry = None if host.startswith("169") else {"network": {"allow": [where]}}
    assert missed(gateway, [SYSTEM_PYTHON, "-c", FETCHES, f"http://{host}{rest}"]) == [(where, entry)]


def test_what_the_proxy_of_web_refuses_is_named(gateway: Gateway) -> None:
    argv = [SYSTEM_PYTHON, "-c", FETCHES, "http://10.1.2.3/"]
    entry = {"network": {"allow": ["10.1.2.3:80"]}}
    assert missed(gateway, argv, sandbox={"network": "web"}) == [("10.1.2.3:80", entry)]


def test_a_declared_path_that_is_not_there_is_what_a_check_fails_for(gateway: Gateway) -> None:
    for where in ("read", "write"):
        endpoint = gateway.endpoint([SYSTEM_PYTHON, "-c", ""], sandbox={where: ["/no/such"]})
        backend = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
        failure = gateway.api("POST", f"{backend}:check")["failure"]
        assert f"sandbox.{where}: there is no '/no/such' on this node" in failure["detail"]
        assert "check" not in failure["hint"]
        assert len(gateway.api("GET", backend)["notes"]) == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed (Debian: apt-get install nodejs)")
def test_a_node_gets_what_it_asks_for_whether_or_not_it_knows_proxies(gateway: Gateway) -> None:
    node = str(shutil.which("node"))
    check = missed(gateway, [node, "-e", NODE_FETCHES, "--", "https://example.com/"])
    assert check == [("example.com:443", {"network": {"allow": ["example.com:443"]}})]


def test_the_start_of_an_interpreter_is_not_what_a_server_lacks(gateway: Gateway) -> None:
    """Debian's Python asks for sitecustomize.py in /etc every time."""
    found, failure = files(gateway, [SYSTEM_PYTHON, "-c", CANNOT])
    assert found == []
    assert "sandbox" not in (failure["hint"] or "")


@pytest.mark.parametrize("way", MAKES)
def test_who_makes_directories_gets_the_deepest_that_is_there(gateway: Gateway, way: str, beside_tmp: Path) -> None:
    argv = [SYSTEM_PYTHON, "-c", MAKES[way], str(beside_tmp / "sub/dir")]
    found, failure = files(gateway, argv)
    assert [proposal for _, _, proposal in found] == [{"write": [str(beside_tmp)]}], failure
    found, failure = files(gateway, argv, sandbox=found[0][2])
    assert found == []
    assert (beside_tmp / "sub/dir").is_dir(), failure


def test_a_file_that_is_not_there_is_proposed_once_it_is(gateway: Gateway, beside_tmp: Path) -> None:
    new = Path(f"{beside_tmp.parent}.log")
    argv = [SYSTEM_PYTHON, "-c", "import sys; open(sys.argv[1], 'a').write('x')", str(new)]
    found, failure = files(gateway, argv)
    assert found == [(str(new), "write", None)]
    assert "Make it first" in failure["hint"]
    try:
        new.touch()
        new.chmod(0o666)
        assert files(gateway, argv, sandbox={"write": [str(new)]})[0] == []
        assert new.read_text() == "x"
    finally:
        new.unlink(missing_ok=True)


def test_a_file_in_what_it_may_read_is_named_in_its_stderr(gateway: Gateway, beside_tmp: Path) -> None:
    argv = [SYSTEM_PYTHON, "-c", "import os; open(os.environ['NOTES'] + '/a'), os.environ['TOKEN']"]
    env = {"NOTES": f"{beside_tmp}/absent", "TOKEN": "hunter22"}
    found, failure = files(gateway, argv, sandbox={"read": [str(beside_tmp)]}, env=env)
    assert found == []
    assert f"'{beside_tmp}/absent/a'" in failure["stderr"][-1]
