"""System calls that Python 3.11 lacks. Loaded before any fork, so that a child only calls them."""

import ctypes
import errno
import os
import struct

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SYS_CLOSE_RANGE = 436  # the same number on every architecture
_LAST_DESCRIPTOR = 0xFFFFFFFF
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64  # the kernel's sets have room for so many

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long] * 6
_syscall.restype = ctypes.c_long
_capset = _libc.capset
_capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


def last_error() -> OSError:
    """Of the last call of the C library."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _set(option: int, value: int, third: int = 0) -> None:
    if _prctl(option, value, third, 0, 0) != 0:
        raise last_error()


def call(number: int, *arguments: int) -> int:
    """A system call by its number. Raises OSError."""
    result: int = _syscall(number, *arguments, *[0] * (5 - len(arguments)))
    if result < 0:
        raise last_error()
    return result


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent has died."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_inspection() -> None:
    """Keeps processes of the same user from reading this one's memory and environment, and prevents core dumps.

    Programs that a fork executes are not affected, nor is this process's own reading of /proc."""
    _set(_PR_SET_DUMPABLE, 0)


def permit_inspection() -> None:
    """The opposite of `refuse_inspection`, for the few steps that need it."""
    _set(_PR_SET_DUMPABLE, 1)


def renounce_privileges() -> None:
    """From now on no exec gains privileges: set-uid bits and file capabilities are ignored."""
    _set(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(signum: int) -> None:
    """Has the kernel send `signum` when the parent's thread ends. A change of uid clears this."""
    _set(_PR_SET_PDEATHSIG, signum)


def bound_capabilities(kept: int) -> None:
    """Takes all capabilities but those of this set from the bounding set: no exec can give them back."""
    for capability in range(_CAPABILITIES):
        if not kept >> capability & 1 and _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            if ctypes.get_errno() == errno.EINVAL:
                return  # above the last one that this kernel knows
            raise last_error()


def keep_capabilities(kept: int) -> None:
    """Has this process keep these capabilities and no others, and programs that it executes inherit none."""
    _set(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    # Effective, permitted, inheritable: first the lower 32 of each, then the upper ones.
    sets = struct.pack("6I", low, low, 0, high, high, 0)
    if _capset(address(header), address(sets)) != 0:
        raise last_error()


def filter_system_calls(program: bytes) -> None:
    """Installs a seccomp filter, an array of `struct sock_filter`; needs no_new_privs."""
    description = struct.pack("HxxxxxxQ", len(program) // 8, address(program))
    _set(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address(description))


def address(content: bytes) -> int:
    """Where these bytes are; the caller keeps them alive."""
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0


def close_all_but(*kept: int) -> None:
    """Closes every descriptor above 2 except these.

    They are close-on-exec anyway, which has to do on kernels before 5.9: those have no close_range.
    """
    first = 3
    for descriptor in sorted(kept):
        if descriptor > first:
            _syscall(_SYS_CLOSE_RANGE, first, descriptor - 1, 0, 0, 0)
        first = max(first, descriptor + 1)
    _syscall(_SYS_CLOSE_RANGE, first, _LAST_DESCRIPTOR, 0, 0, 0)
