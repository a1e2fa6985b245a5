"""Homes inside the home of a tenant: of one process, removed with it, or of one principal, which last.

    TENANT.MADE/private/RANDOM/{home,tmp}    of one process
    TENANT.MADE/private/RANDOM/private/...   of the forks of that process, likewise
    TENANT.MADE/kept/BACKEND.HASH/home       of one principal of one backend

A lock on the directory says that it is in use; the kernel releases it when the node dies, however it dies.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from app.domain import NAME_PATTERN, is_home
from app.processes import _disk as disk
from app.processes import directories

PRIVATE, KEPT = "private", "kept"
HOME, TEMPORARY = "home", "tmp"
_HASH_DIGITS = 32
_is_key = re.compile(NAME_PATTERN.strip("^$") + rf"\.[0-9a-f]{{{_HASH_DIGITS}}}").fullmatch


class HomeFull(OSError):
    """A home that lasts is over its quota. `strerror` completes "it …"."""


@dataclass(frozen=True, slots=True)
class OwnHome:
    """A home that processes do not share with all others of the tenant. Close `descriptors` when the process has ended.

    `private`: the directory that is removed then.
    """

    path: Path
    tmpdir: Path
    private: Path
    descriptors: tuple[int, ...]

    @property
    def forks(self) -> Path:
        """In which those of its forks are, if it is a template's."""
        return self.private / PRIVATE

    @property
    def lasts(self) -> bool:
        return self.path.parent != self.private

    def remove(self) -> None:
        """Removes what is the process's own, and releases the rest. For a thread."""
        try:
            directories.remove_tree(self.private.parent, self.private.name)
        finally:
            for each in self.descriptors:
                os.close(each)


def key_of(backend: str, identity: Iterable[str]) -> str:
    """The name of a principal's home for a backend."""
    text = "\0".join(identity)
    return f"{backend}.{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def is_key(text: str) -> bool:
    return _is_key(text) is not None


def open_own(
    base: Path,
    kept: str | None = None,
    quota_bytes: int | None = None,
    cwd: str | None = None,
    *,
    has_forks: bool = False,
) -> OwnHome:
    """Makes the directories for one process; with `kept` its home is the one of that name, which lasts. `cwd`: relative
    to the home. `has_forks`: it is a template, in whose directory those of its forks are made.

    Raises:
        HomeFull: the home that lasts is over its quota already.
        OSError: that is not possible.
    """
    opened: list[int] = []
    private: Path | None = None
    try:
        parts = (HOME, TEMPORARY, PRIVATE) if has_forks else (HOME, TEMPORARY)
        private = _make(base, PRIVATE, secrets.token_hex(8), parts, opened)
        home = private / HOME
        if kept is not None:
            home = _make(base, KEPT, kept, (HOME,), opened) / HOME
            if quota_bytes is not None and (why := disk.over([str(home)], quota_bytes)) is not None:
                raise HomeFull(errno.EDQUOT, why, kept)
        if cwd:
            _make_below(home, cwd)
        return OwnHome(home, private / TEMPORARY, private, tuple(opened))
    except BaseException:
        if private is not None:
            directories.remove_tree(private.parent, private.name)
        for each in opened:
            os.close(each)
        raise


def _make(base: Path, kind: str, name: str, parts: Iterable[str], opened: list[int]) -> Path:
    """Makes a directory with its parts, locked as in use."""
    with directories.opened(base) as tenant:
        parent = directories.own(tenant, kind)
    try:
        directory = directories.own(parent, name)
        opened.append(directory)
        directories.share_lock(directory)
        if not directories.is_at(directory, parent, name):  # somebody removed it before it was locked
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        for part in parts:
            os.close(directories.own(directory, part, of_tenant=kind == KEPT))
    finally:
        os.close(parent)
    return base / kind / name


def _make_below(home: Path, cwd: str) -> None:
    """Makes the working directory, through no link that a process has left, for the user who owns the home."""
    with ExitStack() as opened:
        parent = opened.enter_context(directories.opened(home))
        owner = os.fstat(parent)
        for part in Path(cwd).parts:
            if part == "..":
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), cwd)
            parent = directories.own(parent, part, of_tenant=True)
            opened.callback(os.close, parent)
            if os.geteuid() == 0:
                os.fchown(parent, owner.st_uid, owner.st_gid)


def remove_leftovers(root: Path) -> int:
    """Removes the private homes of processes whose node died; returns how many. For a thread."""
    count = 0
    for name in filter(is_home, os.listdir(root)):
        place = root / name / PRIVATE
        with suppress(OSError):
            for each in os.listdir(place) if not place.is_symlink() else ():
                with suppress(OSError):
                    count += _remove_unused(place, each)
    return count


def _remove_unused(place: Path, name: str) -> bool:
    with directories.opened(place / name) as directory:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # in use, or a file system without locks
        directories.remove_tree(place, name)
    return True


def kept_in(base: Path) -> Iterator[str]:
    """The names of the homes that last of one tenant."""
    place = base / KEPT
    if place.is_dir() and not place.is_symlink():
        yield from filter(is_key, sorted(os.listdir(place)))
