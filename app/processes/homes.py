"""Homes: a directory for each tenant's backends. It is created when the first process starts and locked while one runs,
so that `trunkline homes` removes none that a process of any node on this machine uses. In it are the homes of single
processes and principals (own_homes.py).

Modes keep other users of the machine out; other tenants are kept out by the sandbox.
"""

import asyncio
import errno
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread

from app.domain import BackendSpec, is_home
from app.jail.sandbox.tiers import Tier
from app.processes import directories, own_homes
from app.processes.own_homes import OwnHome

logger = logging.getLogger(__name__)

HOME, TEMPORARY = "home", "tmp"
_ATTEMPTS = 3  # a home that is removed while it is opened is created again


@dataclass(frozen=True, slots=True)
class Home:
    """The directories of one process: `own`, or else those that it shares with all others of its tenant. `within`: that
    of the template in whose directory they are."""

    name: str
    path: str
    tmpdir: str
    own: OwnHome | None = None
    within: "Home | None" = None

    @property
    def forks(self) -> str | None:
        """Where the homes of its forks are, if it is a template's."""
        return None if self.own is None else str(self.own.forks)

    @property
    def is_kept(self) -> bool:
        """Whether it is one of a principal, which lasts."""
        return self.own is not None and self.own.lasts

    @property
    def limited(self) -> tuple[str, ...]:
        """The directories for whose size, together, the process is responsible."""
        return () if self.own is None else (self.path, self.tmpdir)


class Homes:
    """The homes below one directory. Each `open` needs a `close`; a home is not removed in between."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptors: dict[str, int] = {}
        self._processes: Counter[str] = Counter()
        self._removals: set[asyncio.Future[None]] = set()
        self._forks: Counter[str] = Counter()  # by the path of their template's
        self._waiting: dict[str, Home] = {}  # closed, with forks in them

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

    async def open_for(
        self, spec: BackendSpec, tier: Tier, within: Home | None = None, *, has_forks: bool = False
    ) -> Home:
        """Opens the home of a process that is to be started for this spec, confined by this tier. With `state: keep` it
        is its principal's; else the process's own; without a sandbox the tenant's. With namespaces a process has a home
        of its own in memory, and this only says that the tenant's is in use. `within`: the home of the template whose
        fork it is; that one is `has_forks`.

        Raises:
            OSError: as `open_own`.
        """
        name = spec.home or spec.tenant
        cwd = spec.cwd if spec.cwd and not os.path.isabs(spec.cwd) else None
        if spec.has_kept_home:
            quota = None if spec.limits.disk_mb is None else spec.limits.disk_mb << 20
            return await self.open_own(name, own_homes.key_of(spec.name, spec.keeper or ()), quota, cwd)
        if tier in (Tier.BASE, Tier.KERNEL):
            return await self.open_own(name, cwd=cwd, within=within, has_forks=has_forks)
        return await self.open(name)

    async def open_own(
        self,
        name: str,
        kept: str | None = None,
        quota_bytes: int | None = None,
        cwd: str | None = None,
        within: Home | None = None,
        *,
        has_forks: bool = False,
    ) -> Home:
        """Opens a home that only this process has, or with `kept` (`own_homes.key_of`) one that lasts; in it is `cwd`.

        Raises:
            HomeFull: the home that lasts is over its quota.
            OSError: as `open`.
        """
        inside = None if within is None else within.own
        base = self._root / name if inside is None else inside.private
        make = partial(own_homes.open_own, base, kept, quota_bytes, cwd, has_forks=has_forks)
        if within is not None:
            self._forks[within.path] += 1
        shared: Home | None = None
        try:
            shared = await self.open(name)
            own = await anyio.to_thread.run_sync(make)
        except BaseException:
            self._left(within)
            if shared is not None:
                self.close(shared)
            raise
        return Home(name, str(own.path), str(own.tmpdir), own, within)

    def _left(self, within: Home | None) -> None:
        """A fork's home is gone; the last one takes the template's with it, if that has ended."""
        if within is None:
            return
        self._forks[within.path] -= 1
        if not self._forks[within.path]:
            del self._forks[within.path]
            waiting = self._waiting.pop(within.path, None)
            if waiting is not None:
                self.close(waiting)

    def close(self, home: Home) -> None:
        """What was the process's own is removed in a thread; that of a template when its last fork has ended."""
        if home.own is not None and home.path in self._forks:
            self._waiting[home.path] = home
            return
        if home.own is None:
            self._closed(home.name)
            return
        removal = asyncio.get_running_loop().run_in_executor(None, home.own.remove)
        self._removals.add(removal)
        removal.add_done_callback(lambda done: self._removed(home, done))

    async def aclose(self) -> None:
        """Waits until everything that was closed is removed."""
        while self._removals:
            await asyncio.wait(self._removals)

    def _removed(self, home: Home, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        self._closed(home.name)
        self._left(home.within)
        error = None if removal.cancelled() else removal.exception()
        if error is not None:  # the next start of a node tries again
            logger.warning("Could not remove the home of a backend process: %s", error, extra={"home": home.path})

    def _closed(self, name: str) -> None:
        self._processes[name] -= 1
        if not self._processes[name]:
            del self._processes[name]
            os.close(self._descriptors.pop(name))


def make_root(root: Path) -> None:
    """Creates the directory of all homes. Raises OSError."""
    root.mkdir(mode=directories.MODE, parents=True, exist_ok=True)


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
    with directories.opened(root, directories.ROOT) as parent:
        fcntl.flock(parent, fcntl.LOCK_EX)  # several nodes of this machine may start at once
        if not is_left(old):
            return False
        os.close(directories.own(parent, name))
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
    """The homes below the directory, by name, each followed by those in it that last. Slow: walks through their files.

    Raises:
        OSError: the directory cannot be read.
    """
    for name in sorted(os.listdir(root)) if root.exists() else ():
        path = root / name
        if is_home(name) and path.is_dir() and not path.is_symlink():
            yield Found(name, path, directories.size(path), _is_in_use(path))
            for kept in own_homes.kept_in(path):
                place = path / own_homes.KEPT / kept
                yield Found(f"{name}/{kept}", place, directories.size(place), _is_in_use(place))


def remove(root: Path, name: str) -> None:
    """Removes a home and its contents; with `NAME/KEPT` only that home in it.

    Raises:
        BlockingIOError: a process uses it.
        OSError: it cannot be removed, or only in part.
    """
    tenant, slash, kept = name.partition("/")
    _check_name(tenant)
    if slash and not own_homes.is_key(kept):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    place = root / tenant / own_homes.KEPT if kept else root
    with directories.opened(place, directories.DIRECTORY if kept else directories.ROOT) as parent:
        _remove(parent, kept or tenant)


def _remove(parent: int, name: str) -> None:
    with directories.opened(name, parent=parent) as home:
        fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not directories.is_at(home, parent, name):  # it was removed and created again
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), name)
        directories.remove_tree(parent, name)


def _check_name(name: str) -> None:
    if not is_home(name):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)


def _open_locked(root: Path, name: str) -> int:
    """Creates the home if needed; returns a descriptor with a shared lock on it."""
    _check_name(name)
    with directories.opened(root, directories.ROOT) as parent:
        for _ in range(_ATTEMPTS):
            descriptor = directories.own(parent, name)
            try:
                directories.share_lock(descriptor)
                if directories.is_at(descriptor, parent, name):  # and it stays: removing needs the exclusive lock
                    for each in (HOME, TEMPORARY):
                        os.close(directories.own(descriptor, each))
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def _is_in_use(path: Path) -> bool:
    """Whether somebody holds its lock. In doubt it is in use."""
    try:
        with directories.opened(path) as home:
            fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
