"""What a toolset costs: a call through it, and its lists, against the same of its member alone, on one gateway.

    .venv/bin/python bench/toolset.py [--members 20] [--tools 16] [--rounds 5] [--calls 2000] [--real DIR]

Starts a gateway of its own with so many servers (bench/many_tools.py) and a toolset of all. With `--real` these are the
servers of bench/catalogue.json named in REAL, which it installs into DIR from the registries (no install script runs).
Prints medians over the rounds, and ratios: CPU time of the gateway for a call, and for `initialize` with `tools/list`.
The list of the toolset is as long as those of all members together; it is compared with one server that has the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
from catalogue_corpus import LIST, installed

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "bench/many_tools.py"
REAL = (  # of bench/catalogue.json: 20 servers; the first is called
    "mcp-server-time", "mcp-server-git", "mcp-server-sqlite", "mcp-obsidian", "wikipedia-mcp",
    "@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem",
    "@modelcontextprotocol/server-memory", "@modelcontextprotocol/server-github",
    "@modelcontextprotocol/server-gitlab", "@modelcontextprotocol/server-slack",
    "@modelcontextprotocol/server-google-maps", "@playwright/mcp", "@notionhq/notion-mcp-server",
    "chrome-devtools-mcp", "firecrawl-mcp", "tavily-mcp", "mcp-server-kubernetes", "@antv/mcp-server-chart",
    "@wonderwhy-er/desktop-commander",
)  # fmt: skip
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
READY_S = 60


class Endpoint:
    """One address and its key."""

    def __init__(self, url: str, key: str) -> None:
        accept = "application/json, text/event-stream"
        headers = {"Authorization": f"Bearer {key}", "Accept": accept, "Content-Type": "application/json"}
        self._http = httpx2.Client(headers=headers, timeout=60)
        self._url = url

    def ask(self, method: str, params: object, **headers: str) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._http.post(self._url, json=body, headers=headers)
        answer.raise_for_status()
        return answer

    def open(self) -> dict[str, str]:
        """The headers of a new session."""
        headers = {"Mcp-Session-Id": self.ask("initialize", HELLO).headers["mcp-session-id"]}
        self._http.post(self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        return headers

    def close(self, headers: dict[str, str]) -> None:
        self._http.delete(self._url, headers=headers)


class Gateway:
    """A running gateway, and its CPU time."""

    def __init__(self, process: subprocess.Popen[str], url: str, key: str) -> None:
        self.url, self._process = url, psutil.Process(process.pid)
        self._admin = httpx2.Client(base_url=url + "/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=120)

    def make(self, path: str, body: object) -> Any:
        answer = self._admin.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def endpoint(self, name: str) -> Endpoint:
        key = self.make("/keys", {"scopes": ["mcp:connect"]})["key"]
        return Endpoint(f"{self.url}/t/default/{name}/mcp", key)

    def lift_limits(self) -> None:
        """Of the tenant, so that nothing is refused."""
        limits = dict.fromkeys(("requests_per_second", "burst", "sessions", "processes"))
        self._admin.patch("/tenants/default", json={"limits": limits}).raise_for_status()

    def find(self, path: str) -> Any:
        answer = self._admin.get("/tenants/default" + path)
        answer.raise_for_status()
        return answer.json()

    @property
    def cpu_s(self) -> float:
        used = self._process.cpu_times()
        return float(used.user + used.system)

    @property
    def processes(self) -> int:
        return len(self._admin.get("/processes").json()["items"])


@contextmanager
def running(**settings: str) -> Iterator[Gateway]:
    """A gateway of its own, with these environment variables."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "app"]
        where = ["--data-dir", data]
        serve = [*command, "serve", "--port", "0", *where]
        given = {**os.environ, **settings}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(serve, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=quiet, text=True)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("listening on ").strip()
            words = [*command, "keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json", *where]
            key = json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)["key"]
            yield Gateway(process, url, key)
        finally:
            process.terminate()
            process.wait(READY_S)


def cost_ms(gateway: Gateway, times: int, act: Callable[[], object]) -> float:
    """CPU time of the gateway for one `act`."""
    began = gateway.cpu_s
    for _ in range(times):
        act()
    return (gateway.cpu_s - began) * 1e3 / times


def register(gateway: Gateway, name: str, tools: int | Path) -> None:
    """One server with so many tools, or with those in this file."""
    where = {"sandbox": {"read": [str(tools.parent)]}} if isinstance(tools, Path) else {}
    words = ["-I", "-S", str(SERVER), str(tools)]
    gateway.make("/backends", {"name": name, "command": sys.executable, "args": words, **where})


def register_real(gateway: Gateway, directory: Path) -> list[str]:
    """The names of the backends that were registered."""
    entries = {each["package"]: each for each in json.loads(LIST.read_text())}
    names = []
    for number, package in enumerate(REAL):
        entry, folder = entries[package], directory / package.replace("/", "+")
        kept = folder / "command.json"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _, command, environment = installed(entry, folder)
            kept.write_text(json.dumps([command, {**environment, **entry.get("env", {})}]))
        command, environment = json.loads(kept.read_text())
        names.append(f"m{number}")
        words = [*command[1:], *entry.get("args", [])]
        about = {"name": names[-1], "command": command[0], "args": words, "env": environment}
        gateway.make("/backends", {**about, "sandbox": {"read": [str(folder)]}})
    return names


def definitions(gateway: Gateway, names: list[str], file: Path) -> Path:
    """Writes all tools of these backends, under the names that a toolset gives them, into a file."""
    found = [
        {**tool, "name": f"{name}_{tool['name']}"[:64]}
        for name in names
        for tool in gateway.find(f"/catalog/{name}")["definitions"]["tools"]
    ]
    file.write_text(json.dumps(found))
    file.parent.chmod(0o755)  # the server runs as the tenant's user
    return file


def measure(options: argparse.Namespace) -> None:
    with running() as gateway, tempfile.TemporaryDirectory() as scratch:
        gateway.lift_limits()
        shown = make_toolset(gateway, options, Path(scratch))
        alone, whole, one = gateway.endpoint("m0"), gateway.endpoint("all"), gateway.endpoint("one")
        time.sleep(2)  # until the processes that were asked have been reaped
        before = gateway.processes
        session = whole.open()
        size = len(whole.ask("tools/list", {}, **session).content)
        started = gateway.processes - before
        print(f"{len(shown['shown_tools'])} tools, {size} bytes; processes started by the lists: {started}")
        tool = "get_current_time" if options.real else "tool_0"
        show("call", *calls(gateway, options, (alone, tool), (whole, f"m0_{tool}")))
        show("tools/list", *lists(gateway, options, one, whole))


def make_toolset(gateway: Gateway, options: argparse.Namespace, scratch: Path) -> Any:
    """The toolset `all`, and the backend `one` that offers the same."""
    names = [f"m{number}" for number in range(options.members)]
    if options.real:
        names = register_real(gateway, options.real.resolve())
    for name in () if options.real else names:
        register(gateway, name, options.tools)
    shown = gateway.make("/toolsets", {"name": "all", "members": [{"backend": name} for name in names]})
    give_up_at = time.monotonic() + READY_S
    while wrong := [each for each in shown["status"] if each["tools"] is None]:  # that start slowly are asked again
        assert time.monotonic() < give_up_at, wrong
        time.sleep(1)
        shown = gateway.find("/toolsets/all")
    register(gateway, "one", definitions(gateway, names, scratch / "tools.json"))
    found = gateway.make("/backends/one:check", None)
    assert found["ok"], found
    return shown


def calls(
    gateway: Gateway, options: argparse.Namespace, *targets: tuple[Endpoint, str]
) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = ([], [])
    sessions = [(endpoint, tool, endpoint.open()) for endpoint, tool in targets]
    for round_ in range(options.rounds + 1):
        for costs, (endpoint, tool, session) in zip(found, sessions, strict=True):
            params = {"name": tool, "arguments": {"timezone": "UTC"} if options.real else {"text": "x" * 100}}
            spent = cost_ms(gateway, options.calls, lambda: endpoint.ask("tools/call", params, **session))  # noqa: B023
            if round_:  # the first one warms up
                costs.append(spent)
    return found


def lists(gateway: Gateway, options: argparse.Namespace, *targets: Endpoint) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = ([], [])
    sessions = [(endpoint, endpoint.open()) for endpoint in targets]
    for round_ in range(options.rounds + 1):
        for costs, (endpoint, session) in zip(found, sessions, strict=True):
            spent = cost_ms(gateway, options.calls // 10, lambda: endpoint.ask("tools/list", {}, **session))  # noqa: B023
            if round_:
                costs.append(spent)
    return found


def show(what: str, alone: list[float], whole: list[float]) -> None:
    ratio = statistics.median(b / a for a, b in zip(alone, whole, strict=True))
    costs = f"alone {statistics.median(alone):.3f} ms, through the toolset {statistics.median(whole):.3f} ms of CPU"
    print(f"{what:12} {costs}: x {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--tools", type=int, default=16, help="of each member")
    parser.add_argument("--real", type=Path, metavar="DIR", help="20 real servers, installed there; else made ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
