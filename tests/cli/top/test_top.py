"""`trunkline top`: what it shows, and how it is used: from scripts, in a dumb terminal, in a real one."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli.top.frame import MAX_NODES, Query, Snapshot, frame, title_line
from app.text.terminal.text import columns_of, cut
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway
from tests.integration.wire import initialize
from tests.programs import run_program

AT = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
USE = {"resident_bytes": 70 << 20, "cpu_s": 75.5, "cpu_percent": 99.4, "calls": 2, "calls_total": 30}
LOAD = {
    "host": "h", "pid": 1, "loop_lag_s": 0.012, "memory_used_bytes": 3 << 30, "memory_limit_bytes": 4 << 30,
    "descriptors_used": 100, "descriptors_limit": 1000, "connections": 1, "calls": 3,
    "backends_resident_bytes": 1200 << 20, "backends_cpu_percent": 150.0, "refuses": None,
}  # fmt: skip
NODE: dict[str, Any] = {
    "id": "gateway-1", "sessions": 2, "processes": 1, "draining": False, "problem": None, "load": LOAD,
}  # fmt: skip
PROCESS = {
    **USE, "id": "p1", "tenant": "acme", "backend": "time", "pid": 77, "state": "leased", "age_s": 3700.0,
    "session_count": 1, "node": "gateway-1", "start": "fork",
}  # fmt: skip
SESSION = {
    **USE, "id": "s1", "tenant": "acme", "backend": "time", "issuer": "key", "subject": "AAAA", "client_name": "cursor",
    "client_version": "1.2", "address": None, "age_s": 5.0, "idle_s": 1.25, "node": "gateway-1", "state": "parked",
}  # fmt: skip


def look(wanted: Query, *items: dict[str, Any], **more: Any) -> Snapshot:
    found: dict[str, Any] = {"total": len(items), "silent_nodes": [], "nodes": [NODE], **more}
    return Snapshot(AT, wanted, items, found["total"], found["silent_nodes"], found["nodes"])


# --- what is shown


def test_a_frame_has_the_nodes_what_is_looked_at_and_a_table():
    shown = frame(look(Query(), PROCESS, total=40, silent_nodes=["gateway-2"]))
    assert shown == [
        (
            "gateway-1: 2 sessions, 1 process, 1 connection, 3 calls; loop 12 ms late; memory 75 %; files 10 %; "
            "backends 1.2 GiB, 150 % cpu"
        ),
        "12:00:00  processes of all tenants by memory: 1 of 40; no answer from gateway-2",
        "",
        "  MEMORY  CPU%    CPU  CALLS  TOTAL    AGE  TENANT  BACKEND  STATE   START  SESSIONS  PID  NODE       ID",
        "70.0 MiB  99.4  1m15s      2     30  1h01m  acme    time     leased  fork          1   77  gateway-1  p1",
    ]
    assert shown[title_line(look(Query(), PROCESS))].startswith("  MEMORY")


def test_sessions_say_whose_they_are_and_tenants_are_summed_up():
    (_, _, _, _, row) = frame(look(Query("sessions", "calls", "acme"), SESSION))
    assert row.split() == [
        "70.0", "MiB", "99.4", "1m15s", "2", "30", "5.0s", "1.2s", "parked", "acme", "time", "key", "AAAA", "cursor",
        "1.2", "-", "s1", "gateway-1",
    ]  # fmt: skip
    tenant = {**USE, "cpu_percent": None, "tenant": "acme", "sessions": 3, "processes": 2}
    (_, about, _, _, row) = frame(look(Query("tenants"), tenant))
    assert about.endswith("tenants by memory: 1")
    assert row.split() == ["70.0", "MiB", "-", "1m15s", "2", "30", "3", "2", "acme"]


def test_nodes_that_are_silent_or_in_trouble_say_so_and_many_are_counted():
    silent = {**NODE, "load": None, "draining": True, "problem": "it has another SECRET_KEY"}
    busy = {**NODE, "load": {**LOAD, "refuses": "new sessions are refused: the loop is late"}}
    shown = frame(look(Query(), nodes=[silent, busy]))
    assert shown[0] == "gateway-1: 2 sessions, 1 process; does not answer; drains; it has another SECRET_KEY"
    assert shown[1].endswith("; new sessions are refused: the loop is late")
    many = frame(look(Query(), nodes=[NODE] * (MAX_NODES + 5)))
    assert many[MAX_NODES] == "... and 5 more nodes"
    assert frame(look(Query(), nodes=None))[0].startswith("12:00:00")


def test_a_problem_stands_above_what_was_seen_last_and_nothing_steers_the_terminal():
    seen = look(Query("sessions"), {**SESSION, "client_name": "\x1b[2Jevil\n", "subject": "名前"})
    shown = frame(seen, "no newer data: \x1b[31mno answer")
    assert all(line.isprintable() for line in shown)
    assert shown[2] == "no newer data: \\x1b[31mno answer"
    assert shown[title_line(seen, "x")].lstrip().startswith("MEMORY")
    assert columns_of(cut(shown[-1], 40)) <= 40


def test_a_look_is_measured_when_every_process_is():
    assert look(Query(), PROCESS).is_measured
    assert not look(Query(), PROCESS, {**PROCESS, "cpu_percent": None}).is_measured
    waits = {**SESSION, "process": None, "cpu_percent": None}
    assert look(Query("sessions"), {**SESSION, "process": "p1"}, waits).is_measured


def test_a_tenant_has_no_age():
    assert Query(sort="age").but(view="tenants").sort == "memory"
    assert Query(view="tenants").but(sort="age").sort == "memory"
    assert Query(sort="cpu").but(view="tenants") == Query("tenants", "cpu")


# --- how it is used


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A gateway with one session, which has a process."""
    with running_gateway(tmp_path_factory.mktemp("top") / "data") as gateway:
        endpoint = gateway.endpoint(ECHO)
        headers = {**endpoint.headers, "Accept": "application/json, text/event-stream"}
        httpx2.post(endpoint.mcp, json=initialize(), headers=headers, timeout=60).raise_for_status()
        yield endpoint


def environment(gateway: Gateway, **more: str) -> dict[str, str]:
    """As a user has it, with an administrator's key."""
    return {**gateway.environment, "TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key, **more}


def test_scripts_get_one_look_as_json(busy: Endpoint) -> None:
    done = run_program(["top", "--once", "--json", "--sort", "cpu"], environment(busy.gateway))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["view"], found["sort"], found["tenant"], found["total"]) == ("processes", "cpu", None, 1)
    (process,) = found["items"]
    assert (process["tenant"], process["backend"]) == (busy.tenant, busy.name)
    assert process["resident_bytes"] > 1 << 20  # one look waits until that is measured
    assert found["nodes"][0]["load"]["pid"] == busy.gateway.pid
    done = run_program(["top", "--once", "--view", "tenants"], environment(busy.gateway))
    assert done.stdout.splitlines()[-2].split()[-1] == busy.tenant


def test_an_administrator_of_a_tenant_sees_that_one(busy: Endpoint, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(busy.gateway.key(busy.tenant, ["tenant:read"]) + "\n")
    settings = {**environment(busy.gateway), "TRUNKLINE_KEY": ""}
    words = ["top", "--once", "--json", "--key-file", str(key)]
    done = run_program([*words, "--view", "sessions", "--tenant", busy.tenant], settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["nodes"], found["total"], found["items"][0]["client_name"]) == (None, 1, "t")
    for view in ("processes", "sessions", "tenants"):
        done = run_program([*words, "--view", view], settings)
        assert done.returncode == 1
        assert "give --tenant NAME" in done.stderr


def test_wrong_words_are_refused(busy: Endpoint) -> None:
    settings = environment(busy.gateway)
    for words in (["--interval", "0.1"], ["--rows", "0"], ["--view", "nodes"], ["--tenant", "UP"]):
        assert run_program(["top", *words], settings).returncode == 2
    assert run_program(["top", "--view", "tenants", "--tenant", "acme"], settings).returncode == 2
    assert run_program(["top", "--once"], {**settings, "TRUNKLINE_KEY": ""}).returncode == 2
    done = run_program(["top", "--once"], {**settings, "TRUNKLINE_URL": "http://127.0.0.1:1"})
    assert done.returncode == 1
    assert "does not answer" in done.stderr


class Terminal:
    """A pseudo-terminal with `trunkline top` in it, and what was written to it since the last look."""

    def __init__(self, descriptor: int, pid: int) -> None:
        self.descriptor, self.pid, self.written = descriptor, pid, ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        self.written = ""
        os.write(self.descriptor, keys.encode())

    def shows(self, pattern: str, within_s: float = 60.0) -> None:
        """Waits until this was written."""
        self._read_until(lambda: re.search(pattern, self.written) is not None, within_s, pattern)

    def ends(self, within_s: float = 60.0) -> int:
        """The exit status."""
        done: list[int] = []

        def has_ended() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            done.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(done)

        self._read_until(has_ended, within_s, "the end")
        while select.select([self.descriptor], [], [], 0)[0] and self._read():
            pass  # what it has written last
        return done[0]

    def _read_until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {self.written!r}"
            if select.select([self.descriptor], [], [], 0.05)[0] and not self._read():
                time.sleep(0.01)

    def _read(self) -> bool:
        """Whether there was something; not where its end has closed the other side."""
        try:
            self.written += os.read(self.descriptor, 65536).decode(errors="replace")
        except OSError:
            return False
        return True


@contextmanager
def terminal(words: list[str], settings: dict[str, str]) -> Iterator[Terminal]:
    program = "import sys; from app.cli import main; sys.exit(main())"
    pid, descriptor = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a suite that was started with `&` ignores, and a shell not
        os.execve(sys.executable, [sys.executable, "-c", program, "top", *words], settings)
    screen = Terminal(descriptor, pid)
    try:
        screen.resize(24, 200)
        yield screen
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(descriptor)


def test_in_a_terminal_keys_change_view_and_order_and_q_ends_it(busy: Endpoint) -> None:
    with terminal(["--interval", "0.5"], environment(busy.gateway, TERM="xterm")) as screen:
        screen.shows("processes of all tenants by memory")
        screen.shows(busy.tenant)
        screen.shows("q quit")
        screen.press("c")
        screen.shows("by cpu|cpu: 1")
        screen.press("s")
        screen.shows("127.0.0.1")  # the sessions' clients; of the title only the letters that change are written
        screen.press("t")
        screen.shows("SESSIONS|tenants")
        screen.resize(6, 30)
        os.kill(screen.pid, signal.SIGWINCH)
        screen.press("p")
        screen.shows("processes")
        screen.press("q")
        assert screen.ends() == 0
        assert "\x1b[?1049l" in screen.written  # the terminal is what it was


def test_in_a_terminal_a_gateway_that_is_away_is_said_and_waited_for(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        settings = environment(gateway, TERM="xterm")
        with terminal(["--interval", "0.5"], settings) as screen:
            screen.shows("by memory")
            os.kill(gateway.pid, signal.SIGSTOP)
            screen.press(" ")
            screen.press("c")
            screen.shows("asking for")
            os.kill(gateway.pid, signal.SIGCONT)
            screen.shows("by cpu: 0|cpu: 0")
            gateway.stop()
            screen.written = ""
            screen.shows("no newer data")
            screen.press("\x03")
            assert screen.ends() == 130


def test_a_terminal_is_what_it_was_when_top_is_told_to_end(busy: Endpoint) -> None:
    with terminal([], environment(busy.gateway, TERM="xterm")) as screen:
        screen.shows("q quit")
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.ends() == 128 + signal.SIGTERM
        assert "\x1b[?1049l" in screen.written


@pytest.mark.parametrize("name", ["dumb", "no-such-terminal"])
def test_a_dumb_terminal_gets_one_look_below_the_other(busy: Endpoint, name: str) -> None:
    with terminal(["--interval", "0.5"], environment(busy.gateway, TERM=name)) as screen:
        screen.shows("(?s)by memory.*by memory")
        assert "\x1b" not in screen.written
        screen.press("\x03")
        assert screen.ends() == 130
