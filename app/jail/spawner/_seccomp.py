"""Filters of system calls, as programs that the kernel runs at every call (classic BPF, `struct sock_filter`).

What is denied fails with an error: programs that try it go on without it. Calls of another architecture do not exist.
"""

import errno
import os
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.jail.spawner._system_call_numbers import NUMBERS


class _Step(NamedTuple):
    """One instruction: its code, how many to skip if a comparison is true and if not, and its operand."""

    code: int
    if_true: int
    if_false: int
    operand: int


_Block = list[_Step]

_LOAD, _AND, _JUMP, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _ASK_TRACER = 0x7FFF0000, 0x00050000, 0x7FF00000

# In `struct seccomp_data`, whose words both architectures store with the lower half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # a bit of the number: x86_64 with pointers of 32 bits, in the same architecture

_NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW* that clone() takes
_INPUT_IOCTLS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX write what looks like the terminal's input
_HARMLESS_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)  # the last asks which it is

# Huge pages are the machine's, set aside for a program that needs them, and no control group of memory counts them.
# memfd_create answers as a kernel without that flag: Chromium asks with all flags, and aborts at another error.
_HUGE_MAPPING, _HUGE_FILE, _HUGE_SEGMENT = 0x40000, 0x4, 0x800

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _RAW, _SEQPACKET, _TYPE_BITS = 1, 2, 3, 5, 0xF
_NETLINK_ROUTE = 0
_IP_PROTOCOLS = (0, 1, 6, 17, 58)  # the type's own, ICMP, TCP, UDP, ICMPv6

# Looking into other processes; mounts; kernel code and settings; clocks; large parts of the kernel that were often
# broken into and that servers do not need; files by handle, which pass by directories' modes.
DENIED = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd move_pages migrate_pages
    mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr mount_setattr
    unshare setns
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register fanotify_init memfd_secret
    add_key request_key keyctl
    kexec_load kexec_file_load init_module finit_module delete_module reboot acct swapon swapoff quotactl quotactl_fd
    syslog iopl ioperm modify_ldt sethostname setdomainname
    settimeofday clock_settime clock_adjtime adjtimex
    name_to_handle_at open_by_handle_at
"""
_SHARED_IPC = """
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
_OF_PROCESSES = "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr"


def _argument(index: int) -> int:
    return _ARGUMENTS + 8 * index


def _deny(number: int) -> _Block:
    return [_Step(_RETURN, 0, 0, _ERROR | number)]


def _when(offset: int, values: Iterable[int], block: _Block, bits: int | None = None) -> _Block:
    """Runs the block if the word there, or these bits of it, is one of the values."""
    tests = _tests(values)
    return [*_load(offset, bits), *tests, _Step(_JUMP, 0, 0, len(block)), *block]


def _unless(offset: int, values: Iterable[int], block: _Block, bits: int | None = None) -> _Block:
    """Runs the block if the word there, or these bits of it, is none of the values."""
    return [*_load(offset, bits), *_tests(values), _Step(_JUMP, 0, 0, 1), _Step(_JUMP, 0, 0, len(block)), *block]


def _load(offset: int, bits: int | None) -> _Block:
    return [_Step(_LOAD, 0, 0, offset), *([] if bits is None else [_Step(_AND, 0, 0, bits)])]


def _tests(values: Iterable[int]) -> _Block:
    """Skips the instruction that follows if the word is one of the values."""
    listed = sorted(values)
    return [_Step(_JUMP_EQUAL, len(listed) - index, 0, value) for index, value in enumerate(listed)]


def _any_bit(offset: int, bits: int, block: _Block) -> _Block:
    return [_Step(_LOAD, 0, 0, offset), _Step(_JUMP_ANY_BIT, 0, len(block), bits), *block]


class _Assembler:
    """Makes the blocks of one architecture, whose numbers it knows."""

    def __init__(self, machine: str) -> None:
        self._numbers = NUMBERS[machine]

    def calls(self, names: str, block: _Block) -> _Block:
        """Runs the block at these system calls; those that the architecture lacks are left out."""
        return _when(_NUMBER, [self._numbers[name] for name in names.split() if name in self._numbers], block)

    def base(self) -> _Block:
        return [
            *self.calls(DENIED, _deny(errno.EPERM)),
            # Its flags are in memory, which a filter cannot read: C libraries then use clone().
            *self.calls("clone3", _deny(errno.ENOSYS)),
            *self.calls("clone", _any_bit(_argument(0), _NEW_NAMESPACES, _deny(errno.EPERM))),
            *self.calls("ioctl", _when(_argument(1), _INPUT_IOCTLS, _deny(errno.EPERM))),
            *self.calls("mmap", _any_bit(_argument(3), _HUGE_MAPPING, _deny(errno.ENOMEM))),
            *self.calls("memfd_create", _any_bit(_argument(1), _HUGE_FILE, _deny(errno.EINVAL))),
            *self.calls("shmget", _any_bit(_argument(2), _HUGE_SEGMENT, _deny(errno.ENOMEM))),
            *self.calls("personality", _unless(_argument(0), _HARMLESS_PERSONALITIES, _deny(errno.EPERM))),
            *self.calls("socket", _sockets()),
            *self.calls("socketpair", _unless(_argument(0), [_UNIX], _deny(errno.EAFNOSUPPORT))),
        ]

    def template(self) -> _Block:
        """As `base`, but whoever traces the process may let it enter a namespace (namespaces/_entering.py). Without a
        tracer there is no such call. It has no tracer but ours: `base` forbids ptrace()."""
        return [*self.calls("setns", [_Step(_RETURN, 0, 0, _ASK_TRACER)]), *self.base()]

    def no_unix_sockets(self) -> _Block:
        """No socket that can reach one with a path. A pair of datagram sockets could be connected to another one."""
        others = _unless(_argument(1), [_STREAM, _SEQPACKET], _deny(errno.EACCES), _TYPE_BITS)
        return [
            *self.calls("socket", _when(_argument(0), [_UNIX], _deny(errno.EACCES))),
            *self.calls("socketpair", others),
        ]

    def no_internet(self) -> _Block:
        """Netlink stays (`base` leaves of it only routes and addresses): getifaddrs() needs it, and reaches nobody."""
        return self.calls("socket", _unless(_argument(0), [_UNIX, _NETLINK], _deny(errno.EACCES)))

    def no_shared_ipc(self) -> _Block:
        """No shared memory, semaphores and queues by name: others of the same user could find them."""
        return self.calls(_SHARED_IPC, _deny(errno.EPERM))

    def own_process_only(self) -> _Block:
        """No limits, priorities and processors of other processes: those of the same user could be throttled."""
        not_zero = _deny(errno.EPERM)
        return [
            *self.calls(_OF_PROCESSES, _unless(_argument(0), [0], not_zero)),
            *self.calls("setpriority ioprio_set", _unless(_argument(1), [0], not_zero)),
            *self.calls("setpriority", _unless(_argument(0), [0], not_zero)),
            *self.calls("ioprio_set", _unless(_argument(0), [1], not_zero)),
        ]


def _sockets() -> _Block:
    """Others than plain TCP and UDP pass by Landlock's rule for ports (multipath TCP, SCTP, SMC), or by any network
    namespace (VSOCK), or are parts of the kernel that servers do not need."""
    return [
        *_unless(_argument(0), [_UNIX, _INET, _INET6, _NETLINK], _deny(errno.EAFNOSUPPORT)),
        *_when(_argument(0), [_NETLINK], _unless(_argument(2), [_NETLINK_ROUTE], _deny(errno.EPROTONOSUPPORT))),
        *_when(
            _argument(0),
            [_INET, _INET6],
            [
                *_unless(_argument(1), [_STREAM, _DATAGRAM, _RAW], _deny(errno.ESOCKTNOSUPPORT), _TYPE_BITS),
                *_unless(_argument(2), _IP_PROTOCOLS, _deny(errno.EPROTONOSUPPORT)),
            ],
        ),
    ]


FILTERS = {
    "base": _Assembler.base,
    "template": _Assembler.template,
    "no_unix_sockets": _Assembler.no_unix_sockets,
    "no_internet": _Assembler.no_internet,
    "no_shared_ipc": _Assembler.no_shared_ipc,
    "own_process_only": _Assembler.own_process_only,
}


_programs: dict[tuple[tuple[str, ...], str], bytes] = {}


def program(filters: Sequence[str], machine: str | None = None) -> bytes:
    """These filters as one program, as the kernel and bubblewrap's `--seccomp` take it.

    Raises:
        OSError: a filter has no such name, or the numbers of this machine's system calls are not known.
    """
    return _program(tuple(filters), machine or os.uname().machine)


def _program(filters: tuple[str, ...], machine: str) -> bytes:
    if (filters, machine) not in _programs:  # a handful: the names come from this code
        _programs[filters, machine] = _assembled(filters, machine)
    return _programs[filters, machine]


def _assembled(filters: tuple[str, ...], machine: str) -> bytes:
    unknown = [name for name in filters if name not in FILTERS]
    if unknown or machine not in NUMBERS:
        raise OSError(errno.EOPNOTSUPP, f"no seccomp filter {' '.join(unknown)} for {machine}")
    nothing = _deny(errno.ENOSYS)
    steps = _unless(_ARCHITECTURE, [_AUDIT_ARCHITECTURE[machine]], nothing)
    if machine == "x86_64":
        steps += [_Step(_LOAD, 0, 0, _NUMBER), _Step(_JUMP_NOT_LESS, 0, 1, _X32), *nothing]
    assembler = _Assembler(machine)
    for name in filters:
        steps += FILTERS[name](assembler)
    steps.append(_Step(_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
