"""deploy/haproxy/haproxy.cfg, run by a real HAProxy before two small HTTP servers that stand where nodes would."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.haproxy import WITHIN_S, checked, is_healthy, running_balancer

pytestmark = pytest.mark.real


NAMES = ("gateway-1", "gateway-2")  # as the server lines
FIRST, SECOND = NAMES


class Node(ThreadingHTTPServer):
    """Answers with its name, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.is_ready, self.breaks = name, True, False
        self.requests: list[tuple[str, Message]] = []
        self.may_go_on = threading.Event()
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def vanish(self) -> None:
        """As a process that dies: no new connections, and none that are kept."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """HAProxy resets the connections of its checks."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Node

    def do_GET(self) -> None:
        if self.path == "/readyz":
            self._answer(200 if self.server.is_ready else 503)
        elif self.path == "/t/acme/stream/mcp":
            self._stream()
        else:
            self.do_POST()

    def do_POST(self) -> None:
        self.server.requests.append((self.path, self.headers))
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.breaks:
            self.close_connection = True
        else:
            self._answer(200)

    def _answer(self, status: int) -> None:
        body = self.server.name.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", f"{self.server.name}.run.secret")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"8\r\n: open\n\n\r\n")
        self.server.may_go_on.wait(WITHIN_S)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Rig:
    """The balancer's ports, and the nodes behind it."""

    port: int
    health_port: int
    nodes: list[Node]

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)) as connection:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, b"{}" if method == "POST" else None, names)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def is_healthy(self) -> bool:
        return is_healthy(self.health_port)

    def answering(self, **headers: str) -> set[str]:
        """Who answers the next few requests."""
        return {self.ask("POST", "/t/acme/time/mcp", **headers)[1] for _ in range(8)}

    def wait_until_answering(self, names: set[str], **headers: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self.answering(**headers) != names:
            assert time.monotonic() < deadline, f"others than {names} answer"


@contextmanager
def serving(node: Node) -> Iterator[Node]:
    thread = threading.Thread(target=node.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield node
    finally:
        node.may_go_on.set()
        node.shutdown()
        node.server_close()
        thread.join(WITHIN_S)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(serving(Node(name))) for name in NAMES]
        ports = stack.enter_context(running_balancer(tmp_path, [node.server_port for node in nodes]))
        yield Rig(*ports, nodes)


def test_haproxy_is_content_with_the_configuration(tmp_path):
    done = checked(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "path",
    ["/internal/link", "/internal/overview/sessions", "//internal/link", "/%69nternal/link", "/./internal/link",
     "/t", "/", "/metrics", "/readyz", "/livez", "/api", "/oauth", "/consoles"],
)  # fmt: skip
def test_only_what_clients_need_is_let_through(rig, path):
    assert rig.ask("GET", path)[0] == 404
    assert not any(node.requests for node in rig.nodes)


LET_THROUGH = pytest.mark.parametrize(
    "path",
    ["/t/acme/time/mcp", "/api/v1/tenants", "/.well-known/oauth-protected-resource/t/a/b/mcp",
     "/.well-known/oauth-authorization-server/oauth/acme", "/.well-known/openid-configuration/oauth/acme",
     "/oauth/acme/.well-known/openid-configuration", "/oauth/acme/token", "/console", "/console/sign-in"],
)  # fmt: skip


@LET_THROUGH
def test_clients_and_whoever_signs_in_are_let_through(rig, path):
    assert rig.ask("POST", path) in [(200, FIRST), (200, SECOND)]


def test_what_only_the_balancer_may_say_is_taken_out(rig):
    rig.ask("POST", "/t/acme/time/mcp", Forwarded="x", X_Forwarded_For="x")
    one, two = (node.requests for node in rig.nodes)
    ((_, headers),) = one + two
    assert headers["forwarded"] is None
    assert headers.get_all("x-forwarded-for") == ["127.0.0.1"]
    assert headers["x-forwarded-proto"] == "http"


def test_an_event_arrives_before_the_stream_ends(rig):
    with closing(http.client.HTTPConnection("127.0.0.1", rig.port, timeout=WITHIN_S)) as connection:
        connection.request("GET", "/t/acme/stream/mcp")
        answer = connection.getresponse()
        assert answer.read(8) == b": open\n\n"
        assert not any(node.may_go_on.is_set() for node in rig.nodes)


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_a_session_go_to_the_node_whose_name_its_id_begins_with(rig, name):
    rig.wait_until_answering({FIRST, SECOND})
    assert rig.answering(Mcp_Session_Id=f"{name}.run.secret") == {name}
    messages = f"/t/acme/time/messages?sessionId={name}.run.secret"
    assert {rig.ask("POST", messages)[1] for _ in range(6)} == {name}


def test_a_session_of_a_node_that_the_balancer_does_not_know_is_anybodys(rig):
    rig.wait_until_answering({FIRST, SECOND})
    for unknown in ("gateway-9.run.secret", "run.secret", "secret", ".", "gateway-1", "x" * 500):
        status, name = rig.ask("POST", "/t/acme/time/mcp", Mcp_Session_Id=unknown)
        assert (status, name in NAMES) == (200, True)
    rig.wait_until_answering({FIRST, SECOND}, Mcp_Session_Id="gateway-9.run.secret")


def test_requests_of_one_caller_that_name_no_session_go_to_one_node(rig):
    rig.wait_until_answering({FIRST, SECOND})
    callers = [{"Authorization": f"Bearer {number}", "MCP_Protocol_Version": "2026-07-28"} for number in range(12)]
    answering = [rig.answering(**headers) for headers in callers]
    assert {len(names) for names in answering} == {1}
    assert set().union(*answering) == {FIRST, SECOND}, "the callers are spread all the same"


def test_a_node_that_is_not_ready_gets_nothing_new_and_keeps_what_it_has(rig):
    one, _ = rig.nodes
    rig.wait_until_answering({FIRST, SECOND})
    with closing(http.client.HTTPConnection("127.0.0.1", rig.port, timeout=WITHIN_S)) as connection:
        connection.request("GET", "/t/acme/stream/mcp", headers={"mcp-session-id": f"{FIRST}.run.secret"})
        answer = connection.getresponse()
        one.is_ready = False
        rig.wait_until_answering({SECOND}, Mcp_Session_Id=f"{FIRST}.run.secret")
        assert rig.answering() == {SECOND}
        one.may_go_on.set()
        assert answer.read() == b": open\n\n"
    one.is_ready = True
    rig.wait_until_answering({FIRST, SECOND})


def test_a_node_that_is_gone_costs_no_request(rig):
    rig.wait_until_answering({FIRST, SECOND})
    rig.nodes[0].vanish()
    assert [rig.ask("POST", "/t/acme/time/mcp", Mcp_Session_Id=f"{FIRST}.run.secret") for _ in range(5)] == [
        (200, SECOND)
    ] * 5


def test_a_request_that_may_have_been_carried_out_is_never_sent_again(rig):
    rig.wait_until_answering({FIRST, SECOND})
    for node in rig.nodes:
        node.requests.clear()
        node.breaks = True
    assert rig.ask("POST", "/t/acme/time/mcp")[0] == 502
    assert sum(len(node.requests) for node in rig.nodes) == 1
