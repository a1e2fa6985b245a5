"""What processes use of memory and processor, each with everything it has started. For a thread: it reads /proc."""

import os
from collections import defaultdict
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Measured:
    """Of one process and all others in its session."""

    resident_bytes: int = 0
    cpu_s: float = 0.0  # since their start, and of their children that have ended


def measure(leaders: frozenset[int]) -> dict[int, Measured]:
    """By the leader of the session. What has left for a session of its own is not counted."""
    found: defaultdict[int, Measured] = defaultdict(Measured)
    for pid in psutil.pids() if leaders else ():
        try:
            leader = os.getsid(pid)
            if leader in leaders:
                process = psutil.Process(pid)
                times, resident = process.cpu_times(), process.memory_info().rss
                found[leader].cpu_s += times.user + times.system + times.children_user + times.children_system
                found[leader].resident_bytes += resident
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return dict(found)
