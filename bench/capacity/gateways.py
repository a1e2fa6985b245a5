"""The gateways that are measured: trunkline as a user runs it, supergateway, and a bare bridge."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from run_peers import free_port, stop_tree, wait_ready

ROOT = Path(__file__).resolve().parents[2]
BRIDGE_PYTHON = Path(os.environ.get("BENCH_HOME", "/tmp/trunkline-bench"), "base/bin/python")
READY_S = 120.0  # other programs may keep the machine busy
PEERS = ("bridge", "supergateway")
NO_LIMITS = dict.fromkeys(
    ("sessions", "processes", "in_flight", "requests_per_second", "burst", "memory_mb", "spawns_per_minute")
)


class Endpoint:
    """Where clients go, and the process that answers."""

    def __init__(self, pid: int, url: str, headers: dict[str, str]) -> None:
        self.pid, self.url, self.headers = pid, url, headers


class Node(Endpoint):
    """A trunkline node with one backend: the command, keys on, SQLite."""

    def __init__(self, process: subprocess.Popen[bytes], base: str, environment: dict[str, str]) -> None:
        super().__init__(process.pid, f"{base}/t/bench/server/mcp", {})
        self._base, self._key = f"{base}/api/v1", ""
        self._key = self._first_key(environment)

    def _first_key(self, environment: dict[str, str]) -> str:
        words = ["keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"]
        done = subprocess.run([_trunkline(), *words], env=environment, capture_output=True, text=True, check=True)
        return str(json.loads(done.stdout)["key"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def register(self, argv: Sequence[str], fields: dict[str, Any]) -> None:
        self.ask("POST", "/tenants", {"name": "bench", "limits": NO_LIMITS | {"parked_sessions": None}})
        body = {"name": "server", "command": argv[0], "args": [*argv[1:]], "max_processes": 1000, **fields}
        self.ask("POST", "/tenants/bench/backends", body)
        key = self.ask("POST", "/tenants/bench/keys", {"name": "bench", "scopes": ["mcp:connect"]})
        self.headers = {"Authorization": f"Bearer {key['key']}"}

    def set(self, **fields: Any) -> None:
        self.ask("PATCH", "/tenants/bench/backends/server", fields)

    def processes(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "/tenants/bench/processes?limit=200")["items"])

    def parked(self) -> int:
        return int(self.ask("GET", "/tenants/bench")["use"]["parked_sessions"])


@contextlib.contextmanager
def trunkline(argv: Sequence[str], fields: dict[str, Any]) -> Iterator[Node]:
    """A node of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as data, _log() as log:
        environment = os.environ | {
            "TRUNKLINE_DATA_DIR": f"{data}/data",
            "TRUNKLINE_LOG_LEVEL": "warning",
            "TRUNKLINE_MAX_PROCESSES": "1000",
            "TRUNKLINE_POOL_WAIT_S": "120",
        }
        port = free_port()
        command = [_trunkline(), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with _running(command, port, log, environment) as process:
            _wait_until_it_answers(f"http://127.0.0.1:{port}/readyz")
            node = Node(process, f"http://127.0.0.1:{port}", environment)
            node.register(argv, fields)
            yield node


@contextlib.contextmanager
def peer(name: str, argv: Sequence[str], program: Path | None) -> Iterator[Endpoint]:
    """The bare bridge, or supergateway of this program."""
    port = free_port()
    if name == "bridge":
        script = str(ROOT / "bench/asgi_bridge.py")
        command = [str(BRIDGE_PYTHON), script, "--port", str(port), "--backend", " ".join(argv)]
    else:
        command = ["node", str(program), "--stdio", " ".join(argv), "--outputTransport", "streamableHttp"]
        command += ["--stateful", "--port", str(port), "--logLevel", "none"]
    with _log() as log, _running(command, port, log, dict(os.environ)) as process:
        yield Endpoint(process.pid, f"http://127.0.0.1:{port}/mcp", {})


@contextlib.contextmanager
def _running(
    command: list[str], port: int, log: IO[bytes], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        wait_ready(port, process, READY_S)
        yield process
    except RuntimeError as error:
        log.seek(0)
        raise RuntimeError(f"{error}: {log.read()[-600:].decode(errors='replace')}") from error
    finally:
        if process.poll() is None:
            stop_tree(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{url} does not answer") from None
            time.sleep(0.1)
        else:
            return


def _log() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _trunkline() -> str:
    return str(Path(sys.executable).with_name("trunkline"))
