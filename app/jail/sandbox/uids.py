"""A user id for each tenant, where the node is root: the kernel then keeps tenants out of each other's files and
processes, and both out of the gateway's.

The table is a file beside the homes, because the ids are in the homes' files: nodes that share homes share it, and it
moves with them. Each line is an id and the name of a home; of several lines with the same id the last one counts.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST, LAST = 60_000, 64_999
OF_PROBES = LAST + 1
TABLE = ".uids"  # the name of no home
_COUNT = LAST - FIRST + 1
_PRIVATE = 0o600


def uid_of(homes: Path, name: str) -> int:
    """The user id of the tenant whose home below `homes` has this name; the same at every call, on every node.

    Call it when the home is there. Where all ids are taken, that of a home that is gone is given anew. Blocks: call it
    in a thread.

    Raises:
        OSError: all ids are those of homes that are there, or the table cannot be written.
    """
    with _locked(homes / TABLE) as table:
        names = _read(table)
        for uid, each in names.items():
            if each == name:
                return uid
        uid = _free(homes, name, names)
        os.lseek(table, 0, os.SEEK_END)
        os.write(table, f"{uid} {name}\n".encode())
        os.fsync(table)
        return uid


def table_of(homes: Path) -> dict[str, int]:
    """The user ids of tenants, by the names of their homes.

    Raises:
        OSError: the table cannot be read; it is root's.
    """
    try:
        text = (homes / TABLE).read_bytes()
    except FileNotFoundError:  # no node has run as root
        return {}
    return {name: uid for uid, name in _parse(_whole_lines(text)).items()}


def is_of_tenant(uid: int) -> bool:
    """Whether it can be the user id of a tenant."""
    return FIRST <= uid <= LAST


def give(directory: Path, uid: int) -> None:
    """Makes a directory and what is in it this user's, if it is not; what is made later by that user is anyway.

    Left as they are: symbolic links; devices; files with several names, as one of them may be outside, where a process
    with other rights has made it. Blocks: call it in a thread.

    Raises:
        OSError: something cannot be changed; the next call begins again.
    """
    if directory.lstat().st_uid == uid:
        return
    try:
        for _, _, files, opened in os.fwalk(directory, topdown=False):  # the directory itself is the last
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    _give_file(name, opened, uid)
            os.fchown(opened, uid, uid)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "it has too many directories in each other", str(directory)) from None


def _give_file(name: str, directory: int, uid: int) -> None:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        is_alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if is_alone or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            os.chown(f"/proc/self/fd/{descriptor}", uid, uid)  # this very file, whatever has its name now
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    table = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
    try:
        fcntl.flock(table, fcntl.LOCK_EX)
        yield table
    finally:
        os.close(table)


def _read(table: int) -> dict[int, str]:
    """The name by id. Cuts off the beginning of a line that a node was writing when the machine stopped."""
    text = os.pread(table, os.fstat(table).st_size, 0)
    whole = _whole_lines(text)
    if whole != text:
        os.ftruncate(table, len(whole))
    return _parse(whole)


def _whole_lines(text: bytes) -> bytes:
    return text[: text.rfind(b"\n") + 1]


def _parse(lines: bytes) -> dict[int, str]:
    return {int(uid): name for uid, name in (line.split() for line in lines.decode().splitlines())}


def _free(homes: Path, name: str, names: dict[int, str]) -> int:
    """An id that nobody has. The search begins at a place of the name's own, so that nodes of one machine that do not
    share their homes hardly choose the same."""
    running = set(_owners_of_processes())
    begin = zlib.crc32(name.encode()) % _COUNT
    everyone = [FIRST + (begin + step) % _COUNT for step in range(_COUNT)]
    candidates = [uid for uid in everyone if uid not in names]
    candidates += [uid for uid in everyone if uid in names and not os.path.lexists(homes / names[uid])]
    for uid in candidates:
        if uid not in running and not _is_account(uid):
            return uid
    message = f"the user ids {FIRST} to {LAST} are all taken: remove the homes of deleted tenants (`trunkline homes`)"
    raise OSError(errno.EUSERS, message)


def _owners_of_processes() -> Iterator[int]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            yield os.stat(f"/proc/{pid}").st_uid


def _is_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
