"""Finds and ends process trees through /proc, and tells to which backend a process belongs that has left its tree."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterable

# In the environment of every backend: it identifies descendants that have left their process group and their parents.
# The value is random: no backend knows another's.
MARKER = "TRUNKLINE_PROCESS"
_MARKER_BYTES = MARKER.encode() + b"="

# The same as a resource limit: a descendant inherits it even if it leaves its group and session and empties its
# environment, and only a privileged process can raise it. Linux no longer enforces this limit.
_RLIMIT_LOCKS = 10
_LOCKS_LINE = b"Max file locks"  # in /proc/PID/limits
_LEAST_MARK = 1 << 61

_PF_FORKNOEXEC = 0x40  # of the kernel's flags of a process

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
    """The fields of /proc/PID/stat from the state on; empty if the process is gone."""
    # The command's name before them may contain spaces and brackets.
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def marker(pid: int) -> str | None:
    """The id of the backend in a process's environment; None if it has no marker or cannot be read."""
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(_MARKER_BYTES):
            return entry[len(_MARKER_BYTES) :].decode(errors="replace")
    return None


def mark(process_id: str) -> int:
    """The limit that marks the processes of the backend with this id."""
    return _LEAST_MARK | int(process_id, 16) >> 3


def marks(process_id: str) -> tuple[int, int]:
    """That of the backend's processes, and that of a template: it is higher, for its forks get one of their own."""
    return mark(process_id), mark(process_id) + _LEAST_MARK


def wear(process_id: str, pid: int = 0, *, is_template: bool = False) -> None:
    """Marks a process, this one by default, and all it will start; does nothing where a lower limit is set already."""
    limit = marks(process_id)[is_template]
    with contextlib.suppress(ValueError, OSError):
        resource.prlimit(pid, _RLIMIT_LOCKS, (limit, limit))


def mark_of(pid: int) -> int | None:
    """The mark of a process; None if it is gone. A process without one has some other limit."""
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except PermissionError:  # of another user, and we have no CAP_SYS_RESOURCE, as root in most containers
        return _shown_mark(pid)
    except OSError:
        return None


def is_marked(pid: int) -> bool:
    """Whether a process is of a backend, of this node or another one."""
    found = mark_of(pid)
    return found is not None and found >= _LEAST_MARK


def _shown_mark(pid: int) -> int | None:
    """What the kernel tells everybody, zombies included."""
    for line in _read(f"/proc/{pid}/limits").splitlines():
        if line.startswith(_LOCKS_LINE):
            hard = line[len(_LOCKS_LINE) :].split()[1]
            return int(hard) if hard.isdigit() else resource.RLIM_INFINITY
    return None


def parent(pid: int) -> int | None:
    """The parent of a process; None if it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def born(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if it is gone."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def has_executed(pid: int) -> bool:
    """Whether a process has executed a program since it was forked."""
    fields = _stat(pid)
    return bool(fields) and not int(fields[6]) & _PF_FORKNOEXEC


def name(pid: int) -> bytes:
    """The name of the program that a process executes, its first 15 bytes."""
    return _read(f"/proc/{pid}/comm").rstrip(b"\n")


def arguments(pid: int) -> bytes:
    """Of the program that a process executes, each followed by a zero; empty if it is gone, or a zombie."""
    return _read(f"/proc/{pid}/cmdline")


def session(pid: int) -> int | None:
    """The session id of a process, zombies included."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def end(roots: Iterable[int]) -> set[int]:
    """Kills these processes and everything below them; returns all that were found.

    Each is stopped before its children are looked up: it can neither fork nor reap any more, so no pid below it can be
    reused before it is killed. A child born in that very moment is missed and becomes our orphan, so look again.
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
    except OSError:  # the process is gone, or may not be read
        return b""
