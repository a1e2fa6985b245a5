"""A process inside a wrapper (bubblewrap): when it runs, how it is signalled, how it ended.

The wrapper is our child. Its own child is the first process of a pid namespace; the child of that is the program.
"""

import contextlib
import errno
import json
import os
import signal

from app.jail.spawner import tree
from app.jail.spawner.wire import SHELL, TAKES_PIPES, WRAPPER_STAGE, Report

LOOK_S, LOOK_LATER_S = 0.002, 0.02  # between two looks whether the program runs
_LATER_S = 0.2
_READ_BYTES = 4096
# What runs inside before the program, as the same process: setpriv becomes another user, the shell takes the pipes.
_SETPRIV = b"setpriv"
_SHELL = f"{SHELL}\0-c\0{TAKES_PIPES}".encode()
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # exit statuses of these
_BY_SIGNAL = 128
_REASONS = {_NOT_EXECUTABLE: errno.EACCES, _NOT_FOUND: errno.ENOENT}


class Inner:
    """What the wrapper writes to its status pipe: the pid of its child, and an exit status once the program has run."""

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        os.set_blocking(self._source, False)
        self._text = b""
        self._first = 0  # the first process inside
        self._code: int | None = None

    def forked(self) -> None:
        """Closes the wrapper's end here."""
        os.close(self.sink)

    def close(self) -> None:
        os.close(self._source)

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._source, _READ_BYTES):
                self._text += piece
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            told = json.loads(line)
            self._first = told.get("child-pid", self._first)
            self._code = told.get("exit-code", self._code)

    def runs(self) -> bool:
        """Whether the program has been executed."""
        self.read()
        return self._first != 0 and any(map(_is_program, tree.children(self._first)))

    def has_run(self) -> bool:
        """After its end: whether the program was executed, so fast that it was not noticed."""
        return self._code is not None and self._code not in _REASONS

    def signal(self, signum: int) -> None:
        """Signals the program's process group. The first process inside is in it and does not mind."""
        if self._first:
            tree.send_group(self._first, signum)

    def correct(self, report: Report) -> None:
        """Says how the program ended, in the report of how the wrapper did."""
        signum = (self._code or 0) - _BY_SIGNAL
        if signum in signal.valid_signals() and report.pop("code", None) is not None:
            report["signal"] = signum

    def failure(self, process_id: str) -> Report:
        """Why the program was not executed. The wrapper has written the details to its stderr."""
        number = _REASONS.get(self._code or 0, errno.EIO)
        what = "the program cannot be executed inside" if self._code is not None else "the sandbox cannot be made"
        return {"event": "failed", "id": process_id, "errno": number, "stage": WRAPPER_STAGE, "message": what}


def _is_program(pid: int) -> bool:
    """In this order: what is asked later may be of a later program. In the middle of an exec there are no arguments."""
    if not tree.has_executed(pid) or tree.name(pid) == _SETPRIV:
        return False
    arguments = tree.arguments(pid)
    return bool(arguments) and not arguments.startswith(_SHELL)


def look_again_s(youngest_s: float) -> float:
    """When to look again, with the youngest of the starting processes as old as this."""
    return LOOK_S if youngest_s < _LATER_S else LOOK_LATER_S
