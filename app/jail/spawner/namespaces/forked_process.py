"""A fork in its room, as the spawner sees it, in the place of _wrapped_process.Inner: the first process of the room
ends as the program has ended, and with it everything in the room."""

import errno
import os
import signal

from app.jail.spawner import tree
from app.jail.spawner.namespaces import _entering as gate
from app.jail.spawner.namespaces import first_process as room
from app.jail.spawner.namespaces.orders import RoomReport
from app.jail.spawner.wire import Report

_BY_SIGNAL = 128


class Inside:
    """`first`: the first process of the room. `program`: the fork."""

    def __init__(self, report: RoomReport, program: int) -> None:
        self.first, self._program = report["first"], program
        self._namespaces = report["namespaces"]

    def check(self) -> None:
        """Compares the fork with what it should be, before it is given anything of a session.

        Raises:
            OSError: it is something else.
        """
        gate.check(self._program, self._namespaces)
        if os.readlink(f"/proc/{self._program}/ns/pid") != self._namespaces["pid"]:
            raise OSError(errno.EPERM, "the fork is not in its room")
        status = gate.status_of(self._program)
        if status["NSpid"].split()[-1] != str(room.PROGRAM) or int(status["CapBnd"] + status["CapPrm"], 16):
            raise OSError(errno.EPERM, "the fork has kept capabilities, or is another process")
        if tree.parent(self.first) != os.getpid():
            raise OSError(errno.ECHILD, "the room has ended")

    def read(self) -> None:
        """There is nothing to be read: all is in how the first process ends."""

    def close(self) -> None:
        """Nor to be closed."""

    def signal(self, signum: int) -> None:
        """Signals the program's process group."""
        if tree.parent(self._program) == self.first:
            tree.send_group(self._program, signum)

    def correct(self, report: Report) -> None:
        """Says by which signal the program has ended, where it did."""
        signum = report.get("code", 0) - _BY_SIGNAL
        if signum in signal.valid_signals():
            del report["code"]
            report["signal"] = signum
