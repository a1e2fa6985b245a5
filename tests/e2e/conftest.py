"""A real Chromium before two real nodes with two tenants, and people of three roles."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway
from tests.integration.nodes import Nodes, running_nodes
from tests.postgres import new_database

CLOCK = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
NO_PLAYWRIGHT = "playwright is not installed: scripts/test --e2e installs it"
PATIENCE_MS = 45_000  # lists renew themselves every 20 s
WHERE = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


@dataclass(frozen=True)
class Fleet:
    """Two nodes. Each tenant has the backends `echo` and `clock`, and the toolset `all`."""

    nodes: Nodes
    tenants: tuple[str, str]
    keys: dict[tuple[str, str], str]  # by tenant and role: member, admin

    @property
    def gateway(self) -> Gateway:
        return self.nodes.all[0]

    def key(self, role: str, tenant: str | None = None) -> str:
        """`platform`, or a role in a tenant (the first one)."""
        return self.gateway.admin_key if role == "platform" else self.keys[tenant or self.tenants[0], role]

    def endpoint(self, tenant: str, name: str = "echo", node: int = 0) -> Endpoint:
        gateway = self.nodes.all[node]
        return Endpoint(gateway, tenant, name, f"{gateway.url}/t/{tenant}/{name}", gateway.key(tenant))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, postgres_template: str) -> Iterator[Fleet]:
    with (
        new_database(postgres_url, postgres_template) as database,
        running_nodes(tmp_path_factory.mktemp("fleet"), database, 2) as nodes,
    ):
        anyio.run(nodes.all_know_each_other)
        gateway = nodes.all[0]
        tenants = (gateway.add_tenant("acme"), gateway.add_tenant("zenith"))
        keys = {}
        for tenant in tenants:
            gateway.add_backend(tenant, "echo", ECHO[0], ECHO[1:])
            gateway.add_backend(tenant, "clock", CLOCK[0], CLOCK[1:])
            members = [{"backend": "echo", "prefix": "e_"}, {"backend": "clock"}]
            gateway.api("POST", f"/tenants/{tenant}/toolsets", {"name": "all", "members": members})
            keys[tenant, "member"] = gateway.key(tenant, ["tenant:read"])
            keys[tenant, "admin"] = gateway.key(tenant, ["tenant:admin"])
        yield Fleet(nodes, tenants, keys)


@pytest.fixture(scope="module")
def chromium(fleet: Fleet) -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright, which runs an event loop in this thread meanwhile: modules with it have
    no async tests, and the fleet is there before."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT)
    from tests.e2e.desk import FLAGS

    found = next((path for path in WHERE if Path(path).exists()), None)
    if found is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def sit_down(chromium: Any, fleet: Fleet) -> Iterator[Callable[..., Any]]:
    """sit_down("admin"): a Desk of somebody of this role, at the first node."""
    from tests.e2e.desk import desk

    with ExitStack() as stack:

        def sit(role: str, tenant: str | None = None, node: int = 0, **options: Any) -> Any:
            there: AbstractContextManager[Any] = desk(
                chromium, fleet.nodes.all[node], fleet.key(role, tenant), **options
            )
            return stack.enter_context(there)

        yield sit


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of a site with an empty page. As 127.0.0.1 it is another origin of the same site, so that browsers send
    it the console's cookie too; as localhost it is another site."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()
