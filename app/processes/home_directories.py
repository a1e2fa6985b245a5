"""Directories that are made and removed so that no symbolic link is followed and nothing is another user's."""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def own(parent: int, name: str, *, of_anybody: bool = False) -> int:
    """Creates the directory if needed; returns its descriptor. It is ours, no symbolic link, and closed to others.

    `of_anybody`: root also takes one that belongs to another user, as whom processes run in it.
    """
    with suppress(FileExistsError):
        os.mkdir(name, MODE, dir_fd=parent)
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() and not (of_anybody and os.geteuid() == 0):
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
    """Removes a directory with everything in it; one that is gone is no error."""
    with _parent(parent) as descriptor, suppress(FileNotFoundError):
        for *_, directory in os.fwalk(name, dir_fd=descriptor):
            os.fchmod(directory, MODE)  # package caches are read-only
        shutil.rmtree(name, dir_fd=descriptor)  # by descriptors: symbolic links are removed, not followed


@contextmanager
def _parent(parent: Path | int) -> Iterator[int]:
    if isinstance(parent, int):
        yield parent
    else:
        with opened(parent) as descriptor:
            yield descriptor


def size(path: Path) -> int:
    """The bytes that all files in it occupy."""
    total = 0
    for directory, _, files in os.walk(path):
        for each in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, each)).st_size
    return total
