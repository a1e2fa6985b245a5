"""An office with two nodes and customers: what the pictures of the console show.

The servers are commands on the PATH, as users have them, so that no picture shows a path of this machine.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2

from tests.incidents.stage import Client
from tests.integration.gateway import ROOT, Gateway
from tests.integration.nodes import Nodes, running_nodes

TENANTS = ("acme", "zenith")
PEOPLE = (  # program, address, backend, node
    ("claude-code", "203.0.113.7", "helpdesk", 0),
    ("cursor", "203.0.113.9", "helpdesk", 1),
    ("vscode", "203.0.113.12", "clock", 0),
    ("acme-agent", "203.0.113.40", "helpdesk", 0),
    ("acme-agent", "203.0.113.41", "clock", 1),
)
WORDS = ("printer", "toner", "vpn", "password", "monitor")


def put_commands_on(directory: Path) -> str:
    """Makes `helpdesk` a command there; returns the directory."""
    directory.mkdir()
    command = directory / "helpdesk"
    shutil.copy(ROOT / "tests/servers/helpdesk.py", command)
    command.chmod(0o755)
    return str(directory)


def wait(is_so: Callable[[], bool], within_s: float = 60.0) -> None:
    """Without an event loop: a browser's driver has one in this thread."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Office:
    """`nodes` with the tenants, backends and keys; people work until it is closed."""

    def __init__(self, nodes: Nodes, stack: ExitStack) -> None:
        self.nodes, self._stack = nodes, stack
        self._ended = threading.Event()
        gateway = self.gateway
        for tenant in TENANTS:
            limits = {"sessions": 50, "processes": 40, "memory_mb": 2048, "requests_per_second": 100}
            gateway.api("POST", "/tenants", {"name": tenant, "limits": limits})
            self._add(tenant, "helpdesk", "helpdesk", timeouts={"call_s": 30})
            self._add(tenant, "clock", "mcp-server-time", ["--local-timezone", "Europe/Berlin"])
            members = [{"backend": "helpdesk"}, {"backend": "clock", "prefix": "time_"}]
            gateway.api("POST", f"/tenants/{tenant}/toolsets", {"name": "assistant", "members": members})
        self.keys = {name: self._key(name) for name in ("ci", "laptop of anna", "agents")}

    @property
    def gateway(self) -> Gateway:
        return self.nodes.all[0]

    def _add(self, tenant: str, name: str, command: str, args: list[str] | None = None, **fields: Any) -> None:
        body = {"name": name, "command": command, "args": args or [], "limits": {"memory_mb": 256, "pids": 64}}
        self.gateway.api("POST", f"/tenants/{tenant}/backends", {**body, **fields})

    def _key(self, name: str) -> str:
        body = {"name": name, "scopes": ["mcp:connect", "tenant:read"]}
        return str(self.gateway.api("POST", "/tenants/acme/keys", body)["key"])

    def approve(self, backend: str) -> None:
        """All tools as they are, once the catalogue has them."""
        path = f"/tenants/acme/backends/{backend}"

        def known() -> bool:
            return bool(self.gateway.api("GET", f"{path}/tools")["items"])

        wait(known)
        self.gateway.api("POST", f"{path}/tools:approve", {})

    def update_helpdesk(self) -> None:
        """Its next processes are of another release; those that serve stay."""
        path = "/tenants/acme/backends/helpdesk"
        self.gateway.api("PATCH", path, {"env": {"HELPDESK_RELEASE": "2"}})
        self.gateway.api("POST", f"{path}:check", {})

        def seen() -> bool:
            return any(each["status"] == "changed" for each in self.gateway.api("GET", f"{path}/tools")["items"])

        wait(seen)

    def work_for(self, seconds: float) -> None:
        for each in PEOPLE:
            self._start(*each)
        time.sleep(seconds)

    def client(self, program: str, address: str, backend: str, node: int) -> Client:
        key = self.keys["agents" if program == "acme-agent" else "laptop of anna"]
        url = f"{self.nodes.all[node].url}/t/acme/{backend}/mcp"
        made = Client(url, key, address=address, program=program)
        self._stack.callback(made.http.close)
        answer = made.open()
        assert answer.status_code == 200, answer.text
        return made

    def _start(self, program: str, address: str, backend: str, node: int) -> threading.Thread:
        person = self.client(program, address, backend, node)
        working = threading.Thread(target=self._work, args=(person, backend, random.Random(address)), daemon=True)
        working.start()
        self._stack.callback(working.join, 30)
        self._stack.callback(self._ended.set)
        return working

    def _work(self, person: Client, backend: str, chance: random.Random) -> None:
        while not self._ended.wait(chance.expovariate(1.2)):
            try:
                if backend == "clock":
                    person.call("get_current_time", timezone=chance.choice(["Europe/Berlin", "Asia/Tokyo"]))
                elif chance.random() < 0.1:
                    person.call("monthly_report", month="2026-10")
                else:
                    person.call("search_tickets", words="crash" if chance.random() < 0.04 else chance.choice(WORDS))
            except httpx2.HTTPError:
                return  # the nodes end


@contextmanager
def office(directory: Path, database_url: str) -> Iterator[Office]:
    with running_nodes(directory, database_url, 2, TRUSTED_PROXIES="127.0.0.1") as nodes, ExitStack() as stack:
        anyio.run(nodes.all_know_each_other)
        yield Office(nodes, stack)
