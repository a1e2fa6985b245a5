"""What a call costs, counted instead of timed: the same on a fast machine, a slow one and a busy one.

    .venv/bin/python bench/call_cost.py            # prints the counts beside those of bench/call_cost.json
    .venv/bin/python bench/call_cost.py --check    # exits with 1 if a call has become 10 % dearer: scripts/check
    .venv/bin/python bench/call_cost.py --write    # keeps the counts of this version of Python as the new measure
    .venv/bin/python bench/call_cost.py --files    # prints in which files of app/ a call and openings run code

Runs a node in this process, with a backend process and a client over sockets, and counts on the node's thread what it
executes between a request and the next: bytecode instructions, and calls of functions that are written in C (what those
do inside is not seen). Each is the lowest tenth of many calls, so that what a node does besides is left out, four times
a second and more when others keep the machine busy. `garbage` is how many objects a call leaves to the garbage
collection. Counts differ between versions of Python.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from app.cli import main as trunkline  # this checkout's, wherever the script is started

KEPT = ROOT / "bench/call_cost.json"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
DEARER = 1.1
CALLS = 60  # counted, of each kind, for each of the two counts
ROUNDS = 8
WARM_UP = 40  # caches are filled, specialised instructions are in place
QUIET_S = 0.002  # without work of the node's thread: the call has been dealt with to its end
IDLE_S = 2.0  # everything that runs now and then does so meanwhile
WITHIN_S = 300.0  # a node starts, or answers, on a machine that has other work
ECHO = {
    "command": sys.executable,
    "args": ["-I", "-S", str(ROOT / "bench/echo_backend.py")],
    "sandbox": {"mode": "off"},
}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
Counts = dict[str, int]
Ran = tuple[CodeType, str]  # a function, and the file that defines it: the code of a dataclass's __init__ names none
Found = TypeVar("Found")


class Work:
    """Counts what the thread that calls `watch` executes while `counting` is set, and the Python functions of threads
    that are started later."""

    def __init__(self) -> None:
        self.instructions = self.c_calls = self.functions = 0
        self.ran: set[Ran] = set()  # the functions that were counted
        self.counting = ""

    def watch(self) -> None:
        sys.settrace(self._called)
        threading.setprofile(self._entered)
        sys.setprofile(self._profiled)

    def end(self) -> None:
        sys.settrace(None)
        threading.setprofile(None)
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.counting != "instructions":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.instructions += 1
        return self._stepped if self.counting == "instructions" else None

    def _profiled(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call" and self.counting == "c_calls":
            self.c_calls += 1
        self._entered(frame, event, arg)

    def _entered(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and self.counting == "functions":
            self.functions += 1
            self.ran.add((frame.f_code, frame.f_globals.get("__file__", "")))

    def count(self, what: str, act: Callable[[], object]) -> int:
        """Of one `act` of another thread, until the watched one has nothing to do any more."""
        self.counting, before = what, getattr(self, what)
        act()
        last = -1
        while last != (last := getattr(self, what)):
            time.sleep(QUIET_S)
        self.counting = ""
        return int(last - before)


class Connection:
    """One connection of a client that writes each request in one piece."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=WITHIN_S)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._head += "Accept: application/json, text/event-stream\r\n"

    def ask(self, method: str, path: str, body: object, headers: dict[str, str] | None = None) -> tuple[str, Any]:
        """The head and the decoded body of a successful answer."""
        content = json.dumps(body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{more}Content-Length: {len(content)}\r\n\r\n"
        self._socket.sendall(head.encode() + content)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        told, _, rest = answer.partition(b"\r\n\r\n")
        text = told.decode()
        lengths = [line for line in text.lower().splitlines() if line.startswith("content-length:")]
        length = int(lengths[0].partition(":")[2]) if lengths else 0
        while len(rest) < length:
            rest += self._more()
        assert text.split()[1].startswith("2"), f"{method} {path}: {text} {rest[:500]!r}"
        return text, json.loads(rest) if rest else None

    def _more(self) -> bytes:
        chunk = self._socket.recv(1 << 16)
        assert chunk, "the gateway has closed the connection"
        return chunk


def opened(connection: Connection, path: str) -> dict[str, str]:
    """What `initialize` answers: the headers of all later requests of its session."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    head, _ = connection.ask("POST", path, request)
    found = next(line for line in head.splitlines() if line.lower().startswith("mcp-session-id:"))
    return {"Mcp-Session-Id": found.partition(":")[2].strip(), "MCP-Protocol-Version": "2025-11-25"}


class Caller:
    """Calls `echo` at one address, in a session of its own or without one."""

    def __init__(self, connection: Connection, path: str, tool: str, *, sessionless: bool) -> None:
        self._connection, self._path = connection, path
        params: dict[str, Any] = {"name": tool, "arguments": {"text": "session 12 call 345"}}
        if sessionless:
            params["_meta"] = ENVELOPE
            self._headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
        else:
            self._headers = opened(connection, path)
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            connection.ask("POST", path, ready, self._headers)
        self._body = {"jsonrpc": "2.0", "id": 17, "method": "tools/call", "params": params}

    def call(self) -> None:
        _, answer = self._connection.ask("POST", self._path, self._body, self._headers)
        assert not answer["result"].get("isError"), answer


def garbage_of(act: Callable[[], object]) -> int:
    """How many objects one `act` leaves that only the garbage collection can free: the least of several rounds."""
    rounds = []
    for _ in range(5):
        gc.collect()
        for _ in range(CALLS):
            act()
        time.sleep(QUIET_S)
        rounds.append(gc.collect())
    return min(rounds) // CALLS


def counted(work: Work, caller: Caller) -> Counts:
    for _ in range(WARM_UP):
        caller.call()
    counts = {
        what: int(statistics.quantiles((work.count(what, caller.call) for _ in range(CALLS)), n=10)[0])
        for what in ("instructions", "c_calls")
    }
    if not counts["instructions"]:  # Python 3.12 does not tell of those of frames that have begun
        del counts["instructions"]
    return {**counts, "garbage": garbage_of(caller.call)}


def files_of(work: Work, act: Callable[[], object], besides: set[Ran]) -> list[str]:
    """The files of app/ in which each of several `act` runs code, without what runs `besides`, now and then."""
    always = ran_by(work, act)
    for _ in range(ROUNDS - 1):
        always &= ran_by(work, act)
    root = f"{ROOT}/app/"
    names = {file for _, file in always - besides if file.startswith(root)}
    return sorted(name.removeprefix(root) for name in names)


def ran_by(work: Work, act: Callable[[], object]) -> set[Ran]:
    work.ran.clear()
    work.count("functions", act)
    return set(work.ran)


def files(work: Work, connection: Connection) -> dict[str, list[str]]:
    """Of a call, and of openings: one that has its process started, and one that takes a warm process."""
    call = callers(connection)["a session"]().call
    for _ in range(WARM_UP):
        call()
    besides = ran_by(work, lambda: time.sleep(IDLE_S))
    found = {
        "tools/call": files_of(work, call, besides),
        "start": files_of(work, lambda: opened(connection, "/t/bench/echo/mcp"), besides),
    }
    connection.ask("POST", "/api/v1/tenants/bench/backends", {**ECHO, "name": "warm", "warm": ROUNDS})
    give_up_at = time.monotonic() + WITHIN_S
    while warm_processes(connection) < ROUNDS:
        assert time.monotonic() < give_up_at, "there are no warm processes"
        time.sleep(QUIET_S)
    return {**found, "initialize": files_of(work, lambda: opened(connection, "/t/bench/warm/mcp"), besides)}


def warm_processes(connection: Connection) -> int:
    _, found = connection.ask("GET", "/api/v1/tenants/bench/processes", None)
    return sum(each["state"] == "warm" for each in found["items"])


def counts(work: Work, connection: Connection) -> dict[str, Counts]:
    """By kind of call."""
    return {kind: counted(work, make()) for kind, make in callers(connection).items()}


def callers(connection: Connection) -> dict[str, Callable[[], Caller]]:
    """Registers what is called, in the tenant `bench`."""
    nothing = dict.fromkeys(
        ("sessions", "processes", "in_flight", "requests_per_second", "burst", "memory_mb", "spawns_per_minute")
    )
    connection.ask("POST", "/api/v1/tenants", {"name": "bench", "limits": nothing})
    for name, more in {"echo": {}, "shared": {"isolation": "shared"}}.items():
        connection.ask("POST", "/api/v1/tenants/bench/backends", {"name": name, **ECHO, **more})
    members = [{"backend": "echo"}, {"backend": "shared"}]
    connection.ask("POST", "/api/v1/tenants/bench/toolsets", {"name": "both", "members": members})

    def at(name: str, tool: str = "echo", *, sessionless: bool = False) -> Callable[[], Caller]:
        return lambda: Caller(connection, f"/t/bench/{name}/mcp", tool, sessionless=sessionless)

    return {
        "a session": at("echo"),
        "2026-07-28": at("echo", sessionless=True),
        "a shared process": at("shared"),
        "a toolset": at("both", "echo_echo"),
    }


class Announced(io.StringIO):
    """A stdout that passes the address of the ready line on."""

    def __init__(self) -> None:
        super().__init__()
        self.url: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        if text.startswith("listening on "):
            self.url.put(text.split()[2])
        return len(text)


@contextlib.contextmanager
def environment(data: str) -> Iterator[None]:
    """Of a node that logs little and stops at once."""
    for name in [each for each in os.environ if each.startswith("TRUNKLINE_")]:
        del os.environ[name]
    os.environ |= {"TRUNKLINE_DATA_DIR": data, "TRUNKLINE_LOG_LEVEL": "warning", "TRUNKLINE_DRAIN_S": "1"}
    yield


def measure(watch: Callable[[Work, Connection], dict[str, Found]]) -> dict[str, Found]:
    """What `watch` finds of a node that runs meanwhile."""
    found: dict[str, Found] = {}
    failures: list[str] = []
    work, announced = Work(), Announced()

    def drive() -> None:
        url = ""
        try:
            url = announced.url.get(timeout=WITHIN_S)
            if not url:
                return
            words = ["keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"]
            done = subprocess.run([sys.executable, "-m", "app", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True)
            found.update(watch(work, Connection(url, json.loads(done.stdout)["key"])))
        except BaseException:
            failures.append(traceback.format_exc())
        finally:
            if url or failures:
                os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as data, environment(data), contextlib.redirect_stdout(announced):
        client = threading.Thread(target=drive, daemon=True)
        client.start()
        work.watch()
        try:
            trunkline(["serve", "--port", "0"])
        finally:
            work.end()
            announced.url.put("")  # if it has not started
            client.join(WITHIN_S)
    if failures or not found:
        raise SystemExit(failures[0] if failures else "the gateway has ended before it was measured")
    return found


def report(found: dict[str, Counts], kept: dict[str, Counts]) -> list[str]:
    """Prints what was counted; returns what has become dearer."""
    dearer = []
    for kind, counts in found.items():
        for what, count in counts.items():
            before = kept.get(kind, {}).get(what)
            ratio = f"x {count / before:.2f} of {before}" if before else "" if before is None else f"was {before}"
            print(f"{kind:18} {what:13} {count:6} {ratio}")
            if before is not None and count > before * DEARER:
                dearer.append(f"{kind}: {count} {what} instead of {before}")
    return dearer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a count is over {DEARER} of what is kept")
    parser.add_argument("--write", action="store_true", help="keep the counts")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FILE", help="another file of counts")
    parser.add_argument("--files", action="store_true", help="print in which files code runs, as JSON")
    options = parser.parse_args()
    if options.files:
        print(json.dumps(measure(files), indent=1))
        return 0
    kept = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    if options.check and VERSION not in kept:
        print(f"no counts of calls are kept for Python {VERSION}: bench/call_cost.py --write makes them")
        return 0
    found = measure(counts)
    dearer = report(found, kept.get(VERSION, {}))
    if options.write:
        options.kept.write_text(json.dumps({**kept, VERSION: found}, indent=1, sort_keys=True) + "\n")
    elif options.check and dearer:
        print("A call has become 10 % dearer:", *dearer, "If that is meant: bench/call_cost.py --write", sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
