"""Memory and CPU of processes, each with everything it has started."""

import os
from typing import NamedTuple

import psutil


class Measured(NamedTuple):
    """Use by one process and all others of its POSIX session."""

    resident_bytes: int = 0
    cpu_s: float = 0.0  # since their start, children that have ended included


def measure(leaders: frozenset[int]) -> dict[int, Measured]:
    """Use by the leader of the session; a process that has left for a session of its own is not counted.

    Blocks while it reads /proc: call it in a thread.
    """
    found: dict[int, Measured] = {}
    for pid in psutil.pids() if leaders else ():
        try:
            leader = os.getsid(pid)
            if leader in leaders:
                process, sum_so_far = psutil.Process(pid), found.get(leader, Measured())
                times, resident = process.cpu_times(), process.memory_info().rss
                cpu_s = times.user + times.system + times.children_user + times.children_system
                found[leader] = Measured(sum_so_far.resident_bytes + resident, sum_so_far.cpu_s + cpu_s)
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return found
