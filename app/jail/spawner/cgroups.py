"""Control groups: one for each process and all it starts, below one of its tenant. They limit, count, and end a tree as
a whole, whatever it has done to its sessions and parents.

Version 1 has a directory for each controller. Version 2 has one (`unified`), which may have controllers or none: then
it only ends and freezes trees, and the limits are those of version 1.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from app.jail.spawner.wire import Cgroup, Order

UNIFIED = "unified"
_TENANT = "tenant-"  # so that no tenant's name is that of a control file
_PERIOD_US = 100_000
_ATTEMPTS = 3  # a tenant's group may be removed between its making and that of the process's
_FREEZE_S = 0.01  # how long a tree may take to stand still
_FREEZE_LOOKS = 10
_FULL_WITHIN_BYTES = 1 << 20  # memory is charged in batches


class Usage(NamedTuple):
    """What a process with all it started uses, and how often it met its limits. 0 where nothing counts it."""

    memory_bytes: int = 0
    oom_kills: int = 0
    pids: int = 0
    refused_forks: int = 0
    cpu_us: int = 0
    throttled_us: int = 0


class _Setting(NamedTuple):
    file: str
    value: str
    ignored: tuple[int, ...] = ()  # errors after which the limit is as strict, or cannot be stricter


class Group:
    """The group of one process, which may or may not be there."""

    def __init__(self, cgroup: Cgroup, process_id: str) -> None:
        self._cgroup = cgroup
        self._id = process_id
        self._roots = cgroup["roots"]
        self._tenants = {root: f"{root}/{_TENANT}{cgroup['tenant']}" for root in self._roots.values()}
        self._directories = {root: f"{tenant}/{process_id}" for root, tenant in self._tenants.items()}

    @property
    def joins(self) -> list[str]:
        """The files to which a process writes `0` to become a member."""
        return [f"{directory}/cgroup.procs" for directory in self._directories.values()]

    # --- making

    def make(self) -> None:
        """Makes the group and sets its limits; leaves nothing behind if it fails.

        Raises:
            OSError: the kernel refuses.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._make_tenant()
                self.limit_tenant(self._cgroup.get("tenant_memory_bytes"))
                for directory in self._directories.values():
                    os.mkdir(directory)
                self._set(self._directories, self._limits())
                return
            except OSError as error:
                self.remove()
                if not left or error.errno != errno.ENOENT:
                    raise

    def limit_tenant(self, memory_bytes: int | None) -> None:
        """Sets the limit of the tenant's group. Version 1 does not lower one below what is used.

        Raises:
            OSError: the kernel refuses, or there is no such group.
        """
        self._set(self._tenants, {"memory": self._memory(memory_bytes)})

    def _make_tenant(self) -> None:
        for root, directory in self._tenants.items():
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
                if root == self._roots.get(UNIFIED):
                    pass_controllers_on(directory, self._roots)

    def _limits(self) -> dict[str, list[_Setting]]:
        found: dict[str, list[_Setting]] = {}
        if "memory_bytes" in self._cgroup:
            found["memory"] = self._memory(self._cgroup["memory_bytes"])
            if self._is_v2("memory"):
                found["memory"].append(_Setting("memory.oom.group", "1", (errno.ENOENT,)))
        if "pids" in self._cgroup:
            found["pids"] = [_Setting("pids.max", str(self._cgroup["pids"]))]
        if "cpu" in self._cgroup:
            quota = str(round(self._cgroup["cpu"] * _PERIOD_US))
            if self._is_v2("cpu"):
                found["cpu"] = [_Setting("cpu.max", f"{quota} {_PERIOD_US}")]
            else:  # EINVAL: a group above has less
                found["cpu"] = [_Setting("cpu.cfs_quota_us", quota, (errno.EINVAL,))]
        return found

    def _memory(self, size: int | None) -> list[_Setting]:
        """No swap on top of it, where the kernel counts swap."""
        if self._is_v2("memory"):
            swap = _Setting("memory.swap.max", "max" if size is None else "0", (errno.ENOENT,))
            return [_Setting("memory.max", "max" if size is None else str(size)), swap]
        # That of memory and swap is never less than that of memory: first for raising both, again for lowering both.
        value = str(-1 if size is None else size)
        both = _Setting("memory.memsw.limit_in_bytes", value, (errno.ENOENT, errno.EINVAL, errno.EBUSY))
        return [both, _Setting("memory.limit_in_bytes", value, (errno.EBUSY,)), both]

    def _is_v2(self, controller: str) -> bool:
        return self._roots.get(controller) == self._roots.get(UNIFIED)

    def _set(self, directories: Mapping[str, str], limits: Mapping[str, list[_Setting]]) -> None:
        for controller, settings in limits.items():
            if controller in self._roots:
                for each in settings:
                    try:
                        write(f"{directories[self._roots[controller]]}/{each.file}", each.value)
                    except OSError as error:
                        if error.errno not in each.ignored:
                            raise

    def take(self, pid: int) -> None:
        """Makes a process a member. Raises OSError."""
        for path in self.joins:
            write(path, str(pid))

    # --- ending

    def kill(self) -> bool:
        """Kills all members. Returns whether there were any: look again."""
        root = self._roots.get(UNIFIED) or self._roots.get("freezer") or next(iter(self._roots.values()))
        return kill(self._directories[root])

    def remove(self) -> bool:
        """Removes the group, and its tenant's with the last of it. Returns whether it is gone."""
        gone = [remove(directory) for directory in self._directories.values()]
        for directory in self._tenants.values():
            with contextlib.suppress(OSError):  # others are there
                os.rmdir(directory)
        return all(gone)

    # --- standing still

    @property
    def can_freeze(self) -> bool:
        return bool(self._freezer)

    def freeze(self) -> None:
        """Has all members stand still, soon: see `is_frozen`. Raises OSError."""
        _freeze(self._freezer)

    def thaw(self) -> None:
        """They go on, if they stood still. Raises OSError."""
        _thaw(self._freezer)
        if self._may_swap_frozen:
            with contextlib.suppress(OSError):
                write(f"{self._at('memory')}/memory.swap.max", "0")

    def is_frozen(self) -> bool:
        return _is_frozen(self._freezer)

    def push_out(self, size: int) -> bool:
        """Has the kernel move up to so much of the members' memory to swap; version 1 all that it can. Blocks. Returns
        whether there may be more of it.

        Raises:
            OSError: it does not, or there is no more.
        """
        if "memory" not in self._roots:
            return False
        directory = self._at("memory")
        if not self._is_v2("memory"):
            write(f"{directory}/memory.force_empty", "0")
            return False
        if self._may_swap_frozen:
            write(f"{directory}/memory.swap.max", "max")
        write(f"{directory}/memory.reclaim", str(size))
        return True

    @property
    def _may_swap_frozen(self) -> bool:
        """Whether the limit of memory forbids swap, which it need not while nothing runs that could use more."""
        return "memory_bytes" in self._cgroup and "memory" in self._roots and self._is_v2("memory")

    @property
    def _freezer(self) -> str:
        return self._at(UNIFIED) or self._at("freezer")

    # --- reading

    def usage(self) -> Usage:
        """Blocks for as long as it takes to read six files of the kernel. Memory is that which cannot be reclaimed."""
        memory, pids, cpu = map(self._at, ("memory", "pids", "cpu"))
        is_v2 = self._is_v2("memory")
        throttled = _keys(f"{cpu}/cpu.stat")
        return Usage(
            memory_bytes=_resident(_keys(f"{memory}/memory.stat"), "" if is_v2 else "total_"),
            oom_kills=_keys(f"{memory}/{self._of_kills}").get("oom_kill", 0),
            pids=_number(f"{pids}/pids.current"),
            refused_forks=_keys(f"{pids}/pids.events").get("max", 0),
            cpu_us=_keys(f"{self._at(UNIFIED)}/cpu.stat").get("usage_usec", 0),
            throttled_us=throttled.get("throttled_usec", 0) or throttled.get("throttled_time", 0) // 1000,
        )

    def denials(self) -> tuple[int, int]:
        """Forks that were refused, and kills for want of memory: as `usage`, by two files."""
        refused = _keys(f"{self._at('pids')}/pids.events").get("max", 0)
        return refused, _keys(f"{self._at('memory')}/{self._of_kills}").get("oom_kill", 0)

    @property
    def _of_kills(self) -> str:
        return "memory.events" if self._is_v2("memory") else "memory.oom_control"

    def limit_that_killed(self) -> str:
        """Whose memory limit had the kernel kill a member: `memory` of the process, `tenant_memory`, or empty."""
        if not self.usage().oom_kills:
            return ""
        memory = self._roots["memory"]
        if self._was_full(self._directories[memory]):
            return "memory"
        return "tenant_memory" if self._was_full(self._tenants[memory]) else ""

    def _was_full(self, directory: str) -> bool:
        if self._is_v2("memory"):
            return _keys(f"{directory}/memory.events.local").get("oom", 0) > 0
        most = _number(f"{directory}/memory.max_usage_in_bytes")
        return most + _FULL_WITHIN_BYTES >= _number(f"{directory}/memory.limit_in_bytes")

    def _at(self, controller: str) -> str:
        return self._directories.get(self._roots.get(controller, ""), "")


def group_of(order: Order) -> Group | None:
    """The group of the process that is ordered; None if it is to have none."""
    cgroup = order["confinement"].get("cgroup")
    return Group(cgroup, order["id"]) if cgroup and cgroup["roots"] else None


# --- any group


def write(path: str, text: str) -> None:
    """Writes a control file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def pass_controllers_on(directory: str, roots: Mapping[str, str]) -> None:
    """Lets the groups below this one of version 2 have its controllers. Raises OSError."""
    names = [name for name, root in roots.items() if name != UNIFIED and root == roots.get(UNIFIED)]
    if names:
        write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in names))


def members(directory: str) -> list[int]:
    """The processes of this group; zombies are none."""
    return [int(pid) for pid in _read(f"{directory}/cgroup.procs").split()]


def kill(directory: str) -> bool:
    """Kills all members of this group and of those below it. Returns whether there were any: look again."""
    groups = [directory, *_below(directory)]
    if not any(map(members, groups)):
        return False
    try:
        write(f"{directory}/cgroup.kill", "1")
    except OSError:  # version 1, or Linux before 5.14
        for each in groups:
            _kill_one_by_one(each)
    return True


def _kill_one_by_one(directory: str) -> None:
    """First they are made to stand still: nothing forks, and no pid is reused."""
    with contextlib.suppress(OSError):
        _freeze(directory)
        for _ in range(_FREEZE_LOOKS):
            if _is_frozen(directory):
                break
            time.sleep(_FREEZE_S / _FREEZE_LOOKS)
    for pid in members(directory):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        _thaw(directory)


def _freeze(directory: str) -> None:
    """Raises OSError."""
    try:
        write(f"{directory}/cgroup.freeze", "1")
    except FileNotFoundError:  # version 1
        write(f"{directory}/freezer.state", "FROZEN")


def _thaw(directory: str) -> None:
    """Raises OSError."""
    try:
        write(f"{directory}/cgroup.freeze", "0")
    except FileNotFoundError:
        write(f"{directory}/freezer.state", "THAWED")


def _is_frozen(directory: str) -> bool:
    if _keys(f"{directory}/cgroup.events").get("frozen"):
        return True
    return _read(f"{directory}/freezer.state").strip() == b"FROZEN"


def remove(directory: str) -> bool:
    """Removes a group without members, and those below it that its members made. Returns whether it is gone."""
    try:
        os.rmdir(directory)
    except OSError:
        for each in [*_below(directory), directory]:
            with contextlib.suppress(OSError):
                os.rmdir(each)
    return not os.path.exists(directory)


def _below(directory: str) -> list[str]:
    """The groups below this one, the innermost first."""
    return [path for path, _, _ in os.walk(directory, topdown=False) if path != directory]


def groups_in(roots: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Tenant and process id of every group below these directories."""
    seen = set()
    for root in set(roots.values()):
        for tenant in _subdirectories(root):
            if tenant.startswith(_TENANT):
                seen |= {(tenant[len(_TENANT) :], each) for each in _subdirectories(f"{root}/{tenant}")}
    yield from seen


def _subdirectories(directory: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    return []


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _resident(statistics: Mapping[str, int], prefix: str) -> int:
    """What cannot be reclaimed: without the cache of files, which fills up to the limit."""
    return statistics.get("anon", statistics.get(f"{prefix}rss", 0)) + statistics.get(f"{prefix}shmem", 0)


def _keys(path: str) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    fields = [line.split() for line in _read(path).decode().splitlines()]
    return {each[0]: int(each[1]) for each in fields if len(each) == 2 and each[1].isdigit()}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:  # there is no such controller, or no such group any more
        return b""
