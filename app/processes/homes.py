"""Homes: a directory of its own for the backends of each tenant. Made when the first process starts, locked while one
runs, so that `trunkline homes` removes none from under a process, on whichever node of this machine.

The node that makes a home runs as the user that backends run as: modes keep other users of the machine out, not other
tenants. That is the sandbox's task.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from app.domain import is_home

HOME, TEMPORARY = "home", "tmp"
_MODE = 0o700
_ATTEMPTS = 3  # a home that is removed while it is opened is made anew
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # some network file systems


@dataclass(frozen=True, slots=True)
class Home:
    """Where the processes of one tenant live."""

    name: str
    path: str
    tmpdir: str


@dataclass(slots=True)
class _Held:
    descriptor: int
    processes: int = 0


class Homes:
    """The homes below one directory. Each `open` needs its `close`; between them the home is not removed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, _Held] = {}

    def __repr__(self) -> str:
        return f"<Homes {str(self._root)!r} [{len(self._held)} in use]>"

    async def open(self, name: str) -> Home:
        """The home of this name, made if need be.

        Raises:
            OSError: it cannot be made, belongs to somebody else, is no directory, or is being removed.
        """
        # In a thread: the directory may be on a disk that is slow or away.
        try:
            descriptor = await anyio.to_thread.run_sync(_open_locked, self._root, name)
        except OSError as error:
            part = error.filename if error.filename in (HOME, TEMPORARY) else ""
            error.filename = str(self._root / name / part)
            raise
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = _Held(descriptor)
        else:
            os.close(descriptor)
        held.processes += 1
        base = self._root / name
        return Home(name, str(base / HOME), str(base / TEMPORARY))

    def close(self, home: Home) -> None:
        """One process less lives there."""
        held = self._held[home.name]
        held.processes -= 1
        if not held.processes:
            del self._held[home.name]
            os.close(held.descriptor)


def make_root(root: Path) -> None:
    """The directory in which homes are. Raises OSError."""
    root.mkdir(mode=_MODE, parents=True, exist_ok=True)


def is_left(old: Path) -> bool:
    """Whether here is still the home that all tenants shared in versions before this one, with something in it."""
    return not old.is_symlink() and old.is_dir() and bool(os.listdir(old))


def adopt(old: Path, root: Path, name: str) -> bool:
    """Makes the home that all tenants shared that of the only one that used it. The old path stays as a link to it:
    arguments and variables of backends may name it.

    Returns:
        False if there is nothing to be adopted.

    Raises:
        OSError: it cannot be moved; it is where it was.
    """
    _check_name(name)
    new = root / name / HOME
    with _opened(root) as parent:
        fcntl.flock(parent, fcntl.LOCK_EX)  # several nodes of this machine may start at once
        if not is_left(old):
            return False
        os.close(_own_directory(parent, name))
        with suppress(FileNotFoundError):
            new.rmdir()  # made, and nothing put there yet
        os.rename(old, new)
        os.symlink(new, old)
        return True


@dataclass(frozen=True, slots=True)
class Found:
    """A home as it is found on the disk."""

    name: str
    path: Path
    size: int
    in_use: bool


def find(root: Path) -> Iterator[Found]:
    """The homes below the directory, by name. Slow: it adds up their files.

    Raises:
        OSError: the directory cannot be read.
    """
    for name in sorted(os.listdir(root)) if root.exists() else ():
        path = root / name
        if is_home(name) and path.is_dir() and not path.is_symlink():
            yield Found(name, path, _size(path), _is_in_use(root, name))


def remove(root: Path, name: str) -> None:
    """Removes a home with all that is in it.

    Raises:
        BlockingIOError: a process lives there.
        OSError: it cannot be removed, or not whole.
    """
    _check_name(name)
    with _opened(root) as parent:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, parent, name):  # somebody else has removed it, and it was made anew
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), name)
            for *_, directory in os.fwalk(name, dir_fd=parent):
                os.fchmod(directory, _MODE)  # caches of packages are read-only
            shutil.rmtree(name, dir_fd=parent)  # through descriptors: a link in it is removed, not followed
        finally:
            os.close(descriptor)


def _check_name(name: str) -> None:
    if not is_home(name):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_locked(root: Path, name: str) -> int:
    """A descriptor of the home, which shares its lock."""
    _check_name(name)
    with _opened(root) as parent:
        for _ in range(_ATTEMPTS):
            descriptor = _own_directory(parent, name)
            try:
                _share_lock(descriptor)
                if _is_at(descriptor, parent, name):  # and stays there: whoever removes it needs the lock alone
                    for each in (HOME, TEMPORARY):
                        os.close(_own_directory(descriptor, each))
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def _own_directory(parent: int, name: str) -> int:
    """A descriptor of this directory, made if need be: ours, no link, and closed to everybody else."""
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
    """Whether this directory still has the name."""
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
    """What cannot be told counts as in use."""
    try:
        descriptor = os.open(root / name, _DIRECTORY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _size(path: Path) -> int:
    """The bytes of all files in it."""
    total = 0
    for directory, _, files in os.walk(path):
        for each in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, each)).st_size
    return total
