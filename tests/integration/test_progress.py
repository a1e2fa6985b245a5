"""What takes longer than a second says on a terminal what it is doing, in a line of which nothing stays; into a pipe
nothing is written. Real commands, real gateways, a real pseudo-terminal as stderr."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import IO

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Gateway, for_backends, running_gateway
from tests.integration.test_drain import call_is_in_flight, cut_off, exit_status
from tests.integration.test_nodes_command import KEY
from tests.integration.wire import wire
from tests.programs import Program, run_program
from tests.redis_servers import client_of
from tests.terminals import WITHIN_S, Terminal

GUIDE = "tenants: {%s: {limits: {sessions: 7}, guides: {style: {text: Be brief.}}}}"
# Ctrl-C works also where the suite was started with `&`.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
AT_ONCE = "from app.text.terminal import progress; progress.FIRST_S = 0.0"

STOPPING = r"^{}: 1 call in flight, at most \d+ s left; Ctrl-C again stops at once$"


class Held:
    """In front of a gateway: requests that match wait here until they are let go."""

    def __init__(self, gateway: Gateway, pattern: str) -> None:
        self._go = Event()
        go, url = self._go, gateway.url

        class Handler(BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if re.search(pattern, f"{self.command} {self.path}"):
                    assert go.wait(WITHIN_S)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                answer = httpx2.request(self.command, url + self.path, content=body, headers=headers, timeout=60)
                self.send_response(answer.status_code)
                for name in ("content-type", "etag"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - as http.server wants them

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def let_go(self) -> None:
        self._go.set()

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def held(gateway: Gateway) -> Iterator[Callable[[str], Held]]:
    made = list[Held]()

    def hold(pattern: str) -> Held:
        made.append(Held(gateway, pattern))
        return made[-1]

    yield hold
    for each in made:
        each.close()


def at_the_end(terminal: Terminal) -> list[str]:
    """What it shows before the next prompt of the shell."""
    terminal.text.write("$ ")
    terminal.text.flush()
    terminal.shows(r"^\$ $")
    return terminal.rows[:-1]


class Shell:
    """Somebody at a terminal, who knows the gateway; or a script, which has none."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.folder, self.stdout = folder, folder / "stdout"
        known = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
        self.environment = {**known, "TERM": "xterm", "TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key}

    @contextmanager
    def running(self, *words: str, **settings: str) -> Iterator[tuple[Terminal, Program]]:
        environment = {**self.environment, **{f"TRUNKLINE_{name}": value for name, value in settings.items()}}
        with Terminal() as terminal, self.stdout.open("wb") as stdout:
            program = Program(words, environment, stdout=stdout, stderr=terminal.stream, first=INTERRUPTIBLE)
            try:
                yield terminal, program
            finally:
                program.kill()
                program.wait()

    def rows_of(self, terminal: Terminal, program: Program, code: int = 0) -> list[str]:
        """What the terminal shows at the end."""
        assert program.wait(WITHIN_S) == code, terminal.written
        return at_the_end(terminal)

    def script(self, *words: str, code: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        """Without a terminal; and if there were one, the line would be there at once."""
        environment = {**self.environment, **{f"TRUNKLINE_{name}": value for name, value in settings.items()}}
        done = run_program(words, environment, first=AT_ONCE)
        assert done.returncode == code, done.stderr
        return done

    def put(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)


@pytest.fixture
def shell(gateway: Gateway, tmp_path: Path) -> Shell:
    return Shell(gateway, tmp_path)


@pytest.fixture
def tenant(gateway: Gateway) -> str:
    return gateway.add_tenant()


# --- commands over REST


def test_apply_says_which_step_it_is_at_and_a_script_reads_the_same_lines(shell, held, gateway):
    slow, path = held("POST .*/guides"), shell.put("gateway.yaml", GUIDE % "applied")
    with shell.running("apply", "-f", path, "--yes", URL=slow.url) as (terminal, program):
        terminal.shows(r"^applying 2 of 2: guide applied/style \(\d+ s\)$")
        slow.let_go()
        rows = shell.rows_of(terminal, program)
    lines = ["made tenant applied", "made guide applied/style", "trunkline: 2 made, 0 changed, 0 removed"]
    assert rows == [f"trunkline: gateway {slow.url}", *lines]
    gateway.api("DELETE", "/tenants/applied")
    done = shell.script("apply", "-f", path, "--yes")
    assert done.stderr == "".join(f"{line}\n" for line in (f"trunkline: gateway {gateway.url}", *lines))
    assert done.stdout == shell.stdout.read_text()


def test_plan_and_export_say_what_they_read_and_compare(shell, held, gateway, tenant):
    gateway.add_backend(tenant, "notes", sys.executable)
    text = f"tenants: {{{tenant}: {{backends: {{notes: {{command: {sys.executable}, env: {{TEST_MARK: x}}}}}}}}}}"
    path, at_terminal = shell.put("gateway.yaml", text), {}
    for words, pattern, shown in (
        (("plan", "-f", path), f"GET .*/tenants/{tenant}$", f"^reading tenant {tenant}"),
        (("plan", "-f", path), "POST .*:compare", f"^comparing 1 of 1: backend {tenant}/notes"),
        (("export", "--tenant", tenant), "GET .*/backends", f"^reading 1 of 1: tenant {tenant}"),
    ):
        slow = held(pattern)
        with shell.running(*words, URL=slow.url) as (terminal, program):
            terminal.shows(shown)
            slow.let_go()
            rows = shell.rows_of(terminal, program)
        assert rows[0] == f"trunkline: gateway {slow.url}"
        assert not any(re.search(shown, row) for row in rows)
        at_terminal[words] = (rows[1:], shell.stdout.read_text())
    for words, (rows, stdout) in at_terminal.items():
        done = shell.script(*words)
        assert (done.stderr.splitlines()[1:], done.stdout) == (rows, stdout)
        assert "\r" not in done.stderr


@pytest.fixture
def waits(gateway: Gateway, tenant: str, tmp_path: Path) -> Path:
    """When this file is there, the backend `waits` begins to answer."""
    folder = for_backends(tmp_path)
    (folder / "server.py").write_text(
        "import os, sys, time\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.02)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
    )
    args = [str(folder / "server.py"), str(folder / "go"), *ECHO[1:]]
    gateway.add_backend(tenant, "waits", sys.executable, args, sandbox={"write": [str(folder)]})
    return folder / "go"


def test_check_says_what_it_waits_for_and_the_result_stands_alone(shell, gateway, tenant, waits):
    words = ("backends", "check", "waits", "--tenant", tenant)
    with shell.running(*words) as (terminal, program):
        terminal.shows(r"^checking backend waits, 2 of \d: initialize \(\d+ s\)$")
        waits.touch()
        rows = shell.rows_of(terminal, program)
    assert rows == [f"trunkline: gateway {gateway.url}"]
    assert shell.stdout.read_text().startswith("ok ")
    done = shell.script(*words)
    assert done.stderr == f"trunkline: gateway {gateway.url}\n"
    assert done.stdout.startswith("ok ")


def test_a_check_that_fails_or_is_interrupted_leaves_nothing_of_it(shell, gateway, tenant, waits):
    gateway.api("PATCH", f"/tenants/{tenant}/backends/waits", {"timeouts": {"initialize_s": 3}})
    words = ("backends", "check", "waits", "--tenant", tenant)
    with shell.running(*words) as (terminal, program):
        terminal.shows("^checking backend waits")
        assert shell.rows_of(terminal, program, code=1) == [f"trunkline: gateway {gateway.url}"]
    assert re.search(r"^failure\.step +initialize$", shell.stdout.read_text(), re.MULTILINE)
    gateway.api("PATCH", f"/tenants/{tenant}/backends/waits", {"timeouts": {"initialize_s": 60}})
    with shell.running(*words) as (terminal, program):
        terminal.shows("^checking backend waits")
        program.send_signal(signal.SIGINT)
        assert shell.rows_of(terminal, program, code=130) == [f"trunkline: gateway {gateway.url}"]
    waits.touch()


OK = {"ok": True, "steps": []}
BEGUN = b'event: begun\ndata: {"step":"\\u001b[2Jstart","number":1,"of":2}\n\n: it goes on\n\n'
PROBLEM = {"title": "Service Unavailable", "status": 503, "detail": "the node is stopping", "request_id": "r1"}
STREAM, JSON = {"Content-Type": "text/event-stream"}, {"Content-Type": "application/json"}


def event(kind: str, value: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode()


@pytest.fixture
def answers() -> Iterator[tuple[str, list[tuple[int, dict[str, str], bytes]], list[str | None]]]:
    """The URL of a gateway that answers with these, one after the other, and what it was asked to accept."""
    answers, seen = list[tuple[int, dict[str, str], bytes]](), list[str | None]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.headers["Accept"])
            status, headers, body = answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answers, seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        pytest.param([(200, STREAM, BEGUN + event("result", OK))], 0, [], id="a result"),
        pytest.param([(200, STREAM, event("result", {**OK, "ok": False}))], 1, [], id="it does not work"),
        pytest.param(
            [(200, STREAM, BEGUN + event("problem", PROBLEM))],
            1,
            ["trunkline: Service Unavailable: the node is stopping", "  request id: r1"],
            id="a problem",
        ),
        pytest.param(
            [(200, STREAM, BEGUN)], 1, ["trunkline: URL does not answer: its answer has ended too early"], id="cut off"
        ),
        pytest.param([(200, JSON, json.dumps(OK).encode())], 0, [], id="a gateway that tells no steps"),
        pytest.param(
            [(503, {**JSON, "Retry-After": "0"}, b"{}"), (200, JSON, json.dumps(OK).encode())],
            0,
            [],
            id="a short pause",
        ),
        pytest.param(
            [(404, JSON, b'{"title": "Not Found", "request_id": "r2"}')],
            1,
            ["trunkline: Not Found", "  request id: r2"],
            id="refused",
        ),
    ],
)
def test_however_a_check_is_answered(shell, answers, given, code, said):
    url, to_give, seen = answers
    to_give += given
    with shell.running("backends", "check", "time", "--json", URL=url) as (terminal, program):
        rows = shell.rows_of(terminal, program, code=code)
    rows = [row.replace(url, "URL").partition(" (is the address right")[0] for row in rows]
    assert rows == ["trunkline: gateway URL", *said]
    assert seen[0] == "text/event-stream"
    assert to_give == []
    if not said:
        assert json.loads(shell.stdout.read_text())["ok"] is (code == 0)


# --- commands on this machine


def test_migrate_says_that_somebody_else_has_the_database(shell, tmp_path):
    data = tmp_path / "data"
    words = ("migrate", "--data-dir", str(data))
    said = shell.script(*words)
    with (data / "trunkline.db.migrating").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with shell.running(*words) as (terminal, program):
            terminal.shows(r"^waiting for the database \(\d+ s\)$")
            fcntl.flock(lock, fcntl.LOCK_UN)
            rows = shell.rows_of(terminal, program)
    assert rows == [f"trunkline: database {data}/trunkline.db"]
    assert said.stderr == f"{rows[0]}; it does not exist yet\n"
    assert said.stdout == shell.stdout.read_text() == "the database is up to date\n"


def test_doctor_says_what_it_checks(shell, tmp_path):
    words = ("doctor", "--json", "--data-dir", str(tmp_path / "data"))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        with shell.running(*words, REDIS_URL=url, SECRET_KEY=KEY) as (terminal, program):
            terminal.shows(r"^checking \d+ of \d+: redis \(\d+ s\)$")
            assert shell.rows_of(terminal, program, code=1) == []
        found = json.loads(shell.stdout.read_text())
        assert [each["name"] for each in found["checks"] if each["state"] == "missing"] == ["redis"]
        done = shell.script(*words, code=1, REDIS_URL=url, SECRET_KEY=KEY)
    assert done.stderr == ""
    names = [[each["name"] for each in checks["checks"]] for checks in (found, json.loads(done.stdout))]
    assert names[0] == names[1]


# --- a node that stops


class AtTerminal(Gateway):
    """Its stderr is a terminal wide enough for log lines."""

    def _open_log(self) -> IO[bytes]:
        self.environment["TERM"] = "xterm"
        self.terminal = Terminal(columns=5000)
        return self.terminal.stream

    def log_tail(self) -> str:
        return self.terminal.written[-4000:]

    def close(self) -> None:
        super().close()
        self.terminal.__exit__(None, None, None)

    def log_lines(self) -> list[dict[str, object]]:
        """Everything on the screen at the end is a whole log line, or what was said before there were any."""
        return [json.loads(row) for row in self.terminal.rows if not row.startswith("trunkline")]


class TwoAtTerminal(AtTerminal):
    WORDS = ("--nodes", "2")


async def test_a_node_that_stops_says_how_many_calls_it_waits_for(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data", AtTerminal) as gateway:
        assert isinstance(gateway, AtTerminal)
        async with wire(gateway.endpoint(ECHO)) as session, anyio.create_task_group() as tasks:
            tasks.start_soon(cut_off, session, "s")
            await call_is_in_flight(gateway)
            assert "in flight" not in gateway.terminal.written
            gateway.process.send_signal(signal.SIGINT)
            shown = await anyio.to_thread.run_sync(gateway.terminal.shows, STOPPING.format("stopping"))
            assert 20 < int(re.findall(r"\d+", shown)[-1]) <= 30
            gateway.process.send_signal(signal.SIGINT)
            assert await exit_status(gateway) == 0
        messages = [line["message"] for line in gateway.log_lines()]
        assert "stopped without draining to the end: told again to stop" in messages


async def test_nodes_that_stop_say_it_in_one_line(tmp_path: Path, redis_url: str) -> None:
    with client_of(redis_url) as client:
        client.flushdb()
    settings = {"REDIS_URL": redis_url, "SECRET_KEY": KEY}
    with running_gateway(tmp_path / "data", TwoAtTerminal, **settings) as gateway:
        assert isinstance(gateway, AtTerminal)
        async with wire(gateway.endpoint(ECHO)) as session, anyio.create_task_group() as tasks:
            tasks.start_soon(cut_off, session, "s")
            await call_is_in_flight(gateway)
            gateway.process.send_signal(signal.SIGINT)
            await anyio.to_thread.run_sync(gateway.terminal.shows, STOPPING.format("stopping [12] of 2 nodes"))
            gateway.process.send_signal(signal.SIGINT)
            assert await exit_status(gateway) == 0
        messages = [line["message"] for line in gateway.log_lines()]
        assert messages.count("stopped without draining to the end: told again to stop") >= 1


# --- scripts

WAITING = '. scripts/_venv.sh; with_progress "fetching 3 packages" sh -c "while [ ! -e $1 ]; do sleep 0.05; done"'


def script(terminal: Terminal, text: str, *words: str) -> subprocess.Popen[bytes]:
    """With the terminal as its own, as a shell has it."""
    own = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGINT, signal.SIG_DFL); "  # whoever runs the tests may ignore it, as `&` does
        "os.execvp('sh', sys.argv[1:])"
    )
    command = [sys.executable, "-c", own, "sh", "-euc", text, "sh", *words]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=terminal.stream, env={**os.environ, "TERM": "xterm"}, start_new_session=True
    )


def test_scripts_say_what_they_install(tmp_path: Path) -> None:
    with Terminal() as terminal, script(terminal, f"{WAITING}; say done", str(tmp_path / "go")) as process:
        terminal.shows(r"^fetching 3 packages \(([2-9]|\d\d) s\)$")
        (tmp_path / "go").touch()
        terminal.shows("^== done$")
        assert process.wait(WITHIN_S) == 0
        assert terminal.rows == ["== done"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_script_that_is_interrupted_removes_the_line(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C reaches what it runs as well; a script that is told to end does so when that is over."""
    with Terminal() as terminal, script(terminal, WAITING, str(tmp_path / "go")) as process:
        terminal.shows("^fetching 3 packages")
        if number is signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
            (tmp_path / "go").touch()
        assert process.wait(WITHIN_S) == code
        assert at_the_end(terminal) == []


def test_a_script_without_a_terminal_says_nothing(tmp_path: Path) -> None:
    """And the status of the command is that of the function, also under `set -e`."""
    text = '. scripts/_venv.sh; with_progress "waiting" sleep 1.5; with_progress "it" sh -c "exit 7" || say "ended: $?"'
    done = subprocess.run(["sh", "-euc", text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "== ended: 7\n")
