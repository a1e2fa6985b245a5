"""What a process finds at a path in its own file system, and whether the modes there let its user have it."""

import contextlib
import ctypes
import os
import struct
from pathlib import Path

MOST_KNOWN = 4096  # paths that are remembered: a process can name new ones without end
READ, WRITE, SEARCH = 4, 2, 1  # the bits of a mode
_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_IN_ROOT = 0x10
_ACL = "system.posix_acl_access"

_libc = ctypes.CDLL(None, use_errno=True)


def open_inside(pid: int, path: str, flags: int = 0) -> int:
    """A descriptor (O_PATH) of what the process has at this path. Raises OSError."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _RESOLVE_IN_ROOT)
        found = _libc.syscall(ctypes.c_long(_SYS_OPENAT2), root, os.fsencode(path), how, ctypes.c_size_t(len(how)))
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return int(found)
    finally:
        os.close(root)


class Users:
    """Knows what the modes keep from users other than the watcher's, who may look everywhere.

    Of a directory that a user may search it is remembered.
    """

    def __init__(self) -> None:
        self._searchable: set[tuple[int, str]] = set()

    def kept_out(self, pid: int, path: str, bits: int) -> tuple[str, int] | None:
        """What is closed to the process's user, and that user: the path, or a directory on the way to it. None if
        nothing is, or it is not known: an access control list may say something else than the mode."""
        uid, gid = _user(pid)
        if uid == os.geteuid():
            return None
        for each in [str(parent) for parent in Path(path).parents][::-1]:
            if (uid, each) not in self._searchable:
                if not _permits(pid, each, uid, gid, SEARCH):
                    return each, uid
                if len(self._searchable) >= MOST_KNOWN:
                    self._searchable.clear()
                self._searchable.add((uid, each))
        return None if _permits(pid, path, uid, gid, bits) else (path, uid)


def _user(pid: int) -> tuple[int, int]:
    """The user and the group as which a process opens files."""
    with open(f"/proc/{pid}/status") as file:
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in file)}
    return int(fields["Uid"][3]), int(fields["Gid"][3])


def _permits(pid: int, path: str, uid: int, gid: int, bits: int) -> bool:
    """A process in a sandbox has no capability and no further group."""
    try:
        found = open_inside(pid, path)
    except OSError:
        return True
    try:
        status = os.fstat(found)
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        if status.st_mode >> shift & bits == bits:
            return True
        with contextlib.suppress(OSError):
            return bool(os.getxattr(f"/proc/self/fd/{found}", _ACL))
        return False
    finally:
        os.close(found)
