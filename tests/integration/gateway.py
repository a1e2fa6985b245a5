"""A gateway as a user runs it: the real command, in a process of its own, with an empty data directory."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from app.jail.spawner import tree
from tests.backend_defaults import announced, count, count_samples
from tests.programs import Program, run_program

LEAST_MARK_OF_TEMPLATES = 1 << 62  # app.jail.spawner.tree.marks
ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0  # two cores, several gateways starting at once, and whatever else runs on this machine
STOP_S = 45.0  # the drain (30 s) and the stop ladder
NO_LIMITS = dict.fromkeys(
    (
        "sessions",
        "sessions_per_principal",
        "processes",
        "in_flight",
        "requests_per_second",
        "burst",
        "memory_mb",
        "spawns_per_minute",
        "parked_sessions",
        "frozen_sessions",
    )
)
ECHO = [sys.executable, "-I", "-S", str(ROOT / "bench/echo_backend.py")]
MISBEHAVE = [sys.executable, "-I", "-S", str(ROOT / "tests/integration/misbehave.py")]


class Gateway:
    """One running node and its administrator."""

    FIRST = ""  # Python that the process runs before the command
    WORDS: Sequence[str] = ()  # more of the command line

    def __init__(self, data_dir: Path, *, admin_key: str | None = None, **settings: str) -> None:
        """`admin_key` is one that the database has already."""
        self.data_dir = data_dir
        # In the environment of every backend: finds them, and what they started, wherever they ended up.
        self.mark = f"trunkline-test-{uuid.uuid4().hex}"
        self.environment = {
            **os.environ,
            "TRUNKLINE_DATA_DIR": str(data_dir),
            **{f"TRUNKLINE_{name}": value for name, value in settings.items()},
        }
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self._log_file = self._open_log()
        where = ("--host", "127.0.0.1", "--port", "0", "--data-dir", str(data_dir))
        words = ["serve", *where, *self.WORDS]
        first = f"{self.FIRST}\n{announced().first}"
        self.process = Program(words, self.environment, stderr=self._log_file, first=first)
        try:
            self.url = self._wait_until_ready()
            self.admin_key: str = admin_key or self._make_admin_key()
        except BaseException:
            self.kill()
            self.close()
            raise
        self.http = httpx2.Client(base_url=self.url, timeout=60, headers=_bearer(self.admin_key))

    def _open_log(self) -> IO[bytes]:
        """What the process has as stderr."""
        return self.log.open("ab")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def host(self) -> str:
        """HOST:PORT."""
        return urlsplit(self.url).netloc

    def _wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        output, deadline = b"", time.monotonic() + READY_S
        while True:
            for line in output.decode().splitlines(keepends=True):
                if line.startswith("listening on ") and line.endswith("\n"):
                    return line.removeprefix("listening on ").strip().rstrip("/")
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no ready line within {READY_S} s\n{self.log_tail()}")
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                raise AssertionError(f"the gateway ended before it was ready\n{self.log_tail()}")
            output += chunk

    def _make_admin_key(self) -> str:
        return str(self.cli("keys", "create", "--tenant", "default", "--scope", "platform:admin")["key"])

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    # --- administration

    def cli(self, *words: str) -> Any:
        """A subcommand with --json, on this gateway's database."""
        done = run_program([*words, "--json"], self.environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def api(self, method: str, path: str, body: Any = None, *, key: str | None = None, expect: int = 0) -> Any:
        """A REST request; asserts success (or exactly `expect`) and returns the decoded answer."""
        response = self.http.request(
            method, "/api/v1" + path, json=body, headers=_bearer(key) if key is not None else None
        )
        ok = response.status_code == expect if expect else response.is_success
        assert ok, f"{method} {path}: {response.status_code} {response.text[:500]}"
        return response.json() if response.content else None

    def add_tenant(self, name: str | None = None, **limits: Any) -> str:
        """A tenant without limits, but for those given."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        self.api("POST", "/tenants", {"name": name, "limits": {**NO_LIMITS, **limits}})
        return name

    def add_backend(self, tenant: str, name: str, command: str, args: Sequence[str] = (), **fields: Any) -> str:
        """Registers a stdio server; returns the base of its addresses (append /mcp or /sse)."""
        named = [*args, *fields.get("env", {}).values()]
        fields["env"] = {"TEST_MARK": self.mark, **fields.get("env", {})}
        fields.setdefault("sandbox", {"write": scratch(named)})
        fields.setdefault("max_processes", 1000)
        defaults = announced()
        body = {"name": name, "command": command, "args": list(args), **defaults.applied([command, *args], fields)}
        self.api("POST", f"/tenants/{tenant}/backends", body)
        if defaults.forks and body.get("start") in ("fork", "auto"):
            for node in self.siblings():  # else the first sessions on each would have processes that are executed
                node.api("POST", f"/tenants/{tenant}/backends/{name}:check")
                for each in node.api("GET", f"/tenants/{tenant}/processes?limit=200")["items"]:
                    if (each["backend"], each["start"]) == (name, "template"):
                        count(f"template in tier: {each['tier']}")
        return f"{self.url}/t/{tenant}/{name}"

    def serving(self, tenant: str) -> list[dict[str, Any]]:
        """The tenant's processes on all nodes, as this one lists them, without the templates of forks."""
        found = self.api("GET", f"/tenants/{tenant}/processes?limit=200")["items"]
        return [each for each in found if each["start"] != "template"]

    def siblings(self) -> "list[Gateway]":
        """The nodes of its database that run, with itself."""
        return [self]

    def key(self, tenant: str, scopes: Sequence[str] = ("mcp:connect",)) -> str:
        created = self.api("POST", f"/tenants/{tenant}/keys", {"name": "test", "scopes": list(scopes)})
        return str(created["key"])

    def endpoint(self, argv: Sequence[str], *, tenant: str | None = None, **fields: Any) -> "Endpoint":
        """A backend for this command line in a tenant of its own (or this one), and a key for it."""
        tenant = tenant or self.add_tenant()
        name = f"b-{uuid.uuid4().hex[:8]}"
        base = self.add_backend(tenant, name, argv[0], argv[1:], **fields)
        return Endpoint(self, tenant, name, base, self.key(tenant))

    def metrics(self) -> dict[str, float]:
        """Every sample as `name` or `name{label="value",…}` -> value."""
        text = httpx2.get(self.url + "/metrics", timeout=30).text
        return {
            sample.name + _labels(sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    # --- processes

    def backends(self) -> list[psutil.Process]:
        """Every living process that was started for a backend of this gateway, adopted or not. What only wraps it in
        namespaces is not counted, nor is a template: it serves nobody."""
        return [each for each in marked(self.mark) if name_of(each) != "bwrap" and not is_template(each.pid)]

    def processes_of(self, stdin: int) -> list[psutil.Process]:
        """The backend with this stdin, and what it has started that kept it."""
        return [each for each in self.backends() if stdin_of(each.pid) == stdin]

    async def wait_for_backends(self, count: int, within_s: float = 30.0) -> float:
        """Waits until exactly `count` backend processes live; returns the seconds that took."""
        started = time.monotonic()
        await until(lambda: len(self.backends()) == count, within_s, lambda: f"{len(self.backends())} processes")
        return time.monotonic() - started

    def family(self) -> list[psutil.Process]:
        """The gateway's living descendants: its spawner and the backends."""
        try:
            return [each for each in psutil.Process(self.pid).children(recursive=True) if is_alive(each)]
        except psutil.NoSuchProcess:
            return []

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM; asserts a clean exit that leaves no process behind."""
        family = self.family()
        if announced().fields:
            count_samples(self.metrics())
        self.terminate()
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running {STOP_S} s after SIGTERM\n{self.log_tail()}") from None
        left = [each for each in {*family, *marked(self.mark)} if is_alive(each)]
        assert not left, f"left behind: {left}"
        assert status == 0, f"exit status {status}\n{self.log_tail()}"

    def close(self) -> None:
        """Gives back what this object holds; kills what a failed test left running."""
        if self.process.poll() is None:
            self.kill()
        for each in marked(self.mark):
            with suppress(psutil.NoSuchProcess):  # it was about to end by itself
                each.kill()
        if hasattr(self, "http"):
            self.http.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log_file.close()


class Endpoint:
    """One backend behind a gateway, and a key that may use it."""

    def __init__(self, gateway: Gateway, tenant: str, name: str, base: str, key: str) -> None:
        self.gateway, self.tenant, self.name, self.base, self.key = gateway, tenant, name, base, key

    @property
    def mcp(self) -> str:
        return self.base + "/mcp"

    @property
    def sse(self) -> str:
        return self.base + "/sse"

    @property
    def headers(self) -> dict[str, str]:
        return _bearer(self.key)


@contextmanager
def running_gateway(data_dir: Path, kind: type[Gateway] = Gateway, /, **settings: str) -> Iterator[Gateway]:
    gateway = kind(data_dir, **settings)
    try:
        yield gateway
        if gateway.process.poll() is None:
            gateway.stop()
    finally:
        gateway.close()


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie waiting for a reaper outside the gateway does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(
    condition: Callable[[], object], within_s: float = 20.0, state: Callable[[], object] = lambda: "not yet"
) -> None:
    """Waits for something that has no event for us: the life of other programs' processes, files, counters."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"after {within_s} s: {state()}"
        await anyio.sleep(0.02)  # REST takes 50 requests a second for long


def for_backends(directory: Path) -> Path:
    """A directory in this one that sandboxes may open: nothing of a gateway is in it."""
    made = directory / "for-backends"
    made.mkdir(exist_ok=True)
    return made


def may_write(directory: Path) -> dict[str, Any]:
    """The `sandbox` of a backend that is told of this directory of the test only when it runs."""
    return {"write": scratch([str(directory)])}


def scratch(texts: Sequence[str]) -> list[str]:
    """The directories of the test that these name, open to whatever user a backend runs as."""
    root = Path(tempfile.gettempdir())
    found = {Path(each) for each in texts if each.startswith((f"{root}/pytest-of-", f"{root}/trunkline-chaos-"))}
    directories = {each if each.is_dir() else each.parent for each in found}
    for each in directories:
        each.chmod(0o777)
    return sorted(map(str, directories))


def name_of(process: psutil.Process) -> str:
    """Empty if it has ended meanwhile."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def is_template(pid: int) -> bool:
    """Whether it is one that only forks (docs/forking.md)."""
    return (tree.mark_of(pid) or 0) >= LEAST_MARK_OF_TEMPLATES


def stdin_of(pid: int) -> int | None:
    """The inode of its stdin: what the servers of these tests know themselves by, as the pids of a namespace say
    nothing outside of it. None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}/fd/0").st_ino
    except OSError:
        return None


def server_at(pid: int) -> int | None:
    """The stdin of the server that a node lists with this pid: its own, or that of what wraps it in namespaces. None if
    it has ended."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]  # parents before their children
    except psutil.NoSuchProcess:
        return None
    return next((stdin_of(each.pid) for each in family if name_of(each) not in ("", "bwrap")), None)


def marked(mark: str) -> list[psutil.Process]:
    """The living processes with this mark in their environment."""
    needle, found = mark.encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if needle in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(psutil.Process(int(name)))
            except (OSError, psutil.NoSuchProcess):
                continue
    return [each for each in found if is_alive(each)]


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}" if labels else ""
