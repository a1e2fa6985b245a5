"""The store: what is installed on this node, in one folder for each lock.

A folder is made beside its place, with a lock on it while that is under way, and gets its name when it is complete. It
is read-only then, and everybody may read it. Whoever uses it holds a lock on it, so that no node of this machine
removes it.
"""

import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from app.backends.packages._programs import Program
from app.backends.packages.workshop import InstallFailed
from app.processes import directories

MANIFEST = ".trunkline.json"
_BUILDING = ".building-"
_is_lock = re.compile(r"[0-9a-f]{64}").fullmatch
_OF_TOOLS = ("cache", "home", "tmp", "files")  # what is not kept of a build
_READ_ONLY = 0o555
MAX_FILES = 200_000
UNUSED_S = 3600.0  # a folder that is not used is kept so long after it was used last


@dataclass(frozen=True, slots=True)
class Building:
    """A folder in the making, with a lock on it; `close` removes it, unless it has been given its name."""

    place: Path
    descriptor: int

    def put(self, name: str, text: str) -> None:
        """Writes a file of our own, whatever has its name."""
        path = self.place / name
        with suppress(FileNotFoundError):
            os.unlink(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w") as file:
            file.write(text)

    def close(self) -> None:
        os.close(self.descriptor)
        directories.remove_tree(self.place.parent, self.place.name)


class Store:
    """Everything blocks: to be called in threads. `root` is made when it is needed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held: dict[str, int] = {}  # descriptors with a shared lock

    def close(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])

    def clean(self) -> int:
        """Removes what is half made and nobody makes any more; returns how many folders. For the start of a node."""
        removed = 0
        for name in self._names():
            if name.startswith(_BUILDING) and self._is_free(name):
                directories.remove_tree(self.root, name)
                removed += 1
        return removed

    def find(self, lock: str) -> Path | None:
        """The folder of this lock, which stays from now on; None if it is not installed."""
        place = self.root / lock
        if lock in self._held and place.is_dir():
            return place
        if (gone := self._held.pop(lock, None)) is not None:  # somebody has removed it
            os.close(gone)
        if not _is_lock(lock):
            raise ValueError(lock)
        try:
            descriptor = os.open(place, directories.DIRECTORY)
        except FileNotFoundError:
            return None
        directories.share_lock(descriptor)
        if not os.path.exists(place):  # it has been removed meanwhile
            os.close(descriptor)
            return None
        os.utime(descriptor)
        self._held[lock] = descriptor
        return place

    def programs(self, lock: str) -> Mapping[str, Program]:
        """Those of an installed package, by name."""
        told = json.loads((self.root / lock / MANIFEST).read_text(encoding="utf-8"))
        return {name: Program(**each) for name, each in told["programs"].items()}

    def begin(self) -> "Building":
        """A new folder in which something is installed."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self.root))
        descriptor = os.open(place, directories.DIRECTORY)
        directories.share_lock(descriptor)
        return Building(place, descriptor)

    def keep(
        self, building: Building, lock: str, programs: Callable[[Path], Mapping[str, Program]], links: Mapping[str, str]
    ) -> None:
        """Gives a folder that is complete its name. Nothing may run in it any more. `programs` finds those in it, when
        it is known that there is nothing in it but files. `links`: the symbolic links that may lead out of it.

        Raises:
            InstallFailed: there is something in it that must not be.
        """
        _seal(building.place, links)
        manifest = {"programs": {name: asdict(each) for name, each in programs(building.place).items()}}
        building.put(MANIFEST, json.dumps(manifest))
        os.chmod(building.place / MANIFEST, 0o444)
        os.chmod(building.place, _READ_ONLY)
        with _beside(self.root / f".{lock}"):
            if not (self.root / lock).exists():  # another node may have been faster
                os.rename(building.place, self.root / lock)

    def forget_unused(self, wanted: Collection[str], in_use: Collection[str]) -> list[str]:
        """Removes folders whose locks are neither `wanted` by a backend nor `in_use` by a process of this node, and
        that nobody on this machine has used for UNUSED_S."""
        removed = list[str]()
        for name in self._names():
            if not _is_lock(name) or name in wanted or name in in_use or not self._is_old(name):
                continue
            if (descriptor := self._held.pop(name, None)) is not None:
                os.close(descriptor)
            if self._is_free(name):
                doomed = f"{_BUILDING}{name}"
                os.rename(self.root / name, self.root / doomed)
                directories.remove_tree(self.root, doomed)
                removed.append(name)
        return removed

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []

    def _is_old(self, name: str) -> bool:
        try:
            return time.time() - os.stat(self.root / name).st_mtime > UNUSED_S
        except FileNotFoundError:
            return False

    def _is_free(self, name: str) -> bool:
        """Whether nobody holds it. In doubt somebody does."""
        try:
            with directories.opened(self.root / name) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """One at a time, of all nodes on this machine."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _seal(place: Path, links: Mapping[str, str]) -> None:
    """Makes everything this user's, readable for all, and writable for nobody. Raises InstallFailed."""
    for name in _OF_TOOLS:  # among them what signs in at registries
        directories.remove_tree(place, name)
    count = 0
    real = os.path.realpath(place)
    try:
        for folder, names, files, opened in os.fwalk(place, topdown=False, follow_symlinks=False):
            count += len(names) + len(files)
            if count > MAX_FILES:
                raise InstallFailed(f"it has more than {MAX_FILES} files")
            for name in (*files, *names):
                _seal_entry(name, opened, os.path.relpath(os.path.join(folder, name), place), real, links)
            _own(opened, 0o755 if folder == str(place) else 0o555)  # the folder itself is not complete yet
    except RecursionError:
        raise InstallFailed("it has too many directories in each other") from None


def _seal_entry(name: str, opened: int, path: str, real: str, links: Mapping[str, str]) -> None:
    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
    shown = ascii(path[:200])[1:-1]
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(name, dir_fd=opened)
        leads = os.path.realpath(os.path.join(real, os.path.dirname(path), target))
        if links.get(path) != target and not leads.startswith(real + "/"):
            raise InstallFailed(f"{shown} is a symbolic link that leads out of the package")
        return
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise InstallFailed(f"{shown} is neither a file nor a directory of the package alone")
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    try:
        _own(descriptor, 0o555 if status.st_mode & 0o111 else 0o444)
    finally:
        os.close(descriptor)


def _own(descriptor: int, mode: int) -> None:
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.fchown(descriptor, os.geteuid(), os.getegid())
    os.fchmod(descriptor, mode)
