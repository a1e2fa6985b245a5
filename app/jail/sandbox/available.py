"""Which mechanisms of the kernel this machine offers for a sandbox."""

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from app.jail.sandbox._bubblewrap import find_bubblewrap

PROBE_S = 2.0  # a child process may hang

_SYS_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
_LANDLOCK_VERSION = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_NAMESPACES = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "mount": 0x00020000, "ipc": 0x08000000}
_UNSHARE_CODE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(int(sys.argv[1])) != 0)"
_UNSHARE = (sys.executable, "-I", "-S", "-c", _UNSHARE_CODE)
_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
_libc = ctypes.CDLL(None, use_errno=True)


class Layer(NamedTuple):
    """A mechanism; `detail` says what is available, or why it is not."""

    name: str
    is_available: bool
    detail: str


def landlock() -> Layer:
    """File access rules of the kernel."""
    abi = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    if abi > 0:
        return Layer("landlock", True, f"ABI {abi}")
    return Layer("landlock", False, os.strerror(ctypes.get_errno()))


def seccomp() -> Layer:
    """Filters of system calls."""
    # A filter at address 0: EFAULT from a kernel that has filters, EINVAL from one that has not. Nothing is set.
    _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    number = ctypes.get_errno()
    if number in (errno.EFAULT, errno.EACCES):
        return Layer("seccomp", True, "filters")
    return Layer("seccomp", False, os.strerror(number))


def namespaces() -> Layer:
    """Those that an unprivileged user can create."""
    found = [name for name, flag in _NAMESPACES.items() if _succeeds([*_UNSHARE, str(_NAMESPACES["user"] | flag)])]
    if "user" not in found:
        why = "not for this user (sysctl, AppArmor or the container's seccomp profile)"
        return Layer("user namespaces", False, why)
    return Layer("user namespaces", True, ", ".join(found))


def bubblewrap() -> Layer:
    """The program `bwrap` that sandboxes would be made with."""
    try:
        path = find_bubblewrap().path
    except FileNotFoundError as error:
        return Layer("bubblewrap", False, str(error))
    if _succeeds([path, "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "/bin/true"]):
        return Layer("bubblewrap", True, path)
    return Layer("bubblewrap", False, f"{path} cannot make a sandbox here")


def cgroups(mounts: Path = Path("/proc/self/mountinfo")) -> Layer:
    """Controllers whose directories can be written: limits can be set there."""
    found = []
    for line in mounts.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        root = Path(fields.split()[4])
        if kind == "cgroup2":
            has = (root / "cgroup.controllers").read_text().split() if (root / "cgroup.controllers").exists() else []
            found.append(_controllers("v2", root, has))
        elif kind == "cgroup":
            has = [each for each in _CONTROLLERS if each in options.split()[-1].split(",")]
            found += [_controllers("v1", root, has)] if has else []
    if not found:
        return Layer("cgroups", False, "none are mounted")
    if not any("writable" in each for each in found):
        return Layer("cgroups", False, "; ".join(found))
    return Layer("cgroups", True, "; ".join(found))


def _controllers(version: str, root: Path, names: Sequence[str]) -> str:
    access = "writable" if os.access(root, os.W_OK) else "read-only"
    return f"{version} {' '.join(names) or 'without controllers'} {access}"


def _succeeds(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def layers() -> list[Layer]:
    """All mechanisms, in the order of the report."""
    return [landlock(), seccomp(), namespaces(), bubblewrap(), cgroups()]
