"""Memory and CPU of processes, each with everything it has started."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.jail.spawner import tree
from app.jail.spawner.cgroups import Group, Usage

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096


class Measured(NamedTuple):
    """Use by one process and by all that it has started; these are its `pids`. Memory that several of them share is
    counted for each."""

    resident_bytes: int = 0
    cpu_s: float = 0.0  # since their start, children that have ended included
    pids: tuple[int, ...] = ()


class Target(NamedTuple):
    """A process to be looked at. `most_bytes`: the memory that only a look limits."""

    pid: int
    id: str
    group: Group | None = None
    most_bytes: int | None = None


class Use(NamedTuple):
    """What is known of a process's use. The last three only control groups count. `pids`: where /proc was read."""

    resident_bytes: int = 0
    cpu_s: float = 0.0
    pids: tuple[int, ...] = ()
    oom_kills: int = 0
    refused_forks: int = 0
    throttled_us: int = 0

    def at_the_end(self, usage: Usage) -> "Use":
        """With the last numbers of its control group, if it had one."""
        cpu_s = max(self.cpu_s, usage.cpu_us / 1e6)
        return Use(
            0,
            cpu_s,
            (),
            max(self.oom_kills, usage.oom_kills),
            max(self.refused_forks, usage.refused_forks),
            max(self.throttled_us, usage.throttled_us),
        )


def look(targets: Sequence[Target]) -> tuple[list[Use], float]:
    """The use of each, and the seconds of CPU that it took to look. By control groups where they count, else by /proc.
    Blocks: call it in a thread."""
    began = time.thread_time()
    uses = [_of_group(each.group) for each in targets]
    uncounted = {
        each.pid: each.id for each, use in zip(targets, uses, strict=True) if not use.resident_bytes or not use.cpu_s
    }
    measured = measure(uncounted)
    found = [
        _completed(use, measured.get(each.pid, Measured()), each.most_bytes)
        for each, use in zip(targets, uses, strict=True)
    ]
    return found, time.thread_time() - began


def _of_group(group: Group | None) -> Use:
    if group is None:
        return Use()
    usage = group.usage()
    return Use(
        usage.memory_bytes,
        usage.cpu_us / 1e6,
        oom_kills=usage.oom_kills,
        refused_forks=usage.refused_forks,
        throttled_us=usage.throttled_us,
    )


def _completed(use: Use, measured: Measured, most_bytes: int | None) -> Use:
    resident = use.resident_bytes or measured.resident_bytes
    if most_bytes is not None and resident > most_bytes:  # it may be pages that its processes share
        resident = min(resident, proportional_bytes(measured.pids) or resident)
    return use._replace(resident_bytes=resident, cpu_s=use.cpu_s or measured.cpu_s, pids=measured.pids)


class _Row(NamedTuple):
    """What /proc/PID/stat says of one process."""

    parent: int
    session: int
    pages: int
    ticks: int


def measure(leaders: Mapping[int, str]) -> dict[int, Measured]:
    """Use by pid of the leader; `leaders` are the ids of their backends.

    What they have started is below them, also in a pid namespace; what has left them still has their session or their
    mark. Blocks for one pass over /proc (0.02 ms for each process of the machine): call it in a thread.
    """
    rows = _rows() if leaders else {}
    owners = _Owners(rows, leaders)
    found: dict[int, list[int]] = {}
    for pid in rows:
        leader = owners.of(pid)
        if leader:
            found.setdefault(leader, []).append(pid)
    return {leader: _sum(rows, pids) for leader, pids in found.items()}


def proportional_bytes(pids: Iterable[int]) -> int | None:
    """Resident memory where each page counts once for all that share it. Slow: 0.1 ms and more for each process. None
    if one of them may not be read."""
    try:
        return sum(map(_proportional_bytes, pids))
    except PermissionError:
        return None


def _proportional_bytes(pid: int) -> int:
    """Raises PermissionError."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), 0)
    except PermissionError:
        raise
    except OSError:  # it has ended meanwhile
        return 0


class _Owners:
    """Whose process each one is, for one pass."""

    def __init__(self, rows: Mapping[int, _Row], leaders: Mapping[int, str]) -> None:
        self._rows = rows
        self._leaders = leaders
        self._by_mark = {mark: leader for leader, process_id in leaders.items() for mark in tree.marks(process_id)}
        self._known = {leader: leader for leader in leaders}  # 0: nobody's

    def of(self, pid: int) -> int:
        """The leader, or 0. The nearest ancestor decides of which that is known."""
        unknown: list[int] = []
        while pid in self._rows and pid not in self._known:
            owner = self._by_itself(pid)
            if owner:
                self._known[pid] = owner
                break
            unknown.append(pid)
            self._known[pid] = 0  # ends the walk where a pid was reused between two reads, in a circle
            pid = self._rows[pid].parent
        owner = self._known.get(pid, 0)
        self._known.update(dict.fromkeys(unknown, owner))
        return owner

    def _by_itself(self, pid: int) -> int:
        session = self._rows[pid].session
        return session if session in self._leaders else self._by_mark.get(tree.mark_of(pid) or 0, 0)


def _sum(rows: Mapping[int, _Row], pids: list[int]) -> Measured:
    pages, ticks = sum(rows[pid].pages for pid in pids), sum(rows[pid].ticks for pid in pids)
    return Measured(pages * _PAGE_BYTES, ticks / _TICKS_A_SECOND, tuple(pids))


def _rows() -> dict[int, _Row]:
    """All processes of the machine. Not by psutil, which takes three times as long."""
    rows: dict[int, _Row] = {}
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(proc):
            if name.isdecimal():
                # The name of the command, before the last bracket, may contain spaces and brackets.
                fields = _read(proc, f"{name}/stat").rpartition(b")")[2].split()
                if len(fields) > 21:
                    rows[int(name)] = _Row(
                        int(fields[1]), int(fields[3]), int(fields[21]), sum(map(int, fields[11:15]))
                    )
    finally:
        os.close(proc)
    return rows


def _read(proc: int, path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:  # it has ended meanwhile
        return b""
    try:
        return os.read(file, _STAT_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
