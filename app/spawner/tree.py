"""Finds and ends whole process trees through /proc; tells whose a process is that has left its tree."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterable

# Every backend has this in its environment, so that a descendant that left its group and its parents
# can still be told whose it is. The value is random: no backend knows another's.
MARKER = "TRUNKLINE_PROCESS"
_MARKER_BYTES = MARKER.encode() + b"="

# The same once more as a resource limit: it stays with a descendant that leaves its group and session and starts with
# an empty environment, and only a privileged process can raise it. Linux has this one still and enforces it no more.
_RLIMIT_LOCKS = 10
_LEAST_MARK = 1 << 61

_HAS_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies included; none if it is gone."""
    if not _HAS_CHILDREN_FILES:
        return _children_by_search(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _children_by_search(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields and int(fields[1]) == parent:
                found.append(int(name))
    return found


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of a process from its state on; nothing if it is gone."""
    # The command's name in front of it may hold spaces and brackets.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def marker(pid: int) -> str | None:
    """Which backend a process says it belongs to; None if it has no marker or hides it."""
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(_MARKER_BYTES):
            return entry[len(_MARKER_BYTES) :].decode(errors="replace")
    return None


def mark(process_id: str) -> int:
    """The limit that marks the descendants of the backend with this id."""
    return _LEAST_MARK | int(process_id, 16) >> 3


def wear(process_id: str) -> None:
    """Gives this process, and all it will start, the mark; it goes without where a lower limit is set already."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(_RLIMIT_LOCKS, (mark(process_id), mark(process_id)))


def mark_of(pid: int) -> int | None:
    """The mark that a process wears, whoever gave it; None if it is gone."""
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except OSError:
        return None


def born(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if it is gone."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def session(pid: int) -> int | None:
    """The session id of a process, zombies included."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def end(roots: Iterable[int]) -> set[int]:
    """Kills these processes and everything below them; returns all that were found.

    Each is stopped before its children are looked up: it can neither fork nor reap any more, so no
    pid found below it can be somebody else's by the time it is killed. A child born in that very
    moment is missed; it becomes an orphan of ours, so look again.
    """
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            send(pid, signal.SIGSTOP)
            waiting += children(pid)
    for pid in found:
        send(pid, signal.SIGKILL)
    return found


def send(pid: int, signum: int) -> None:
    """Signals one process, which may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def send_group(pid: int, signum: int) -> None:
    """Signals a process group, which may be empty."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:  # the process is gone, or not ours to read
        return b""
