"""Runs the command `trunkline` in processes of its own that need not import it first.

The suite starts it some hundred times, and importing takes a second of a processor each time. So one process per
worker has imported it, has no thread and no event loop, and forks a child for each start. The child has arguments,
environment, streams, signals and an end of its own, as if it had been started by itself; that it can be is what
`test_cli.py`, `test_gateway_command.py` and `test_nodes_command.py` show.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
MAX_REQUEST = 256 << 10  # arguments and environment


class Program:
    """One `trunkline …` that runs; as much of `subprocess.Popen` as tests use."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes],
        first: str = "",
    ) -> None:
        """Without `stdout` there is a pipe, to be read from `self.stdout`, which the caller closes. `first` is Python
        that the process runs before the command: for what is no setting."""
        sys.audit("tests.program", ["trunkline", *words])  # started.py counts them
        self.stdout: IO[bytes] | None = None
        theirs = stdout.fileno() if stdout is not None else -1
        if stdout is None:
            ours, theirs = os.pipe()
            self.stdout = os.fdopen(ours, "rb", buffering=0)
        try:
            self._status, self.pid = _starter().start(words, env, theirs, stderr.fileno(), first)
            weakref.finalize(self, self._status.close)
        finally:
            if stdout is None:
                os.close(theirs)

    @property
    def returncode(self) -> int | None:
        """As of now: nobody need poll first."""
        return self.poll()

    def poll(self) -> int | None:
        """The exit status, as `Popen` has it; None while it runs."""
        try:
            said = self._status.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # it stays there: other threads ask too
        except BlockingIOError:
            return None
        assert said, "the process that starts programs has ended"
        return int(said)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status. Raises subprocess.TimeoutExpired."""
        ended = select.poll()
        ended.register(self._status, select.POLLIN)
        ended.poll(None if timeout is None else timeout * 1000)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("trunkline", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """To a process that has ended: nothing."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_program(
    words: Sequence[str], env: Mapping[str, str], *, timeout: float = 60.0, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `trunkline WORDS…` to its end and returns what it printed; `first` as for a `Program`."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        program = Program(words, env, stdout=stdout, stderr=stderr, first=first)
        try:
            program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
            raise
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), program.returncode or 0, *texts)


class _Starter:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAX_REQUEST)
            command = [sys.executable, "-m", "tests.programs", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST)

    def start(
        self, words: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int, first: str
    ) -> tuple[socket.socket, int]:
        """A new process: where its exit status will be told, and its pid."""
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([list(words), dict(env), first]).encode()
        assert len(request) < MAX_REQUEST
        with theirs, self._lock:
            socket.send_fds(self._control, [request], [stdout, stderr, theirs.fileno()])
        status.settimeout(START_S)
        pid = int(status.recv(64))
        status.settimeout(None)
        return status, pid

    def close(self) -> None:
        """Ends it, and with it whatever a failed test has left running."""
        self._control.close()
        self._process.wait(60)


@cache
def _starter() -> _Starter:
    starter = _Starter()
    atexit.register(starter.close)
    return starter


# --- in the process that forks


class _Forks:
    """Forks a child per request until the tests are gone. In a child, `serve` returns what is to be run."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = socket.socketpair()
        for each in (self._woken, self._wakes):
            each.setblocking(False)

    def serve(self) -> list[str] | None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                    continue
                request, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 3)
                if not request:
                    self._kill_all()
                    return None
                words = self._fork(json.loads(request), descriptors)
                if words is not None:
                    return words

    def _fork(self, request: Any, descriptors: list[int]) -> list[str] | None:
        stdout, stderr, status = descriptors
        pid = os.fork()
        if pid == 0:
            words, env, first = request
            self._become(env, stdout, stderr)
            os.close(status)
            exec(first, {})
            return list(words)
        os.close(stdout)
        os.close(stderr)
        self._running[pid] = socket.socket(fileno=status)
        self._tell(self._running[pid], pid)
        return None

    def _become(self, env: dict[str, str], stdout: int, stderr: int) -> None:
        """Leaves nothing of the parent but what it has imported."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._control, self._woken, self._wakes, *self._running.values()):
            each.close()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        os.environ.clear()
        os.environ.update(env)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ended = self._running.pop(pid, None)
            if ended is not None:
                self._tell(ended, os.waitstatus_to_exitcode(status))
                ended.close()

    def _tell(self, to: socket.socket, number: int) -> None:
        try:
            to.send(b"%d" % number)
        except OSError:  # nobody waits for it any more
            return

    def _kill_all(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while self._running and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)


def _main(descriptor: int) -> int:
    import app.node.serve
    import app.node.web_server  # noqa: F401
    from app.cli import main

    for module in (
        "connect",
        "files.commands",
        "homes",
        "importing",
        "keys",
        "node",
        "tools",
        "top.calls",
        "top.top",
        "trying.commands",
    ):
        import_module(f"app.cli.{module}")
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # collections in a child do not look at what it shares with us, which would copy it
    words = _Forks(socket.socket(fileno=descriptor)).serve()
    if words is None:
        return 0
    sys.argv = ["trunkline", *words]
    return main(words)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
