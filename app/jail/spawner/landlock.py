"""Landlock: a process restricts itself, and all that it starts, to files and TCP ports. It needs no privilege.

What it leaves open at any version: metadata of files (stat, chmod, chown, utime), Unix sockets with a path, UDP. A
process in one domain cannot look into one that is in another, or in none.
"""

import errno
import os
import stat
import struct
from typing import Any

from app.jail.spawner import syscalls
from app.jail.spawner.wire import Landlock

# Since which ABI: files (before it truncate() was free everywhere), TCP ports, signals and abstract sockets.
FILES_ABI, PORTS_ABI, SCOPES_ABI = 3, 4, 6

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = 0x1FFF & ~0xF  # remove a directory or file, make a device, directory, file, socket, pipe, link
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_AND_MAKE | _REFER | _TRUNCATE | _IOCTL_DEV
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # the others are only for directories
_SINCE = {_REFER: 2, _TRUNCATE: 3, _IOCTL_DEV: 5}

_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)


def abi() -> int:
    """The version of the kernel's Landlock; 0 if it has none, or it is switched off."""
    try:
        return syscalls.call(_CREATE_RULESET, 0, 0, _VERSION)
    except OSError:
        return 0


def within(rules: Landlock, version: int) -> Landlock:
    """The rules without those that Landlock of this version lacks. Whoever uses this names what is not enforced."""
    kept = rules.copy()
    if version < 1:
        return {}
    if version < PORTS_ABI:
        kept.pop("connect", None)
        kept.pop("bind", None)
    if version < SCOPES_ABI:
        kept.pop("scoped", None)
    return kept


def restrict(rules: Landlock) -> None:
    """Applies the rules to this process; needs no_new_privs.

    Raises:
        OSError: the kernel cannot enforce one of them: none is applied.
    """
    files, ports, scopes = _masks(rules)
    if not files | ports | scopes:
        return
    # Older kernels take the structure if what they do not know is 0.
    attributes = struct.pack("QQQ", files, ports, scopes)
    ruleset = syscalls.call(_CREATE_RULESET, syscalls.address(attributes), len(attributes), 0)
    try:
        for path in rules.get("read", ()):
            _allow_path(ruleset, path, files & _READ)
        for path in rules.get("write", ()):
            _allow_path(ruleset, path, files)
        for port in rules.get("connect", ()):
            _allow_port(ruleset, port, _CONNECT_TCP)
        for port in rules.get("bind", ()):
            _allow_port(ruleset, port, _BIND_TCP)
        syscalls.call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def for_fork(rules: Landlock) -> dict[str, Any] | None:
    """The same for a process that has nothing of this module (forked/inside.py). Raises OSError."""
    masks = _masks(rules)
    if not any(masks):
        return None
    read, write = masks[0] & _READ, masks[0]
    paths = [(path, read, read & _OF_FILES) for path in rules.get("read", ())]
    paths += [(path, write, write & _OF_FILES) for path in rules.get("write", ())]
    ports = [(port, _CONNECT_TCP) for port in rules.get("connect", ())]
    return {"masks": masks, "paths": paths, "ports": ports + [(port, _BIND_TCP) for port in rules.get("bind", ())]}


def _masks(rules: Landlock) -> tuple[int, int, int]:
    """The rights to files, of ports, and the scopes that are denied. Raises OSError."""
    version = abi()
    if rules != within(rules, version):
        raise OSError(errno.EOPNOTSUPP, f"Landlock of this kernel (ABI {version}) cannot enforce these rules")
    files = _files(rules, version)
    ports = (_CONNECT_TCP if "connect" in rules else 0) | (_BIND_TCP if "bind" in rules else 0)
    return files, ports, _ABSTRACT_SOCKETS | _SIGNALS if rules.get("scoped") else 0


def _files(rules: Landlock, version: int) -> int:
    """The rights that are denied but where a rule grants them."""
    wanted = (_READ if "read" in rules else 0) | (_WRITE if "write" in rules else 0)
    for right, since in _SINCE.items():
        if version < since:
            wanted &= ~right
    return wanted


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, descriptor)
            syscalls.call(_ADD_RULE, ruleset, _PATH_BENEATH, syscalls.address(rule), 0)
    finally:
        os.close(descriptor)


def _allow_port(ruleset: int, port: int, right: int) -> None:
    rule = struct.pack("QQ", right, port)
    syscalls.call(_ADD_RULE, ruleset, _NET_PORT, syscalls.address(rule), 0)
