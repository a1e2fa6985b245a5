"""What a toolset costs: a call through it, and its lists, against the same of its member alone, on one gateway.

    .venv/bin/python bench/toolset.py [--members 20] [--tools 16] [--rounds 5] [--calls 2000]

Starts a gateway of its own with so many servers (bench/echo_backend.py with more tools) and a toolset of all. Prints
medians over the rounds, and ratios: CPU time of the gateway for a call and for `initialize` with `tools/list`. The
list of the toolset is as long as those of all members together; it is compared with one server that has as many tools.
"""

import argparse
import json
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

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "bench/many_tools.py"
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

    @property
    def cpu_s(self) -> float:
        used = self._process.cpu_times()
        return float(used.user + used.system)

    @property
    def processes(self) -> int:
        return len(self._admin.get("/processes").json()["items"])


@contextmanager
def running() -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "app"]
        where = ["--data-dir", data]
        serve = [*command, "serve", "--port", "0", *where]
        process = subprocess.Popen(serve, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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


def register(gateway: Gateway, name: str, tools: int) -> None:
    gateway.make("/backends", {"name": name, "command": sys.executable, "args": ["-I", "-S", str(SERVER), str(tools)]})


def measure(options: argparse.Namespace) -> None:
    with running() as gateway:
        gateway.lift_limits()
        members = [f"m{number}" for number in range(options.members)]
        for name in members:
            register(gateway, name, options.tools)
        register(gateway, "one", options.members * options.tools)
        shown = gateway.make("/toolsets", {"name": "all", "members": [{"backend": name} for name in members]})
        assert len(shown["shown_tools"]) == options.members * options.tools
        alone, whole, one = gateway.endpoint("m0"), gateway.endpoint("all"), gateway.endpoint("one")
        time.sleep(2)  # until the processes that were asked have been reaped
        before = gateway.processes
        session = whole.open()
        size = len(whole.ask("tools/list", {}, **session).content)
        started = gateway.processes - before
        print(f"{len(shown['shown_tools'])} tools, {size} bytes; processes started by the lists: {started}")
        show("call", *calls(gateway, options, (alone, "tool_0"), (whole, "m0_tool_0")))
        show("tools/list", *lists(gateway, options, one, whole))


def calls(
    gateway: Gateway, options: argparse.Namespace, *targets: tuple[Endpoint, str]
) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = ([], [])
    sessions = [(endpoint, tool, endpoint.open()) for endpoint, tool in targets]
    for round_ in range(options.rounds + 1):
        for costs, (endpoint, tool, session) in zip(found, sessions, strict=True):
            params = {"name": tool, "arguments": {"text": "x" * 100}}
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
