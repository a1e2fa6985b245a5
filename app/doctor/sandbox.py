"""What a sandbox could be built of. A node needs none of it yet."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.doctor.findings import Check, State

PROBE_S = 2.0  # a child process may hang

_SYS_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
_LANDLOCK_VERSION = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_NAMESPACES = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "mount": 0x00020000, "ipc": 0x08000000}
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(int(sys.argv[1])) != 0)"
_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
_libc = ctypes.CDLL(None, use_errno=True)


def landlock() -> Check:
    """Rules about files."""
    abi = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    if abi > 0:
        return Check("landlock", State.OK, f"ABI {abi}")
    return _no_layer("landlock", os.strerror(ctypes.get_errno()))


def seccomp() -> Check:
    """Filters of system calls."""
    # A filter at address 0: EFAULT from a kernel that has filters, EINVAL from one that has not. Nothing is set.
    _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    number = ctypes.get_errno()
    if number in (errno.EFAULT, errno.EACCES):
        return Check("seccomp", State.OK, "filters")
    return _no_layer("seccomp", os.strerror(number))


def namespaces() -> Check:
    """Those that a user can make."""

    def can(flag: int) -> bool:
        probe = [sys.executable, "-I", "-S", "-c", _UNSHARE, str(_NAMESPACES["user"] | flag)]
        return _succeeds(probe)

    if not can(0):
        return _no_layer("user namespaces", "not for this user (sysctl, AppArmor or the container's seccomp profile)")
    found = [name for name, flag in _NAMESPACES.items() if name == "user" or can(flag)]
    return Check("user namespaces", State.OK, ", ".join(found))


def bubblewrap() -> Check:
    """A program that puts them together."""
    path = shutil.which("bwrap")
    if path is None:
        return _no_layer("bubblewrap", "bwrap is not on PATH (Debian: apt-get install bubblewrap)")
    if _succeeds([path, "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "/bin/true"]):
        return Check("bubblewrap", State.OK, path)
    return _no_layer("bubblewrap", f"{path} cannot make a sandbox here")


def cgroups(mounts: Path = Path("/proc/self/mountinfo")) -> Check:
    """Which limits could be set: a controller counts where its directory can be written."""
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
        return _no_layer("cgroups", "none are mounted")
    if not any("writable" in each for each in found):
        return _no_layer("cgroups", "; ".join(found))
    return Check("cgroups", State.OK, "; ".join(found))


def _controllers(version: str, root: Path, names: Sequence[str]) -> str:
    access = "writable" if os.access(root, os.W_OK) else "read-only"
    return f"{version} {' '.join(names) or 'without controllers'} {access}"


def _no_layer(name: str, detail: str) -> Check:
    return Check(name, State.OPTIONAL, detail, "For the sandbox of a later version; nothing needs it now.")


def _succeeds(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
