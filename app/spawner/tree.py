"""Finds and ends whole process trees through /proc."""

import contextlib
import os
import signal
from collections.abc import Iterable

# Every backend has this in its environment, so that a descendant that left its group and its parents
# can still be told whose it is. The value is random: no backend knows another's.
MARKER = "TRUNKLINE_PROCESS"
_MARKER_BYTES = MARKER.encode() + b"="

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
            # The command's name may hold spaces and brackets; the parent is the second field behind it.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if fields and int(fields[1]) == parent:
                found.append(int(name))
    return found


def marker(pid: int) -> str | None:
    """Which backend a process says it belongs to; None if it has no marker or hides it."""
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(_MARKER_BYTES):
            return entry[len(_MARKER_BYTES) :].decode(errors="replace")
    return None


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
