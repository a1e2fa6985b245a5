"""The gate: leads a process that stands still into namespaces, and takes away what it could do there.

Who enters a user namespace has all capabilities in it. A fork of a template runs code that was imported in the sandbox,
so not one instruction of it may have them. The template's filter of system calls lets nobody call setns() who is not
traced (`seccomp`, `template`). The fork calls it, and stops there; whatever is called until it goes on is called by us,
in its place: each namespace is entered, and the capabilities are given up. What the kernel then says of it is compared
with what it should be, and a difference ends it. Nothing is believed that is in the fork's memory.
"""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Mapping

from app.jail.spawner import syscalls
from app.jail.spawner._system_call_numbers import NUMBERS

WITHIN_S = 5.0

_CONTINUE, _DETACH, _TO_SYSCALL = 7, 17, 24
_GET_REGISTERS, _SET_REGISTERS, _SEIZE, _GET_INFO = 0x4204, 0x4205, 0x4206, 0x420E
_MARK_SYSCALLS, _STOP_AT_FILTER, _KILL_WITH_TRACER = 0x1, 0x80, 0x100000
_GENERAL_REGISTERS = 1  # NT_PRSTATUS
_EVENT_OF_FILTER = signal.SIGTRAP | 7 << 8
_INFO_BYTES = 88
_ENTERS, _LEAVES, _AT_FILTER = 1, 2, 3
_WALL = 0x40000000

# Of x86_64: `struct user_regs_struct` has 27 words. The kernel reads the arguments of a call from these.
_REGISTERS = 27
_NUMBER, _POINTER, _ORIGINAL, _STACK = 10, 16, 15, 19
_ARGUMENTS = (14, 13, 12)  # rdi, rsi, rdx
_SYSCALL_BYTES = 2  # of the instruction
_MASK = (1 << 64) - 1
_RED_ZONE = 4096

_CAPSET = 126
_CAPABILITY_VERSION_3 = 0x20080522
# It lets a process lose more, and gain nothing: there is no exec that gives a capability.
_SETPCAP = 8

FLAGS = {
    "user": 0x10000000, "mnt": 0x00020000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000,
    "uts": 0x04000000, "cgroup": 0x02000000,
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


class Traced:
    """A process that this one traces. If this one ends before `release`, the kernel kills it."""

    def __init__(self, pid: int) -> None:
        """Raises OSError: it may not be traced."""
        if os.uname().machine != "x86_64":
            raise OSError(errno.EOPNOTSUPP, "the registers of this machine's processors are not known here")
        self._pid = pid
        _call(_SEIZE, pid, 0, _MARK_SYSCALLS | _STOP_AT_FILTER | _KILL_WITH_TRACER)

    def wait_at_gate(self) -> None:
        """Until it calls setns(). Raises OSError: it does something else."""
        signum = self._wait()
        while signum != _EVENT_OF_FILTER:
            # A signal of its own, or a stop of its group: neither is to be kept from it.
            _call(_CONTINUE, self._pid, 0, signum & 0xFF if signum >> 8 == 0 else 0)
            signum = self._wait()
        self._came = self._registers()

    def lead(self, namespaces: Mapping[str, int]) -> None:
        """Has it enter these, of which it has the descriptors. Raises OSError."""
        setns = NUMBERS["x86_64"]["setns"]
        names = list(namespaces)
        self._goes_on(self._came, (namespaces[names[0]], FLAGS[names[0]], 0), setns)
        for name in names[1:]:
            self._calls(setns, namespaces[name], FLAGS[name])
        place = (self._came[_STACK] - _RED_ZONE) & ~0xF
        sets = struct.pack("6I", 1 << _SETPCAP, 1 << _SETPCAP, 0, 0, 0, 0)
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(memory, struct.pack("Ii", _CAPABILITY_VERSION_3, 0).ljust(16, b"\0") + sets, place)
        finally:
            os.close(memory)
        self._calls(_CAPSET, place, place + 16)

    def release(self) -> None:
        """Its call returns 0, and it goes on. Raises OSError."""
        registers = list(self._came)
        registers[_NUMBER], registers[_ORIGINAL] = 0, _MASK
        self._set(registers)
        _call(_DETACH, self._pid, 0, 0)

    def _calls(self, number: int, *arguments: int) -> None:
        """Has it execute the instruction of its own call once more, with these values."""
        registers = list(self._came)
        registers[_POINTER] = (registers[_POINTER] - _SYSCALL_BYTES) & _MASK
        registers[_NUMBER], registers[_ORIGINAL] = number, _MASK
        self._set(_with(registers, arguments))
        if self._steps() != _ENTERS:
            raise OSError(errno.ESRCH, "it has called nothing")
        self._goes_on(self._registers(), arguments, number)

    def _goes_on(self, registers: list[int], arguments: tuple[int, ...], number: int) -> None:
        """It is in the middle of a call; returns at its end."""
        self._set(_with(registers, arguments))
        while (where := self._steps()) == _AT_FILTER:
            pass
        result = ctypes.c_long(self._registers()[_NUMBER]).value
        if where != _LEAVES or result < 0:
            raise OSError(-result or errno.ESRCH, f"{os.strerror(-result)} (system call {number})")

    def _steps(self) -> int:
        _call(_TO_SYSCALL, self._pid, 0, 0)
        self._wait()
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _call(_GET_INFO, self._pid, _INFO_BYTES, ctypes.addressof(info))
        return info.raw[0]

    def _wait(self) -> int:
        _, status = os.waitpid(self._pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise OSError(errno.ESRCH, "the fork has ended")
        return status >> 8

    def _registers(self) -> list[int]:
        content = ctypes.create_string_buffer(8 * _REGISTERS)
        self._exchange(_GET_REGISTERS, content)
        return list(struct.unpack(f"{_REGISTERS}Q", content.raw))

    def _set(self, registers: list[int]) -> None:
        content = ctypes.create_string_buffer(struct.pack(f"{_REGISTERS}Q", *registers))
        self._exchange(_SET_REGISTERS, content)

    def _exchange(self, request: int, content: ctypes.Array[ctypes.c_char]) -> None:
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(content), 8 * _REGISTERS)
        _call(request, self._pid, _GENERAL_REGISTERS, ctypes.addressof(vector))


def check(pid: int, expected: Mapping[str, str]) -> None:
    """Compares a process with what is to be said of it: its namespaces, and that it can do nothing in them.

    Raises:
        OSError: it is something else.
    """
    status = status_of(pid)
    held = int(status["CapPrm"], 16) | int(status["CapInh"], 16) | int(status["CapEff"], 16) | int(status["CapAmb"], 16)
    if held & ~(1 << _SETPCAP):
        raise OSError(errno.EPERM, "the fork has kept capabilities")
    if status["Threads"] != "1" or status["NoNewPrivs"] != "1" or status["Seccomp"] != "2":
        raise OSError(errno.EPERM, "the fork is not confined, or has threads")
    for name, what in expected.items():
        found = os.readlink(f"/proc/{pid}/ns/{name if name != 'pid' else 'pid_for_children'}")
        if found != what:
            raise OSError(errno.EPERM, f"the fork is in another namespace ({name})")


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process. Raises OSError."""
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def _with(registers: list[int], arguments: tuple[int, ...]) -> list[int]:
    changed = list(registers)
    for place, value in zip(_ARGUMENTS, (*arguments, 0, 0, 0), strict=False):
        changed[place] = value
    return changed


def _call(request: int, pid: int, address: int, data: int) -> None:
    if _ptrace(request, pid, address, data) < 0:
        raise syscalls.last_error()
