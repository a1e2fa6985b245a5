"""What a child gives up between fork and exec, step by step. A step that cannot be done ends the start: never less."""

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner import landlock, syscalls
from app.jail.spawner.wire import (
    INNER_HOSTS_FD,
    INNER_SECCOMP_FD,
    INNER_STATUS_FD,
    INNER_STDIN_FD,
    INNER_STDOUT_FD,
    TEMPLATE_SOCKET_FD,
    TEMPLATE_TEXT_FD,
    Confinement,
)

_ABOVE_INNER = max(INNER_HOSTS_FD, TEMPLATE_TEXT_FD) + 1  # these are the highest
_STDIN, _STDOUT = 0, 1
_NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
_CAPABILITIES = {f"CAP_{name}": number for number, name in enumerate(_NAMES.split())}


class Step(NamedTuple):
    """A part of becoming a backend; an error report names its stage."""

    stage: str
    do: Callable[[], None]


class Clock:
    """When a child reached which phase of its start, in memory that it shares with the spawner until its exec.

    Through the status pipe the same would wake the spawner once more at every start.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def note(self, phase: int) -> None:
        struct.pack_into("d", self._memory, 8 * phase, time.monotonic())

    def phases(self, started_at: float, ended_at: float) -> dict[str, float]:
        """Seconds by phase. A phase that was not reached lasted no time."""
        forked_at, confined_at = (at or ended_at for at in struct.unpack_from("dd", self._memory))
        return {"fork": forked_at - started_at, "sandbox": confined_at - forked_at, "exec": ended_at - confined_at}

    def close(self) -> None:
        self._memory.close()


FORKED, CONFINED = 0, 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the spawner has made for a child before its fork.

    `cgroup_procs`: the `cgroup.procs` files of the groups that it joins. `inner_status`: where a wrapper writes the pid
    of what it has started.
    """

    cgroup_procs: Sequence[str] = ()
    inner_status: int | None = None
    clock: Clock = field(default_factory=Clock)


def assemble(confinement: Confinement) -> None:
    """Before the fork, so that children of the same kind find their filters made."""
    for names in (confinement.get("seccomp", ()), confinement.get("inner_seccomp", ())):
        with contextlib.suppress(OSError):  # the child reports it, as a step of its own
            seccomp.program(names)


def with_rights(confinement: Confinement, prepared: Prepared, stdio: Sequence[int], *kept: int) -> Iterator[Step]:
    """The steps that need the rights of the spawner, in order. What is `kept` open was moved `out_of_the_way`."""
    yield Step("cgroup", lambda: _join(prepared.cgroup_procs))
    yield Step("descriptors", lambda: _arrange_descriptors(confinement, prepared, stdio, kept))
    yield Step("limits", lambda: _limit(confinement.get("limits", {})))
    if "uid" in confinement or "capabilities" in confinement:
        yield Step("capabilities", lambda: _bound_capabilities(_kept(confinement)))
        if "uid" in confinement:
            yield Step("uid", lambda: _become(confinement["uid"]))
        yield Step("capabilities", lambda: syscalls.keep_capabilities(_kept(confinement)))


def without_rights(confinement: Confinement) -> Iterator[Step]:
    """The steps that are last, in order. They need no_new_privs."""
    yield Step("landlock", lambda: landlock.restrict(confinement.get("landlock", {})))
    names = confinement.get("seccomp")
    if names:
        yield Step("seccomp", lambda: syscalls.filter_system_calls(seccomp.program(names)))


def out_of_the_way(descriptor: int) -> int:
    """A close-on-exec duplicate of a descriptor that what is arranged later does not overwrite."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE_INNER)


def _join(cgroup_procs: Sequence[str]) -> None:
    for path in cgroup_procs:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"0")  # whoever writes
        os.close(descriptor)


def _arrange_descriptors(
    confinement: Confinement, prepared: Prepared, stdio: Sequence[int], to_keep: Sequence[int]
) -> None:
    kept = list(to_keep)
    inner_status = None if prepared.inner_status is None else out_of_the_way(prepared.inner_status)
    pipes = [out_of_the_way(descriptor) for descriptor in stdio]
    for target, descriptor in enumerate(pipes):
        os.dup2(descriptor, target)
    if confinement.get("is_wrapped"):
        if inner_status is None:
            raise OSError(errno.EBADF, "no pipe for the inner pid")
        os.dup2(inner_status, INNER_STATUS_FD)
        os.dup2(pipes[_STDIN], INNER_STDIN_FD)
        os.dup2(pipes[_STDOUT], INNER_STDOUT_FD)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for own in (_STDIN, _STDOUT):
            os.dup2(nothing, own)
        kept += [INNER_STATUS_FD, INNER_STDIN_FD, INNER_STDOUT_FD]
        if "inner_seccomp" in confinement:
            _store(seccomp.program(confinement["inner_seccomp"]), INNER_SECCOMP_FD)
            kept.append(INNER_SECCOMP_FD)
    for number, text in confinement.get("inner_texts", {}).items():
        _store(text.encode("utf-8", "surrogateescape"), int(number))
        kept.append(int(number))
    syscalls.close_all_but(*kept)


def keep_for_template(text: str, channel: int) -> tuple[int, int]:
    """Puts what a template needs where it looks for it. Everything else was moved `out_of_the_way`."""
    os.dup2(channel, TEMPLATE_SOCKET_FD)
    _store(text.encode("utf-8", "surrogateescape"), TEMPLATE_TEXT_FD)
    return TEMPLATE_SOCKET_FD, TEMPLATE_TEXT_FD


def _store(content: bytes, target: int) -> None:
    descriptor = out_of_the_way(os.memfd_create("inner"))
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, target)


def _limit(limits: dict[str, int]) -> None:
    for name, value in {"CORE": 0, **limits}.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))


def _bound_capabilities(kept: int) -> None:
    """Without the right to this no_new_privs has to do: no exec gives back what a process has given up."""
    with contextlib.suppress(PermissionError):
        syscalls.bound_capabilities(kept)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _kept(confinement: Confinement) -> int:
    """The capabilities to keep, as a set of bits; none with another uid."""
    kept = 0
    for name in () if "uid" in confinement else confinement.get("capabilities", ()):
        kept |= 1 << _CAPABILITIES[name]
    return kept
