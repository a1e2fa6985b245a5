"""Servers as their READMEs register them: imported, listed and called through a gateway, after `check --allow` at most.

    .venv/bin/python bench/readme_servers.py [--tools] [NAME ...]
    .venv/bin/python bench/readme_servers.py --second-session [--rounds 20] [NAME ...]

Registers each server of bench/readme_servers.json by `trunkline import` of the file that its README gives (`from`: npm,
pypi or image; `own`: what a reader writes in the place of the README's examples), in a gateway of its own, which
installs it in its sandbox from the registries that this machine is configured for. Then it asks for the tools and calls
one, as an MCP client; where that fails, once more after `trunkline backends check NAME --allow`. What a server needs
stands in for it on loopback: a PostgreSQL, a Redis and an HTTP server. Images are there under their names, and need the
setting CONTAINER_ENGINE in the environment. `--tools` prints what each server offers.

`--second-session` compares how long sessions of a package take to their first answer with those of the same program
that was installed by hand, in turns, without a network.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tests, wherever this is started

from forwarded import NOTHING, Node, ask
from mcp_clients import CLIENT_INFO, PROTOCOL_VERSION, CallFailed, StreamableSession

from tests.postgres import postgres_server
from tests.redis_servers import RedisServer

LIST = Path(__file__).with_suffix(".json")
TENANT = "readme"
OPEN_S, CALL_S, COMMAND_S = 120.0, 60.0, 400.0  # a start may install
HELLO = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": CLIENT_INFO}
MAX_WHY = 900  # characters of a reason
SECOND = ("everything", "time")  # one of npm and one of PyPI
ENGINE = "TRUNKLINE_CONTAINER_ENGINE"
NO_ENGINE = f"no container engine is configured: {ENGINE} names one"

# What the HTTP server answers, by the end of the path.
_PROJECT = {
    "id": 7, "name": "gate", "path": "gate", "path_with_namespace": "acme/gate", "name_with_namespace": "acme / gate",
    "visibility": "private", "description": "A gate", "fork": False, "default_branch": "main", "archived": False,
    "web_url": "http://localhost/acme/gate", "ssh_url_to_repo": "git@localhost:acme/gate.git",
    "http_url_to_repo": "http://localhost/acme/gate.git", "created_at": "2026-01-01T00:00:00Z",
    "last_activity_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
_INDEX = {"index": "orders-42", "health": "green", "status": "open", "docs.count": "42", "docsCount": "42"}
_SOURCE = {"id": 1, "uid": "u42", "orgId": 1, "name": "source-42", "type": "prometheus", "url": "", "isDefault": True}
_FOUND = {"title": "A gate", "content": "found-by-the-stand-in", "url": "http://localhost/gate", "score": 1.0}
ANSWERS: Mapping[str, Any] = {
    "/projects": [_PROJECT],
    "/charts": {"success": True, "resultObj": "http://localhost/made-by-the-stand-in.png"},
    "/_cat/indices": [_INDEX],
    "/_cat/indices/*": [_INDEX],
    "/compile-config-with-defaults": {"valid": True, "errors": [], "output-yaml": "", "source-yaml": ""},
    "/search": {"query": "gate", "number_of_results": 1, "results": [_FOUND], "answers": [], "suggestions": []},
    "/api/datasources": [_SOURCE],
    "/": {"version": {"number": "8.19.0", "build_flavor": "default"}, "tagline": "You Know, for Search"},
}


class StandIn(BaseHTTPRequestHandler):
    """Answers by the end of the path, whatever the method."""

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ends = (end for end in ANSWERS if path == end or (end != "/" and path.endswith(end)))
        found = ANSWERS.get(next(ends, ""))
        body = json.dumps({"error": f"nothing at {path}"} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        for name, value in {
            "Content-Type": "application/json", "Content-Length": str(len(body)), "X-Total": "1", "X-Total-Pages": "1",
            "X-Page": "1", "X-Elastic-Product": "Elasticsearch",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def folder_of_reader() -> Iterator[Path]:
    """What a reader of a README has: notes, a vault, a repository, a folder for data. Outside of /tmp, of which each
    process has its own; whatever user a process becomes may write there."""
    with tempfile.TemporaryDirectory(prefix="trunkline-readme-", dir="/var/tmp") as name:
        folder = Path(name)
        for each in ("notes", "vault", "data", "repository"):
            (folder / each).mkdir(parents=True)
        for each in ("notes/answer.txt", "vault/a.md", "repository/a.txt", "data/answer.xlsx"):
            (folder / each).write_text("forty-two\n")
        git = ("git", "-c", "user.name=reader", "-c", "user.email=reader@localhost", "-C", str(folder / "repository"))
        for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "The answer")):
            subprocess.run([*git, *words], check=True)
        subprocess.run(["chmod", "-R", "a+rwX", name], check=True)
        yield folder


@dataclass(frozen=True, slots=True)
class Server:
    """An entry of the list, with what a reader writes into it."""

    name: str
    origin: str
    text: str
    env: Mapping[str, str]
    call: tuple[str, dict[str, Any]]
    says: str


@dataclass(slots=True)
class Outcome:
    """`words`: ok, ok after --allow, not, skipped. `why`: what was added, or the gateway's words for the reason."""

    words: str
    why: str = ""
    added: list[Any] = field(default_factory=list)


def servers_of(names: Sequence[str], places: Mapping[str, str]) -> list[Server]:
    """Those of the list with these names, or all."""

    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace("{" + name + "}", value)
        return text

    made = list[Server]()
    for each in json.loads(LIST.read_text()):
        if names and each["name"] not in names:
            continue
        given = each["file"]
        text = "\n".join(given) if isinstance(given, list) else json.dumps(given, indent=2)
        for example, own in each.get("own", {}).items():
            if example not in text:
                raise SystemExit(f"{each['name']}: {example} is not in its file")
            text = text.replace(example, filled(own))
        env = {name: filled(value) for name, value in each.get("env", {}).items()}
        tool, arguments = json.loads(filled(json.dumps(each["call"])))
        made.append(Server(each["name"], each["from"], text, env, (tool, arguments), each["says"]))
    return made


class Gateway:
    """A node of its own, and commands at it."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.environment = {**os.environ, "TRUNKLINE_DATA_DIR": str(directory / "data"), **settings}
        self.node = Node(directory, self.environment)
        made = self._run("keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json")
        self.key = str(json.loads(made.stdout)["key"])
        self.environment |= {"TRUNKLINE_URL": self.node.url, "TRUNKLINE_KEY": self.key}
        self.api("POST", "/tenants", {"name": TENANT, "limits": NOTHING})
        client = self.api("POST", f"/tenants/{TENANT}/keys", {"name": "client", "scopes": ["mcp:connect"]})
        self.headers = {"Authorization": f"Bearer {client['key']}"}

    def api(self, method: str, path: str, body: Any = None) -> Any:
        return ask(self.node, self.key, method, "/api/v1" + path, body)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.node.command, *words], env=self.environment, capture_output=True, text=True, check=False,
            timeout=COMMAND_S,
        )  # fmt: skip

    def imported(self, file: Path, env: Mapping[str, str]) -> dict[str, Any]:
        """The entry of the only server in the file, as the command reports it."""
        given = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        done = self._run("import", str(file), "--apply", "--json", "--tenant", TENANT, *given)
        try:
            (entry,) = json.loads(done.stdout)
        except ValueError:
            return {"name": None, "outcome": "skipped", "problems": [done.stderr.strip() or "no server was found"]}
        return dict(entry)

    def allowed(self, name: str) -> dict[str, Any]:
        """What `backends check NAME --allow` found at last, with its rounds."""
        done = self._run("backends", "check", name, "--allow", "--json", "--tenant", TENANT)
        return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {"detail": done.stderr.strip()}

    def session(self, name: str) -> StreamableSession:
        return StreamableSession(f"{self.node.url}/t/{TENANT}/{name}/mcp", self.headers)


# --- the README's form


async def offered(session: StreamableSession) -> list[dict[str, Any]]:
    found, params = list[dict[str, Any]](), dict[str, Any]()
    while True:
        page = await session.request("tools/list", params, CALL_S)
        found += page["tools"]
        if not page.get("nextCursor"):
            return found
        params = {"cursor": page["nextCursor"]}


async def tried(gateway: Gateway, name: str, server: Server, *, shows: bool) -> str:
    """What went wrong; empty: the tools were listed, and the call has the right answer."""
    session = gateway.session(name)
    try:
        await session.request("initialize", HELLO, OPEN_S)
        await session.notify("notifications/initialized")
        tools = await offered(session)
        if shows:
            print_tools(tools, server.call[0])
        tool, arguments = server.call
        answer = await session.request("tools/call", {"name": tool, "arguments": arguments}, CALL_S)
    except (CallFailed, OSError, TimeoutError) as error:
        return str(error) or repr(error)
    finally:
        await session.close()
    text = json.dumps(answer.get("content", answer), ensure_ascii=False)
    if answer.get("isError"):
        return f"the tool says: {text[:300]}"
    return "" if server.says in text else f"another answer: {text[:300]}"


def print_tools(tools: Sequence[Mapping[str, Any]], called: str) -> None:
    print(f"    {len(tools)} tools: {', '.join(str(each['name']) for each in tools)}"[:2000])
    schema = next((each.get("inputSchema") for each in tools if each["name"] == called), None)
    print(f"    {called}: {json.dumps(schema)[:1500]}", flush=True)


def measured(gateway: Gateway, server: Server, directory: Path, *, shows: bool) -> Outcome:
    """As a person who has read the README, and goes on with what the gateway says."""
    file = directory / f"{server.name}.json"
    file.write_text(server.text)
    entry = gateway.imported(file, server.env)
    if entry["outcome"] != "created":
        return Outcome("not", f"import: {'; '.join(entry['problems'])}")
    name = str(entry["name"])
    try:
        first = asyncio.run(tried(gateway, name, server, shows=shows))
        if not first:
            return Outcome("ok")
        found = gateway.allowed(name)
        added = [each["added"] for each in found.get("rounds", []) if each["added"]]
        then = asyncio.run(tried(gateway, name, server, shows=shows))
        if not then:
            return Outcome("ok after --allow", "", added)
        return Outcome("not", why_not(gateway, name, then, found), added)
    finally:
        about = gateway.api("GET", f"/tenants/{TENANT}/backends/{name}")
        assert about["sandbox"]["mode"] != "off"
        ask(gateway.node, gateway.key, "DELETE", f"/api/v1/tenants/{TENANT}/backends/{name}")


def why_not(gateway: Gateway, name: str, said: str, found: Mapping[str, Any]) -> str:
    """What the client was told, and what stands on the backend's page: the check's words, and the last failure's."""
    parts = [f"client: {said}"]
    failure = found.get("failure")
    if failure:
        parts.append(f"check: {failure['detail']} | {failure['hint'] or ''} | {' / '.join(failure['stderr'][-3:])}")
    missed = found.get("missed", [])
    parts += [f"missed: {each['kind']} {each['what']}: {each['note'] or each['proposal']}" for each in missed]
    for each in gateway.api("GET", f"/tenants/{TENANT}/backends/{name}")["failures"][:1]:
        denied = ", ".join(f"{one['kind']} {one['what']}" for one in each["denials"][-3:])
        parts.append(f"page: {each['detail']}; denied: {denied or 'nothing known'}; {' / '.join(each['stderr'][-2:])}")
    return "; ".join(parts)[:MAX_WHY]


def measure_all(gateway: Gateway, servers: Sequence[Server], directory: Path, *, shows: bool) -> None:
    counts = Counter[str]()
    print("| server | from | outcome | added, or why not |")
    print("|---|---|---|---|")
    for server in servers:
        began = time.monotonic()
        if server.origin == "image" and ENGINE not in os.environ:
            outcome = Outcome("skipped", NO_ENGINE)
        else:
            outcome = measured(gateway, server, directory, shows=shows)
        counts[outcome.words] += 1
        about = [json.dumps(each) for each in outcome.added] + ([outcome.why] if outcome.why else [])
        text = "; ".join(about).replace("|", "/").replace("\n", " ")
        print(f"| {server.name} | {server.origin} | {outcome.words} | {text} |", flush=True)
        print(f"  {server.name} took {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print("; ".join(f"{count} {words}" for words, count in counts.most_common()), f"of {len(servers)}")


# --- the second session


def by_hand(server: Server, about: Mapping[str, Any], directory: Path) -> tuple[list[str], Path]:
    """Installs the same version without the gateway; the command line of its program, and its folder."""
    package, folder = about["package"], directory / f"by-hand-{server.name}"
    folder.mkdir()
    if package["registry"] == "npm":
        npm = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run([*npm, "--prefix", str(folder), f"{package['name']}@{package['version']}"], check=True)
        told = json.loads((folder / "node_modules" / package["name"] / "package.json").read_text())
        bins = told["bin"] if isinstance(told["bin"], dict) else {package["program"]: told["bin"]}
        entry = folder / "node_modules" / package["name"] / bins[package["program"]]
        return [str(shutil.which("node")), str(entry.resolve())], folder
    uv = [str(Path(sys.executable).parent / "uv")]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    python = str(folder / "venv/bin/python")
    name = f"{package['name']}=={package['version']}"
    subprocess.run([*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, name], check=True)
    return [python, str(folder / "venv/bin" / package["program"])], folder


async def first_answer_s(gateway: Gateway, name: str) -> float:
    """From nothing to the list of tools; waits until the process is gone."""
    session = gateway.session(name)
    began = time.perf_counter()
    await session.request("initialize", HELLO, OPEN_S)
    await session.notify("notifications/initialized")
    await offered(session)
    took = time.perf_counter() - began
    await session.close()
    for _ in range(200):
        running = gateway.api("GET", f"/tenants/{TENANT}/processes")["items"]
        if not any(each["backend"] == name for each in running):
            break
        await asyncio.sleep(0.05)
    return took


def compare(gateway: Gateway, servers: Sequence[Server], directory: Path, rounds: int) -> None:
    """Sessions of the package and of the program by hand in turns, each in the tier that the node picks."""
    print("| server | by hand s | package s | ratio | rounds | tiers |")
    print("|---|---:|---:|---:|---:|---|")
    for server in servers:
        file = directory / f"{server.name}.json"
        file.write_text(server.text)
        name = str(gateway.imported(file, server.env)["name"])
        about = gateway.api("GET", f"/tenants/{TENANT}/backends/{name}")
        argv, folder = by_hand(server, about, directory)
        hand = f"{name}-by-hand"
        body = {"name": hand, "command": argv[0], "args": argv[1:], "sandbox": {"read": [str(folder)]}}
        gateway.api("POST", f"/tenants/{TENANT}/backends", body)
        took: dict[str, list[float]] = {hand: [], name: []}
        for number in range(rounds + 1):
            for each in sorted(took, reverse=bool(number % 2)):
                seconds = asyncio.run(first_answer_s(gateway, each))
                if number:  # the first session of each is not counted
                    took[each].append(seconds)
        tiers = sorted({str(tier) for each in took for tier in tiers_of(gateway, each)})
        medians = [statistics.median(took[each]) for each in (hand, name)]
        row = (server.name, f"{medians[0]:.3f}", f"{medians[1]:.3f}", f"{medians[1] / medians[0]:.3f}", str(rounds))
        print("|", " | ".join([*row, ", ".join(tiers)]), "|", flush=True)


def tiers_of(gateway: Gateway, name: str) -> list[Any]:
    about = gateway.api("GET", f"/tenants/{TENANT}/backends/{name}")
    return [each["tier"] for each in about["sandbox_report"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tools", action="store_true", help="print what each server offers")
    parser.add_argument("--second-session", action="store_true", help="compare a package with the program by hand")
    parser.add_argument("--rounds", type=int, default=20, help="of --second-session")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-", dir="/var/tmp")))
        scratch.chmod(0o755)
        places = {"folder": str(stack.enter_context(folder_of_reader()))}
        if not options.second_session:
            database, _ = stack.enter_context(postgres_server())
            places["postgres"] = database.replace("127.0.0.1", "localhost")
            redis = stack.enter_context(RedisServer())
            places["redis"] = f"redis://localhost:{redis.port}"
            places["http"] = stack.enter_context(http_server())
        names = options.names or (SECOND if options.second_session else ())
        servers = servers_of(names, places)
        gateway = Gateway(scratch, {"TRUNKLINE_LOG_LEVEL": "warning"})
        stack.callback(gateway.node.stop)
        if options.second_session:
            compare(gateway, servers, scratch, options.rounds)
        else:
            measure_all(gateway, servers, scratch, shows=options.tools)


if __name__ == "__main__":
    main()
