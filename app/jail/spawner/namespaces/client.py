"""The spawner's side of the maker of rooms, which it starts when it needs the first room, or one after it has died."""

import array
import fcntl
import json
import os
import signal
import socket
import sys
import termios
import time
from pathlib import Path

from app.jail.spawner import wire
from app.jail.spawner.namespaces.orders import RoomOrder

_MAIN = str(Path(__file__).with_name("__main__.py"))
_DESCRIPTOR = 3
READS_WITHIN_S = 2.0  # it forks for each order, and reads the next


class Rooms:
    """Owns the maker; it ends with the spawner."""

    def __init__(self) -> None:
        self._maker: socket.socket | None = None
        self.pid = 0
        self._unread_since = 0.0  # it has had something to read since then, or has nothing

    def order(self, order: RoomOrder, descriptors: list[int]) -> socket.socket:
        """Returns where the report will come. The descriptors are those of a RoomOrder, but for that of the report.

        Raises:
            OSError: there is no maker, or it has too much to do.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = [theirs.fileno(), *descriptors]
            try:
                try:
                    self._send(order, given)
                except (BrokenPipeError, ConnectionResetError):  # it has died
                    self.close()
                    self._send(order, given)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    def _send(self, order: RoomOrder, descriptors: list[int]) -> None:
        if self._maker is None:
            self._maker, self.pid = _started()
        if not _unread_bytes(self._maker):
            self._unread_since = time.monotonic()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        self._maker.sendmsg([json.dumps(order).encode()], rights, flags)

    def missed(self) -> None:
        """A room has not come in time. Where the maker does not even read its orders, the next one goes to another."""
        if self._maker is None or not _unread_bytes(self._maker):
            return
        if time.monotonic() - self._unread_since > READS_WITHIN_S:
            os.kill(self.pid, signal.SIGKILL)
            self.close()

    def close(self) -> None:
        if self._maker is not None:
            self._maker.close()
        self._maker, self.pid = None, 0


def _unread_bytes(end: socket.socket) -> int:
    """How much of what was sent the other end has not read: SIOCOUTQ of unix(7)."""
    return int.from_bytes(fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _started() -> tuple[socket.socket, int]:
    ours, theirs = wire.socket_pair()
    with theirs:
        try:
            arguments = [sys.executable, "-I", "-S", _MAIN, str(_DESCRIPTOR)]
            give = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _DESCRIPTOR)]
            return ours, os.posix_spawn(sys.executable, arguments, {"LANG": "C.UTF-8"}, file_actions=give)
        except BaseException:
            ours.close()
            raise
