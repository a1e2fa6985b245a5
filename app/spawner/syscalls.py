"""System calls that Python 3.11 lacks. Loaded before any fork, so that a child only calls them."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SYS_CLOSE_RANGE = 436  # the same number on every architecture
_LAST_DESCRIPTOR = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, *[ctypes.c_uint] * 3]


def _set(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


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


def close_all_but(kept: int) -> None:
    """Closes every descriptor above 2 except `kept`.

    They are close-on-exec anyway, which has to do on kernels before 5.9: those have no close_range.
    """
    if kept > 3:
        _syscall(_SYS_CLOSE_RANGE, 3, kept - 1, 0)
    _syscall(_SYS_CLOSE_RANGE, kept + 1, _LAST_DESCRIPTOR, 0)
