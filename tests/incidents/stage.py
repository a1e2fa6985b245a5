"""The stage: two nodes, a busy tenant, another that has the trouble, and who is called at night."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.integration.gateway import ECHO, NO_LIMITS, ROOT, Gateway
from tests.integration.nodes import Nodes
from tests.integration.test_jwt import Idp
from tests.integration.wire import initialize, rpc
from tests.redis_servers import RedisServer

TROUBLE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/trouble.py")]
JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
PROXIES = "127.0.0.1"  # the clients of the play come through one, so that they have addresses of their own


class Client:
    """One MCP client with a session, at one node."""

    def __init__(self, url: str, key: str, address: str = "203.0.113.7", program: str = "acme-agent") -> None:
        self.url = url
        headers = {**JSON, "Authorization": f"Bearer {key}", "X-Forwarded-For": address}
        self.http = httpx2.Client(headers=headers, timeout=60)
        self.program = program

    def open(self) -> httpx2.Response:
        """`initialize`; whatever comes of it."""
        hello = initialize()
        hello["params"]["clientInfo"] = {"name": self.program, "version": "2.1"}
        answer = self.http.post(self.url, json=hello)
        if answer.status_code == 200 and "mcp-session-id" in answer.headers:
            self.http.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
            self.http.post(self.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def call(self, tool: str, **arguments: Any) -> httpx2.Response:
        return self.http.post(self.url, json=rpc("tools/call", 1, {"name": tool, "arguments": arguments}))


class Stage:
    """What a play works with. `environment` is what the person on call has set in the shell."""

    def __init__(self, directory: Path, nodes: Nodes, stack: ExitStack) -> None:
        self.directory, self.nodes, self._stack = directory, nodes, stack
        self.tenant, self.quiet = "acme", "zenith"
        self.first.add_tenant(self.tenant)
        self.first.add_tenant(self.quiet)
        self.add_backend(self.quiet, "echo", ECHO)
        self.quiet_client = self.client(self.first, self.quiet, "echo")
        assert self.quiet_client.open().status_code == 200

    @property
    def first(self) -> Gateway:
        return self.nodes.all[0]

    @property
    def second(self) -> Gateway:
        return self.nodes.all[1]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TRUNKLINE_URL": self.first.url,
            "TRUNKLINE_KEY": self.first.admin_key,
            "LOGS": " ".join(str(node.log) for node in self.nodes.all),
            "COLUMNS": "200",
        }

    def add_backend(self, tenant: str, name: str, argv: list[str], **fields: Any) -> None:
        self.first.add_backend(tenant, name, argv[0], argv[1:], **fields)

    def client(self, node: Gateway, tenant: str, backend: str, key: str | None = None, **more: Any) -> Client:
        client = Client(f"{node.url}/t/{tenant}/{backend}/mcp", key or self.first.key(tenant), **more)
        self._stack.callback(client.http.close)
        return client

    def identity_provider(self) -> Idp:
        idp = Idp()
        self._stack.callback(idp.close)
        return idp

    def node_with_a_redis_user(self, user: str) -> Gateway:
        """One more node, with a user of its own at Redis: it alone can lose it."""
        redis = self.nodes.redis
        with redis.client() as client:
            client.acl_setuser(user, enabled=True, passwords=["+word"], keys=["*"], channels=["*"], commands=["+@all"])
        return self.nodes.start(REDIS_URL=redis.url.replace("//", f"//{user}:word@"))

    def take_redis_from(self, user: str) -> None:
        with self.nodes.redis.client() as client:
            client.acl_setuser(user, enabled=False)
            client.execute_command("CLIENT", "KILL", "USER", user)

    def calm(self) -> None:
        """The tenant may have what it wants again, for the next incident."""
        self.first.api("PATCH", f"/tenants/{self.tenant}", {"limits": NO_LIMITS})

    def in_background(self, work: Callable[[], object]) -> None:
        """A client that waits; whatever it hears."""

        def run() -> None:
            with suppress(httpx2.HTTPError):
                work()

        threading.Thread(target=run, daemon=True).start()

    def wait(self, is_so: Any, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < deadline, "what was to be played did not come about"
            time.sleep(0.05)


@contextmanager
def stage(directory: Path, database_url: str) -> Iterator[Stage]:
    with RedisServer() as redis, ExitStack() as stack:
        settings = {"TRUSTED_PROXIES": PROXIES, "OUTBOUND_ALLOW": "127.0.0.0/8"}
        nodes = Nodes(directory, database_url, redis, settings)
        stack.callback(nodes.close)
        nodes.start()
        nodes.start()
        nodes.settle()
        yield Stage(directory, nodes, stack)
