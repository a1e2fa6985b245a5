"""A command `trunkline` for shells, which a process that has imported everything already carries out (tests.programs).

Documents have a hundred commands, and each would import the program for a second. This one is run with the caller's
arguments, environment, folder and streams, and stopped when the caller is killed.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import MAX_REQUEST, Program

_COMMAND = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect({address!r})
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {most})
    request = [sys.argv[1:], dict(os.environ), os.getcwd(), os.getpid()]
    socket.send_fds(asked, [json.dumps(request).encode()], [1, 2])
    sys.exit(int(asked.recv(16)))
"""
_FIRST = "import os\nos.chdir({folder!r})\nos.dup2(os.open('/proc/{pid}/fd/0', os.O_RDONLY), 0)\n"


@contextmanager
def quick_trunkline(directory: Path) -> Iterator[Path]:
    """A folder for PATH, in this directory."""
    folder, address = directory / "bin", str(directory / "trunkline.socket")
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        command = folder / "trunkline"
        command.write_text(_COMMAND.format(python=sys.executable, address=address, most=MAX_REQUEST))
        command.chmod(0o755)
        thread = threading.Thread(target=_serve, args=(listener,))
        thread.start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:  # it was shut down
            return
        threading.Thread(target=_carry_out, args=(asked,), daemon=True).start()


def _end_of(program: Program, asked: socket.socket) -> int:
    """Its exit status. It is told to stop when whoever asked for it has been killed."""
    while True:
        try:
            return program.wait(0.1)
        except subprocess.TimeoutExpired:
            if select.select([asked], [], [], 0)[0]:
                program.terminate()


def _carry_out(asked: socket.socket) -> None:
    with asked:
        request, descriptors, _, _ = socket.recv_fds(asked, MAX_REQUEST, 2)
        stdout, stderr = (os.fdopen(each, "wb", buffering=0) for each in descriptors)
        with stdout, stderr:
            words, environment, folder, pid = json.loads(request)
            first = _FIRST.format(folder=folder, pid=pid)
            program = Program(words, environment, stdout=stdout, stderr=stderr, first=first)
            code = _end_of(program, asked)
        with contextlib.suppress(OSError):  # who asked has been killed
            asked.send(b"%d" % code)
