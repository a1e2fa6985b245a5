"""Machine: memory and file descriptors, their limits and their use."""

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Use(NamedTuple):
    """The use of a resource; `limit` is 0 where it is not known."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0


@dataclass(frozen=True, slots=True)
class _Group:
    """The memory files of a control group. `cache` is the statistic of use that the kernel can reclaim."""

    limit: Path
    used: Path
    statistics: Path
    cache: str


class Machine:
    """Reads /proc and control groups; each call takes less than 0.1 ms."""

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._groups = list(_groups_of(proc, groups))

    def memory(self) -> Use:
        """Of this process's control group if its limit is below the machine's memory, else of the machine. Includes the
        backends and all else that runs there: when it runs out, the kernel may kill any of them."""
        machine = self._memory_of_machine()
        for group in self._groups:
            with contextlib.suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
                limit = int(group.limit.read_text())
                if 0 < limit < machine.limit:
                    used = int(group.used.read_text()) - _fields(group.statistics).get(group.cache, 0)
                    return Use(max(0, used), limit)
        return machine

    def _memory_of_machine(self) -> Use:
        fields = _fields(self._proc / "meminfo")
        total = fields.get("MemTotal:", 0) * 1024
        return Use(total - fields.get("MemAvailable:", 0) * 1024, total)

    def descriptors(self) -> Use:
        """Of this process; the limit is the soft one."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            return Use(len(os.listdir(self._proc / "self/fd")) - 1, max(0, limit))
        except OSError:  # no /proc; or no descriptor is left to look with
            return Use(max(0, limit), max(0, limit)) if self._proc.exists() else Use(0, 0)


def _groups_of(proc: Path, groups: Path) -> list[_Group]:
    """This process's own control group and those above it, then the root: what a container often sees."""
    found: list[_Group] = []
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = Path(path.lstrip("/"))
            if not controllers:
                found += [_second_version(groups / each) for each in (own, *own.parents)]
            elif "memory" in controllers.split(","):
                found += [_first_version(groups / "memory" / each) for each in (own, *own.parents)]
    return [*found, _second_version(groups), _first_version(groups / "memory")]


def _second_version(group: Path) -> _Group:
    return _Group(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file")


def _first_version(group: Path) -> _Group:
    limit, used = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes"
    return _Group(limit, used, group / "memory.stat", "total_inactive_file")


def _fields(path: Path) -> dict[str, int]:
    """The names and numbers in the lines of a file; empty if it cannot be read."""
    try:
        words = (line.split() for line in path.read_text().splitlines())
        return {each[0]: int(each[1]) for each in words if len(each) > 1}
    except (OSError, ValueError):
        return {}
