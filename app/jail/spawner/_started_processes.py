"""A started process, a tree that is being killed, and whose an orphan is."""

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.jail.spawner import tree
from app.jail.spawner._confinement import Clock
from app.jail.spawner._wrapped_process import Inner
from app.jail.spawner.cgroups import Group
from app.jail.spawner.namespaces.forked_process import Inside
from app.jail.spawner.wire import FORK_STAGE

FORK_RUNS = b"ok"  # what a fork sends before it runs the program
_SILENT = json.dumps({"errno": errno.ECHILD, "stage": FORK_STAGE, "message": "the fork has ended"}).encode()
_QUIET_LOOKS = 2  # a tree has ended when so many looks in a row found nothing of it


@dataclass(slots=True)
class Process:
    """`status`: pipe for an error before exec, or the socket of a fork; None once it was read."""

    id: str
    pid: int
    started_at: float
    clock: Clock
    status: int | None
    group: Group | None
    inner: Inner | Inside | None
    is_fork: bool = False
    failed: bool = False

    def fail(self) -> None:
        self.failed = True

    def exec_over(self) -> bytes:
        """Reads and closes the status pipe; returns the error as JSON, or nothing."""
        assert self.status is not None
        complaint = _word_of(self.status) if self.is_fork else os.read(self.status, 4096)
        os.close(self.status)
        self.status, self.failed = None, bool(complaint)
        return complaint


def _word_of(status: int) -> bytes:
    """Whether a fork has become its backend; one that has ended before has said nothing."""
    try:
        word = os.read(status, 4096)
    except OSError:
        word = b""
    return b"" if word == FORK_RUNS else word or _SILENT


@dataclass(slots=True)
class Ending:
    """A tree that is being killed. While a process of its session lives, the kernel does not reuse `leader`."""

    leader: int
    group: Group | None
    quiet_looks: int = 0

    def kill_group(self) -> bool:
        """Returns whether there was anything in it."""
        return self.group is not None and self.group.kill()

    def looked(self, was_seen: bool) -> bool:
        """Counts a look; returns whether the tree has ended."""
        self.quiet_looks = 0 if was_seen else self.quiet_looks + 1
        return self.quiet_looks >= _QUIET_LOOKS and (self.group is None or self.group.remove())


class Owners:
    """The backend of an orphan, for one look."""

    def __init__(self, processes: Iterable[Process], endings: Mapping[str, Ending]) -> None:
        leaders = {process_id: ending.leader for process_id, ending in endings.items()}
        leaders |= {process.id: process.pid for process in processes}
        self._ids = leaders.keys()
        self._by_leader = {leader: process_id for process_id, leader in leaders.items()}
        self._by_mark = {mark: process_id for process_id in leaders for mark in tree.marks(process_id)}

    def of(self, orphan: int) -> str | None:
        """The id of its backend, or None. What is hardest to remove is looked at first."""
        owner = self._by_mark.get(tree.mark_of(orphan) or 0)
        if owner is not None:
            return owner
        marker = tree.marker(orphan)
        if marker in self._ids:
            return marker
        return self._by_leader.get(tree.session(orphan) or 0)
