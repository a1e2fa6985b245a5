"""What processes have on the disk, where no file system of limited size holds it: somebody looks, and ends those that
have more than allowed.

Bounded, whatever a process makes: a look ends at the limit, every file counts for something, and a look that took long
is not repeated soon, unless the disk has lost as much meanwhile as the process may have: so that nobody gains time to
fill it by making looks slow. Not counted is what has no name any more: files that are removed while they are open.
"""

import errno
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import anyio.to_thread

from app.processes import directories
from app.processes.process import BackendProcess

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOKING_SHARE = 0.01  # of the time of one thread, for each process
HURRIED_SHARE = 0.1  # the same while the disk is being filled
MAX_DEPTH = 100  # of directories in directories: each is a descriptor while it is looked at
ENTRY_BYTES = 1 << 10  # what an empty file or a directory counts for


class _Unmeasurable(Exception):
    """The message completes "it …"."""


class _Open(NamedTuple):
    directory: int
    entries: Iterator[os.DirEntry[str]]
    closing: ExitStack


class Look(NamedTuple):
    """What was found: the end of "it …", or None if nothing is wrong. After so many seconds it is time for the next
    look, or `soonest_s` if there is much less than `free_bytes` by then."""

    found: str | None = None
    again_s: float = LOOK_EVERY_S
    soonest_s: float = LOOK_EVERY_S
    free_bytes: int = 0


class _Due(NamedTuple):
    at: float = 0.0
    soonest: float = 0.0
    free_bytes: int = 0


class DiskWatch:
    """Looks at what processes have on the disk, and ends those that have too much there."""

    def __init__(self) -> None:
        self._due: dict[BackendProcess, _Due] = {}

    async def sweep(self, places: Mapping[BackendProcess, Sequence[str]]) -> None:
        """Looks where it is time to; to be called a few times a second."""
        self._due = {process: self._due.get(process, _Due()) for process in places}
        for process, due in self._due.items():
            most = process.spec.limits.disk_mb
            if most is None or not places[process] or time.monotonic() < due.soonest or process.is_being_killed:
                continue
            try:
                if time.monotonic() < due.at:
                    free = await anyio.to_thread.run_sync(_free_bytes, places[process])
                    if due.free_bytes - free <= most << 20:
                        soonest, most_free = time.monotonic() + LOOK_EVERY_S, max(due.free_bytes, free)
                        self._due[process] = _Due(due.at, soonest, most_free)
                        continue
                seen = await anyio.to_thread.run_sync(look, places[process], most << 20)
            except OSError as error:
                seen = Look()
                if process.exit is None:  # else its home was removed meanwhile
                    logger.warning("Cannot measure the files of a backend process: %s", error)
            now = time.monotonic()
            self._due[process] = _Due(now + seen.again_s, now + seen.soonest_s, seen.free_bytes)
            if seen.found is not None:
                process.kill(seen.found, limit="disk")


def over(places: Iterable[str], most_bytes: int) -> str | None:
    """What is wrong with these directories together, as the end of "it …"; None if nothing is. For a thread."""
    total = 0
    try:
        for place in places:
            with closing(_sizes(place)) as sizes:
                for size in sizes:
                    total += size
                    if total > most_bytes:
                        return f"wrote more than the {most_bytes >> 20} MiB of limits.disk_mb"
    except _Unmeasurable as error:
        return str(error)
    return None


def look(places: Sequence[str], most_bytes: int) -> Look:
    """The same, and when to look again."""
    began, free = time.monotonic(), _free_bytes(places)
    found = over(places, most_bytes)
    seconds = time.monotonic() - began
    again_s, soonest_s = (max(LOOK_EVERY_S, seconds / share) for share in (LOOKING_SHARE, HURRIED_SHARE))
    return Look(found, again_s, soonest_s, free)


def _free_bytes(places: Sequence[str]) -> int:
    """Of their disk."""
    status = os.statvfs(places[0])
    return status.f_bavail * status.f_frsize


def _sizes(place: str) -> Generator[int, None, None]:
    """Of everything in it, through no symbolic link. Raises _Unmeasurable."""
    stack: list[_Open] = []
    try:
        _enter(stack, place, None)
        while stack:
            directory, entries, _ = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop().closing.close()
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield max(ENTRY_BYTES, status.st_size, status.st_blocks * 512)
                if entry.is_dir(follow_symlinks=False):
                    _enter(stack, entry.name, directory)
    finally:
        for each in stack:
            each.closing.close()


def _enter(stack: list[_Open], name: str, parent: int | None) -> None:
    if len(stack) >= MAX_DEPTH:
        raise _Unmeasurable(f"made more than {MAX_DEPTH} directories in each other")
    with ExitStack() as opened:
        try:
            directory = opened.enter_context(directories.opened(name, parent=parent))
        except PermissionError:
            raise _Unmeasurable("closed a directory, so that its size cannot be measured") from None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # it was replaced meanwhile
                return
            raise
        entries = opened.enter_context(os.scandir(directory))
        stack.append(_Open(directory, entries, opened.pop_all()))
