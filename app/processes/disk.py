"""What processes have on the disk, where no file system of limited size holds it: somebody looks, and ends those that
have more than allowed.

Bounded, whatever a process makes: a look ends at the limit, every file counts for something, and a look that took long
is not repeated soon. Not counted is what has no name any more: files that are removed while they are open.
"""

import errno
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import anyio.to_thread

from app.processes import home_directories as directories
from app.processes.process import BackendProcess

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LOOKING_SHARE = 0.01  # of the time of one thread, for each process
MAX_DEPTH = 100  # of directories in directories: each is a descriptor while it is looked at
ENTRY_BYTES = 1 << 10  # what an empty file or a directory counts for


class _Unmeasurable(Exception):
    """The message completes "it …"."""


class _Open(NamedTuple):
    directory: int
    entries: Iterator[os.DirEntry[str]]
    closing: ExitStack


class DiskWatch:
    """Looks at what processes have on the disk, and ends those that have too much there."""

    def __init__(self) -> None:
        self._due: dict[BackendProcess, float] = {}

    async def sweep(self, places: Mapping[BackendProcess, Sequence[str]]) -> None:
        """Looks where it is time to; to be called a few times a second."""
        self._due = {process: self._due.get(process, 0.0) for process in places}
        for process, at in self._due.items():
            most = process.spec.limits.disk_mb
            if most is None or not places[process] or time.monotonic() < at or process.is_being_killed:
                continue
            try:
                found, again_s = await anyio.to_thread.run_sync(look, places[process], most << 20)
            except OSError as error:
                found, again_s = None, LOOK_EVERY_S
                logger.warning("Cannot measure the files of a backend process: %s", error)
            self._due[process] = time.monotonic() + again_s
            if found is not None:
                process.kill(found, limit="disk")


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


def look(places: Iterable[str], most_bytes: int) -> tuple[str | None, float]:
    """The same, and after how many seconds to look again."""
    began = time.monotonic()
    found = over(places, most_bytes)
    return found, max(LOOK_EVERY_S, (time.monotonic() - began) / LOOKING_SHARE)


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
