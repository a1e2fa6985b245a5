"""What one tenant can do to the others with a legitimate key: a bystander's waits, quiet and beside each attack.

    python bench/neighbours.py [attack ...] [--seconds 15] [--bin FOLDER]

For each attack, and for all together: p50, p99 and the longest wait of the bystander in ms, and what the node's memory
grew by, at most and a minute later. Ends with 1 where a p99 is over three times the quiet one (and over 50 ms), memory
grew by more than 256 MB, or by more than 64 MB a minute later. All addresses are loopback.
"""

import argparse
import contextlib
import http.client
import http.server
import json
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MIB = 1 << 20
MOST_MS, MOST_RATIO, MOST_MIB, LEFT_MIB = 50, 3, 256, 64
TENANT, BYSTANDER = "loud", "quiet"
PATH = f"/t/{BYSTANDER}/echo/mcp"
EVENTS = "application/json, text/event-stream"
WORDS = [f"w{number}" for number in range(20_000)]
FLOOD = """
import json, sys
told = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\\n' * 1000
about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "flood", "version": "1"}}
for line in sys.stdin:
    message = json.loads(line)
    while message.get("method") == "tools/call":
        sys.stdout.write(told)
    if "id" in message:
        is_hello = message["method"] == "initialize"
        result = {"protocolVersion": "2025-06-18", **about} if is_hello else {"tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


# --- servers elsewhere


def _large_list() -> str:
    def words(number: int) -> str:
        return " ".join(WORDS[(number * 31 + step * 997) % len(WORDS)] for step in range(120))

    tools = ({"name": f"t{n}", "description": words(n), "inputSchema": {"type": "object"}} for n in range(4900))
    return json.dumps(list(tools))


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A server with many tools; `/mcp-events` tells of changes without end while a tool is called."""

    protocol_version = "HTTP/1.1"
    tools = ""

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_error(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params = message["method"], message.get("params") or {}
        if method == "tools/call" and self.path == "/mcp-events":
            self._tell_without_end()
            return
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "elsewhere", "version": "1"}}
        hello = json.dumps({"protocolVersion": params.get("protocolVersion"), **about})
        result = {"initialize": hello, "tools/list": f'{{"tools":{self.tools}}}'}.get(method, '{"content":[]}')
        body = b""
        if "id" in message:
            body = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{result}}}'.encode()
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _tell_without_end(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"data: %b\n\n" % json.dumps(told).encode() * 500)


def _pieces(listener: socket.socket, head: bytes, piece: bytes) -> None:
    """Answers every connection with `head` and then so many pieces a second without end, about 190 kB/s of chunks."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(head)
            while True:
                connection.sendall(piece * 1600)
                time.sleep(0.05)

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def _elsewhere(ports: Any) -> None:
    """Serves all of them, in a process of its own."""
    Elsewhere.tools = _large_list()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    chunked = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    kinds = {"chunks": (chunked, b"1\r\nx\r\n"), "interim": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")}
    found = {"tools": server.server_port}
    for kind, how in kinds.items():
        listener = socket.create_server(("127.0.0.1", 0))
        found[kind] = listener.getsockname()[1]
        threading.Thread(target=_pieces, args=(listener, *how), daemon=True).start()
    ports.put(found)
    server.serve_forever()


# --- the node


class Node:
    def __init__(self, folder: str, data: str) -> None:
        allow = {"TRUNKLINE_UPSTREAM_ALLOW": "127.0.0.0/8", "TRUNKLINE_DATA_DIR": f"{data}/data", "HOME": data}
        self._env = {**os.environ, **allow, "PATH": f"{folder}:{os.environ['PATH']}"}
        command = [f"{folder}/trunkline", "serve", "--port", "0"]
        log = Path(data, "log").open("wb")  # noqa: SIM115 - the process has it
        self._process = subprocess.Popen(
            command, env=self._env, cwd=data, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().strip().rpartition(":")[2])
        made = [f"{folder}/trunkline", "keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"]
        self.root = json.loads(subprocess.check_output(made, env=self._env, cwd=data, text=True))["key"]

    @property
    def rss(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def ask(self, key: str, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The answer as JSON, or its text; over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            return ask_over(connection, key, method, path, body, **headers)[0]

    def key(self, tenant: str, scope: str) -> str:
        made = self.ask(self.root, "POST", f"/api/v1/tenants/{tenant}/keys", {"name": scope[:5], "scopes": [scope]})
        return str(made["key"])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def ask_over(connection: Any, key: str, method: str, path: str, body: object, **headers: str) -> tuple[Any, Any]:
    sent = {"Content-Type": "application/json", "Accept": EVENTS, "Authorization": f"Bearer {key}", **headers}
    text = body if isinstance(body, str) or body is None else json.dumps(body)
    connection.request(method, path, text, sent if key else headers)
    response = connection.getresponse()
    read = response.read().decode()
    with contextlib.suppress(ValueError):
        return json.loads(read), response.headers
    return read, response.headers


def rpc(method: str, params: object = None, number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


HELLO = rpc(
    "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "0"}}
)


class Client:
    """A session, new or one that is open, over one connection."""

    def __init__(self, port: int, key: str, path: str, session: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._key, self._path = key, path
        self.session = session or ask_over(self._connection, key, "POST", path, HELLO)[1]["Mcp-Session-Id"]

    def send(self, body: object) -> Any:
        headers = {"Mcp-Session-Id": self.session}
        return ask_over(self._connection, self._key, "POST", self._path, body, **headers)[0]


# --- the bystander


class Waits(NamedTuple):
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, waits: list[float]) -> "Waits":
        waits.sort()
        return cls(waits[len(waits) // 2], waits[min(len(waits) - 1, int(len(waits) * 0.99))], waits[-1])

    def __str__(self) -> str:
        return f"{self.p50:6.1f} {self.p99:7.1f} {self.most:7.1f}"


def _watch(port: int, key: str, session: str, seconds: float, results: Any) -> None:
    """Twenty times a second, in a process of its own: /livez, and a call of the bystander's session. What is refused
    takes for ever."""
    livez: list[float] = []
    calls: list[float] = []

    def probe(times: list[float], once: Callable[[], object]) -> None:
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            answer = once()
            took = time.monotonic() - began
            times.append(math.inf if isinstance(answer, dict) and "error" in answer else 1000 * took)
            time.sleep(max(0.0, 0.05 - took))

    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    client = Client(port, key, PATH, session)
    call = rpc("tools/call", {"name": "echo", "arguments": {"text": "x"}})
    both = [
        threading.Thread(target=probe, args=(livez, lambda: ask_over(plain, "", "GET", "/livez", None))),
        threading.Thread(target=probe, args=(calls, lambda: client.send(call))),
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    results.put((Waits.of(livez), Waits.of(calls)))


def watch(node: Node, key: str, session: str, seconds: float) -> tuple[Waits, Waits, float]:
    """The waits for /livez and for calls, and the most memory meanwhile, in MiB."""
    results: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=_watch, args=(node.port, key, session, seconds, results), daemon=True)
    process.start()
    most = node.rss
    while results.empty() and process.is_alive():
        most = max(most, node.rss)
        time.sleep(0.1)
    livez, calls = results.get(timeout=10)
    process.join()
    return livez, calls, most


# --- attacks: each runs in processes of its own until these are ended


class Loud(NamedTuple):
    """The loud tenant: what an attack needs."""

    port: int
    admin: str
    reader: str
    client: str


def _repeat(times: int, once: Callable[[int], object]) -> None:
    """So many threads that do it again and again, in a process that is ended from outside."""

    def run(number: int) -> None:
        while True:
            try:
                once(number)
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(times)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _request(loud: Loud, key: str, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", loud.port, timeout=120)
    with contextlib.closing(connection):
        return ask_over(connection, key, method, path, body)[0]


def _query(number: int) -> str:
    start = int(time.monotonic() * 1000)
    return " ".join(WORDS[(start + number * 37 + step) % len(WORDS)] for step in range(32))


def catalog_search(loud: Loud) -> None:
    path = f"/api/v1/tenants/{TENANT}/catalog:search?limit=50&query="
    _repeat(6, lambda n: _request(loud, loud.reader, "GET", path + _query(n).replace(" ", "+")))


def find_tools(loud: Loud) -> None:
    clients = [Client(loud.port, loud.client, f"/t/{TENANT}/searched/mcp") for _ in range(6)]
    _repeat(6, lambda n: clients[n].send(rpc("tools/call", {"name": "find_tools", "arguments": {"query": _query(n)}})))


def catalog_lists(loud: Loud) -> None:
    paths = [f"/api/v1/tenants/{TENANT}/catalog", f"/api/v1/tenants/{TENANT}/backends/far0/tools"]
    _repeat(6, lambda n: _request(loud, loud.reader, "GET", paths[n % 2]))


def chunks(loud: Loud) -> None:
    _repeat(3, lambda n: _request(loud, loud.admin, "POST", f"/api/v1/tenants/{TENANT}/backends/chunks{n}:check"))


def interim(loud: Loud) -> None:
    _repeat(3, lambda n: _request(loud, loud.admin, "POST", f"/api/v1/tenants/{TENANT}/backends/interim{n}:check"))


def events(loud: Loud) -> None:
    clients = [Client(loud.port, loud.client, f"/t/{TENANT}/events/mcp") for _ in range(8)]
    _repeat(8, lambda n: clients[n].send(rpc("tools/call", {"name": "t0", "arguments": {}})))


def floods(loud: Loud) -> None:
    clients = [Client(loud.port, loud.client, f"/t/{TENANT}/flood/mcp") for _ in range(8)]
    _repeat(8, lambda n: clients[n].send(rpc("tools/call", {"name": "flood", "arguments": {}})))


def unread_lists(loud: Loud) -> None:
    session, opened = Client(loud.port, loud.client, f"/t/{TENANT}/all/mcp").session, []
    for number in range(30):
        body = json.dumps(rpc("tools/list", number=number + 10)).encode()
        connection = socket.create_connection(("127.0.0.1", loud.port))
        head = f"POST /t/{TENANT}/all/mcp HTTP/1.1\r\nHost: 127.0.0.1:{loud.port}\r\nMcp-Session-Id: {session}\r\n"
        head += f"Authorization: Bearer {loud.client}\r\nContent-Type: application/json\r\nAccept: {EVENTS}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        opened.append(connection)
        time.sleep(0.3)
    time.sleep(3600)


def recipes(loud: Loud) -> None:
    clients = [Client(loud.port, loud.client, f"/t/{TENANT}/small/mcp") for _ in range(8)]
    _repeat(8, lambda n: clients[n].send(rpc("tools/call", {"name": "burn", "arguments": {}})))


def bodies(loud: Loud) -> None:
    small = json.dumps(
        rpc("tools/call", {"name": "t0", "arguments": {"values": [[]] * 1_000_000}}), separators=(",", ":")
    )
    clients = [Client(loud.port, loud.client, f"/t/{TENANT}/small/mcp") for _ in range(4)]
    _repeat(4, lambda n: clients[n].send(small))


ATTACKS: dict[str, Callable[[Loud], None]] = {
    each.__name__: each
    for each in (
        catalog_search, find_tools, catalog_lists, chunks, interim, events, floods, unread_lists, recipes, bodies,
    )
}  # fmt: skip


@contextlib.contextmanager
def under_way(names: list[str], loud: Loud) -> Iterator[None]:
    """Runs these attacks, each in a process."""
    running = [multiprocessing.Process(target=ATTACKS[name], args=(loud,), daemon=True) for name in names]
    for each in running:
        each.start()
    try:
        time.sleep(2)
        yield
    finally:
        for each in running:
            each.kill()
            each.join()


def set_up(node: Node, ports: dict[str, int]) -> tuple[Loud, str]:
    """Both tenants with the default limits, and their keys."""
    for tenant in (TENANT, BYSTANDER):
        node.ask(node.root, "POST", "/api/v1/tenants", {"name": tenant})
    keys = [node.key(TENANT, scope) for scope in ("tenant:admin", "tenant:read", "mcp:connect")]
    loud = Loud(node.port, *keys)
    of_tenant = f"/api/v1/tenants/{TENANT}"
    python, here = sys.executable, Path(__file__).parent
    echo = {"name": "echo", "command": python, "args": [str(here / "echo_backend.py")]}
    node.ask(node.root, "POST", f"/api/v1/tenants/{BYSTANDER}/backends", echo)
    flood = {"name": "flood", "command": python, "args": ["-c", FLOOD], "max_processes": 8}
    node.ask(node.root, "POST", f"{of_tenant}/backends", flood)
    urls = {f"far{n}": f"{ports['tools']}/mcp" for n in range(8)} | {"events": f"{ports['tools']}/mcp-events"}
    urls |= {f"{kind}{n}": f"{ports[kind]}/mcp" for kind in ("chunks", "interim") for n in range(3)}
    for name, where in urls.items():
        node.ask(loud.admin, "POST", f"{of_tenant}/backends", {"name": name, "url": f"http://127.0.0.1:{where}"})
    members = [{"backend": f"far{n}"} for n in range(8)]
    for toolset in (
        {"name": "all", "members": members},
        {"name": "searched", "mode": "search", "members": members},
        {"name": "small", "members": [{"backend": "far0", "include": ["t0"]}]},
    ):
        node.ask(loud.admin, "POST", f"{of_tenant}/toolsets", toolset)
    grow = "[@,@]|[@,@][]" + "|[@,@][]" * 9 + "|`false`"
    steps = [{"id": f"s{n}", "tool": "far0_t0", "condition": grow, "arguments": {}} for n in range(32)]
    node.ask(loud.admin, "POST", f"{of_tenant}/recipes", {"name": "burn", "toolset": "small", "steps": steps})
    Client(node.port, loud.client, f"/t/{TENANT}/all/mcp").send(rpc("tools/list"))
    return loud, node.key(BYSTANDER, "mcp:connect")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS, "all"])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--bin", default=str(Path(sys.executable).parent), help="where `trunkline` is")
    options = parser.parse_args()
    ports: Any = multiprocessing.Queue()
    elsewhere = multiprocessing.Process(target=_elsewhere, args=(ports,), daemon=True)
    elsewhere.start()
    with tempfile.TemporaryDirectory() as data:
        node = Node(options.bin, data)
        try:
            return 1 if run(node, ports.get(), options.attacks or [*ATTACKS, "all"], options.seconds) else 0
        finally:
            node.stop()
            elsewhere.kill()


def run(node: Node, ports: dict[str, int], attacks: list[str], seconds: float) -> list[str]:
    """Prints a line for each; returns those that did not hold."""
    loud, key = set_up(node, ports)
    session = Client(node.port, key, PATH).session
    livez, calls, _ = watch(node, key, session, seconds)
    print(
        f"{'':16}        /livez                   calls             memory, MiB\n{'':16}"
        + 2 * "   p50     p99    most  "
        + "  grown  left"
    )
    print(f"{'quiet':16}{livez}  {calls}")
    allowed = [max(MOST_MS, MOST_RATIO * each.p99) for each in (livez, calls)]
    fallen = []
    for attack in attacks:
        before = node.rss
        with under_way(list(ATTACKS) if attack == "all" else [attack], loud):
            *waits, most = watch(node, key, session, seconds)
        grown, until = most - before, time.monotonic() + 60
        while node.rss - before > LEFT_MIB and time.monotonic() < until:
            time.sleep(1)
        left = node.rss - before
        holds = all(each.p99 <= most for each, most in zip(waits, allowed, strict=True))
        holds = holds and grown <= MOST_MIB and left <= LEFT_MIB
        fallen += [] if holds else [attack]
        print(f"{attack:16}{waits[0]}  {waits[1]}  {grown:7.0f} {left:5.0f}  {'' if holds else 'fell'}", flush=True)
    return fallen


if __name__ == "__main__":
    sys.exit(main())
