"""Homes: a directory for each tenant's backends. It is created when the first process starts and locked while one runs,
so that `trunkline homes` removes none that a process of any node on this machine uses.

Backends run as the gateway's user: modes keep other users of the machine out, not other tenants (that is the sandbox's
task).
"""

import errno
import fcntl
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from app.domain import is_home

HOME, TEMPORARY = "home", "tmp"
_MODE = 0o700
_ATTEMPTS = 3  # a home that is removed while it is opened is created again
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY = _ROOT | os.O_NOFOLLOW
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


@dataclass(frozen=True, slots=True)
class Home:
    """The directories of one tenant's processes."""

    name: str
    path: str
    tmpdir: str


class Homes:
    """The homes below one directory. Each `open` needs a `close`; a home is not removed in between."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptors: dict[str, int] = {}
        self._processes: Counter[str] = Counter()

    async def open(self, name: str) -> Home:
        """Opens a home for one more process, creates it if needed.

        Raises:
            OSError: it cannot be created, belongs to another user, is not a directory, or is being removed.
        """
        try:  # in a thread: the disk may be slow or unreachable
            descriptor = await anyio.to_thread.run_sync(_open_locked, self._root, name)
        except OSError as error:
            part = error.filename if error.filename in (HOME, TEMPORARY) else ""
            error.filename = str(self._root / name / part)
            raise
        if self._descriptors.setdefault(name, descriptor) != descriptor:
            os.close(descriptor)
        self._processes[name] += 1
        base = self._root / name
        return Home(name, str(base / HOME), str(base / TEMPORARY))

    def close(self, home: Home) -> None:
        self._processes[home.name] -= 1
        if not self._processes[home.name]:
            del self._processes[home.name]
            os.close(self._descriptors.pop(home.name))


def make_root(root: Path) -> None:
    """Creates the directory of all homes. Raises OSError."""
    root.mkdir(mode=_MODE, parents=True, exist_ok=True)


def is_left(old: Path) -> bool:
    """Whether the home that all tenants shared in earlier versions is still there and not empty."""
    return not old.is_symlink() and old.is_dir() and bool(os.listdir(old))


def adopt(old: Path, root: Path, name: str) -> bool:
    """Moves the home that all tenants shared to the only tenant that used it. The old path becomes a symbolic link:
    arguments and variables of backends may name it.

    Returns:
        Whether there was something to move.

    Raises:
        OSError: it could not be moved, and is where it was.
    """
    _check_name(name)
    new = root / name / HOME
    with _opened(root, _ROOT) as parent:
        fcntl.flock(parent, fcntl.LOCK_EX)  # several nodes of this machine may start at once
        if not is_left(old):
            return False
        os.close(_own_directory(parent, name))
        with suppress(FileNotFoundError):
            new.rmdir()  # created, still empty
        os.rename(old, new)
        os.symlink(new, old)
        return True


@dataclass(frozen=True, slots=True)
class Found:
    """A home on the disk."""

    name: str
    path: Path
    size: int
    in_use: bool


def find(root: Path) -> Iterator[Found]:
    """The homes below the directory, by name. Slow: walks through their files.

    Raises:
        OSError: the directory cannot be read.
    """
    for name in sorted(os.listdir(root)) if root.exists() else ():
        path = root / name
        if is_home(name) and path.is_dir() and not path.is_symlink():
            yield Found(name, path, _size(path), _is_in_use(root, name))


def remove(root: Path, name: str) -> None:
    """Removes a home and its contents.

    Raises:
        BlockingIOError: a process uses it.
        OSError: it cannot be removed, or only in part.
    """
    _check_name(name)
    with _opened(root, _ROOT) as parent, _opened(name, parent=parent) as home:
        fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(home, parent, name):  # it was removed and created again
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), name)
        for *_, directory in os.fwalk(name, dir_fd=parent):
            os.fchmod(directory, _MODE)  # package caches are read-only
        shutil.rmtree(name, dir_fd=parent)  # by descriptors: symbolic links are removed, not followed


def _check_name(name: str) -> None:
    if not is_home(name):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)


@contextmanager
def _opened(path: Path | str, flags: int = _DIRECTORY, *, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_locked(root: Path, name: str) -> int:
    """Creates the home if needed; returns a descriptor with a shared lock on it."""
    _check_name(name)
    with _opened(root, _ROOT) as parent:
        for _ in range(_ATTEMPTS):
            descriptor = _own_directory(parent, name)
            try:
                _share_lock(descriptor)
                if _is_at(descriptor, parent, name):  # and it stays: removing needs the exclusive lock
                    for each in (HOME, TEMPORARY):
                        os.close(_own_directory(descriptor, each))
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def _own_directory(parent: int, name: str) -> int:
    """Creates the directory if needed; returns its descriptor. It is ours, no symbolic link, and closed to others."""
    with suppress(FileExistsError):
        os.mkdir(name, _MODE, dir_fd=parent)
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", name)
        if stat.S_IMODE(status.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(descriptor: int, parent: int, name: str) -> bool:
    """Whether the open directory is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _share_lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_in_use(root: Path, name: str) -> bool:
    """Whether somebody holds its lock. In doubt it is in use."""
    try:
        with _opened(root / name) as home:
            fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _size(path: Path) -> int:
    """The bytes of all files in it."""
    total = 0
    for directory, _, files in os.walk(path):
        for each in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, each)).st_size
    return total
