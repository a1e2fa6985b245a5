"""Directories that are made and removed so that no symbolic link is followed and nothing is another user's."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.jail.sandbox.uids import is_of_tenant

MODE = 0o700
ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
DIRECTORY = ROOT | os.O_NOFOLLOW
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


@contextmanager
def opened(path: Path | str, flags: int = DIRECTORY, *, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def own(parent: int, name: str, *, of_tenant: bool = False) -> int:
    """Creates the directory if needed; returns its descriptor. It is ours, no symbolic link, and closed to others.

    `of_tenant`: root also takes one that it has given to the user of a tenant, as whom processes run in it.
    """
    with suppress(FileExistsError):
        os.mkdir(name, MODE, dir_fd=parent)
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() and not (of_tenant and os.geteuid() == 0 and is_of_tenant(status.st_uid)):
            raise PermissionError(errno.EPERM, "it belongs to another user", name)
        if stat.S_IMODE(status.st_mode) != MODE:
            os.fchmod(descriptor, MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_at(descriptor: int, parent: int, name: str) -> bool:
    """Whether the open directory is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False


def share_lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def remove_tree(parent: Path | int, name: str) -> None:
    """Removes a directory with everything in it; one that is gone is no error.

    Directories in it are moved up before they are emptied: however deep they are, that takes no recursion, no long path
    and two descriptors.
    """
    with _parent(parent) as descriptor, suppress(FileNotFoundError), _unlocked(descriptor, name) as top:
        _empty(top, top)
        while moved := os.listdir(top):
            for each in moved:
                with _unlocked(top, each) as directory:
                    _empty(directory, top)
                os.rmdir(each, dir_fd=top)
        os.rmdir(name, dir_fd=descriptor)


def _empty(directory: int, top: int) -> None:
    """Removes what is in it, but for directories, which become directories of `top`, with names of our own."""
    for name in os.listdir(directory):
        if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
            with _unlocked(directory, name):  # to be moved it must be writable: its `..` changes
                os.rename(name, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=directory)


@contextmanager
def _unlocked(parent: int, name: str) -> Iterator[int]:
    """Opens a directory that may be closed, or read-only as in caches of packages."""
    with opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, parent=parent) as place:
        os.chmod(f"/proc/self/fd/{place}", MODE)  # this very directory
    with opened(name, parent=parent) as directory:
        yield directory


@contextmanager
def _parent(parent: Path | int) -> Iterator[int]:
    if isinstance(parent, int):
        yield parent
    else:
        with opened(parent) as descriptor:
            yield descriptor


def size(path: Path) -> int:
    """The bytes that all files in it occupy, but for those so deep that no path names them. A process may have made
    directories deeper than a recursion can be."""
    total, waiting = 0, [os.fspath(path)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for each in entries:
                if each.is_dir(follow_symlinks=False):
                    waiting.append(each.path)
                else:
                    total += each.stat(follow_symlinks=False).st_size
    return total
