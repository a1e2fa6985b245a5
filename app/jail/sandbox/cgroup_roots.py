"""Where this node makes its control groups: below the group that it is in, if it may."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.domain import ProcessLimits
from app.jail.spawner import cgroups
from app.jail.spawner.cgroups import UNIFIED, Group, Usage
from app.jail.spawner.wire import Cgroup

MIB = 1 << 20
_LIMITING = ("memory", "pids", "cpu")
_CONTROLLERS = (*_LIMITING, "freezer")
_NODES = "trunkline-nodes"  # the group that the node itself moves to: one that has controllers has no members
_NAME = re.compile(r"trunkline-[0-9]+-[0-9a-f]{8}")
_DELEGATED = ("trusted.delegate", "user.delegate")  # systemd marks a group with Delegate=yes
_ATTEMPTS = 3  # another node that starts may take our group for a dead node's, before it is locked
_END_S = 2.0  # for what a dead node has left
_LOOK_AGAIN_S = 0.01
_FILES = {  # without which there are no limits: in version 2, in version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "freezer": ("freezer.state",),
    UNIFIED: ("cgroup.kill", "cgroup.procs"),
}


class _Mount(NamedTuple):
    """One hierarchy; `own` is the group that this process is in."""

    controllers: tuple[str, ...]  # empty for version 2
    own: Path


@dataclass(slots=True)
class CgroupRoots:
    """`directories`: by controller, as in `Cgroup.roots`. `missing`: why a controller is not among them.

    The directories are locked while the node lives; those of dead nodes are removed by the next one.
    """

    directories: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    _locks: dict[Path, int] = field(default_factory=dict)

    def add(self, base: Path, controllers: Iterable[str]) -> None:
        """Makes and locks a directory for these controllers. Raises OSError."""
        directory, lock = _make(base)
        self._locks[directory] = lock
        for name in controllers:
            if any((directory / each).exists() for each in _FILES[name]):
                self.directories[name] = str(directory)
                self.missing.pop(name, None)
            else:
                self.missing[name] = f"{base}: the kernel has no {_FILES[name][-1]}"

    def lack(self, base: Path, controllers: Iterable[str], error: OSError) -> None:
        self.missing |= dict.fromkeys(controllers, f"{base}: {error.strerror}")

    def cgroup(self, tenant: str, limits: ProcessLimits, tenant_memory_mb: int | None = None) -> Cgroup:
        """The group of a process of this tenant. `tenant` may be any file name."""
        group = self._of(tenant, tenant_memory_mb)
        if limits.memory_mb is not None:
            group["memory_bytes"] = limits.memory_mb * MIB
        if limits.pids is not None:
            group["pids"] = limits.pids
        if limits.cpu is not None:
            group["cpu"] = limits.cpu
        return group

    def _of(self, tenant: str, memory_mb: int | None = None) -> Cgroup:
        group: Cgroup = {"roots": self._needed(), "tenant": tenant}
        if memory_mb is not None:
            group["tenant_memory_bytes"] = memory_mb * MIB
        return group

    def _needed(self) -> dict[str, str]:
        """A process waits in the kernel for each hierarchy that it joins. `unified` ends groups without the freezer."""
        if UNIFIED in self.directories:
            return {name: path for name, path in self.directories.items() if name != "freezer"}
        return self.directories

    @property
    def why_not_frozen(self) -> str:
        """Why no process can be frozen on this node; empty if it can be."""
        if UNIFIED in self.directories:
            has_it = os.path.exists(f"{self.directories[UNIFIED]}/cgroup.freeze")
            return "" if has_it else "the kernel has no cgroup.freeze (Linux 5.2)"
        if "freezer" in self.directories:
            return ""
        return self.missing.get(UNIFIED) or self.missing.get("freezer", "no control groups")

    def usage(self, tenant: str, process_id: str) -> Usage:
        """What a process uses, with all it has started. Blocks while it reads: call it in a thread."""
        return Group(self._of(tenant), process_id).usage()

    def limit_tenant(self, tenant: str, memory_mb: int | None) -> None:
        """Changes the limit of a tenant's running processes, if it has any. Blocks while memory is reclaimed: call it
        in a thread.

        Where a tenant uses more already, version 1 leaves the limit as it is, and version 2 kills a process.

        Raises:
            OSError: the kernel refuses.
        """
        with contextlib.suppress(FileNotFoundError):  # the last process has ended
            Group(self._of(tenant), "").limit_tenant(None if memory_mb is None else memory_mb * MIB)

    def close(self) -> None:
        """Removes the directories; call it when the spawner is gone."""
        while self._locks:
            directory, lock = self._locks.popitem()
            _end(str(directory))
            os.close(lock)


def open_roots(mounts: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> CgroupRoots:
    """Makes this node's directories wherever it may, and removes those of dead nodes."""
    roots = CgroupRoots(missing=dict.fromkeys((*_CONTROLLERS, UNIFIED), "no such hierarchy is mounted"))
    for mount in sorted(_mounts(mounts, own)):  # version 2 first
        base = mount.own.parent if mount.own.name == _NODES else mount.own
        try:
            if mount.controllers:
                _open_v1(roots, base, mount.controllers)
            else:
                _open_v2(roots, base)
        except OSError as error:
            roots.lack(base, mount.controllers or (UNIFIED,), error)
    return roots


def _open_v2(roots: CgroupRoots, base: Path) -> None:
    if not os.access(base / "cgroup.procs", os.W_OK):  # needed for moving a process from one group below it to another
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    has = [UNIFIED]
    for name in set(_LIMITING).intersection((base / "cgroup.controllers").read_text().split()):
        try:
            _enable(base, name)
            has.append(name)
        except OSError as error:
            roots.lack(base, [name], error)
    roots.add(base, has)
    cgroups.pass_controllers_on(roots.directories[UNIFIED], roots.directories)


def _enable(base: Path, controller: str) -> None:
    """Lets groups below `base` have the controller. Its members, as this node, make room for that."""
    if controller in (base / "cgroup.subtree_control").read_text().split():
        return
    for _ in range(_ATTEMPTS):
        try:
            cgroups.write(f"{base}/cgroup.subtree_control", f"+{controller}")
            return
        except OSError as error:
            if error.errno != errno.EBUSY or not _is_given_to_us(base):
                raise
        (base / _NODES).mkdir(exist_ok=True)
        for pid in cgroups.members(str(base)):
            with contextlib.suppress(ProcessLookupError):
                cgroups.write(f"{base}/{_NODES}/cgroup.procs", str(pid))
    raise OSError(errno.EBUSY, "processes keep joining the group")


def _is_given_to_us(base: Path) -> bool:
    """Whether what is in this group may be moved: it was delegated, is a container's, or only we are in it."""
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(base, name) == b"1":
                return True
    is_containers = os.path.ismount(base)  # the group at the top of the whole machine needs no room
    is_users = base.stat().st_uid == os.geteuid() != 0
    return is_containers or is_users or set(cgroups.members(str(base))) <= {os.getpid()}


def _open_v1(roots: CgroupRoots, base: Path, controllers: tuple[str, ...]) -> None:
    wanted = [name for name in controllers if name in _CONTROLLERS and name not in roots.directories]
    if wanted:
        roots.add(base, wanted)


def _make(base: Path) -> tuple[Path, int]:
    """Makes and locks a directory for this node. Raises OSError."""
    _end_leftovers(base)
    for _ in range(_ATTEMPTS):
        directory = base / f"trunkline-{os.getpid()}-{secrets.token_hex(4)}"
        directory.mkdir()
        with contextlib.suppress(OSError):
            lock = _lock(directory)
            if directory.exists():
                return directory, lock
            os.close(lock)
    raise OSError(errno.EAGAIN, "another node removes the group")


def _lock(directory: Path) -> int:
    """Raises OSError: another node has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _end_leftovers(base: Path) -> None:
    for directory in base.iterdir():
        if _NAME.fullmatch(directory.name):
            with contextlib.suppress(OSError):
                if directory.stat().st_uid == os.geteuid():
                    lock = _lock(directory)
                    try:
                        _end(str(directory))
                    finally:
                        os.close(lock)


def _end(directory: str) -> None:
    """Kills what is in it, and removes it. What the kernel holds for longer is left to the next node that starts."""
    give_up_at = time.monotonic() + _END_S
    while cgroups.kill(directory) or not cgroups.remove(directory):
        if time.monotonic() > give_up_at:
            return
        time.sleep(_LOOK_AGAIN_S)


def _mounts(mounts: Path, own: Path) -> Iterator[_Mount]:
    groups: Mapping[str, str] = dict(line.split(":", 2)[1:] for line in own.read_text().splitlines())
    for line in mounts.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        top, mounted_at = (_unescaped(each) for each in fields.split()[3:5])
        if kind == "cgroup2":
            yield _Mount((), _own(Path(mounted_at), top, groups.get("")))
        elif kind == "cgroup":
            has = set(options.split()[-1].split(","))
            names = next((each for each in groups if each and has.issuperset(each.split(","))), "")
            if has.intersection(_CONTROLLERS):
                controllers = tuple(sorted(has.intersection(_CONTROLLERS)))
                yield _Mount(controllers, _own(Path(mounted_at), top, groups.get(names)))


def _own(mounted_at: Path, top: str, group: str | None) -> Path:
    """The directory of this group, which may be outside of what is mounted: then the top of the mount."""
    if group is None or not Path(group).is_relative_to(top):
        return mounted_at
    return mounted_at / Path(group).relative_to(top)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
