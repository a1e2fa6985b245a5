"""Memory and CPU time of a gateway and of the processes below it, from /proc.

Memory is PSS: a page that n processes share counts for each of them as an nth, so the sum is what the
machine has given. CPU time is that of the living to the nanosecond, and of the dead as their parents have it,
in hundredths of a second.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SPAWNER = "app/jail/spawner/__main__.py"  # a process of the gateway's own: its command line
MIB = 1 << 20


@dataclass(frozen=True)
class Costs:
    """At one moment. What has started the backends belongs to the gateway, but for their memory and CPU time."""

    gateway_mib: float
    backends_mib: float
    backends: int
    gateway_cpu_s: float
    backends_cpu_s: float


def costs_of(pid: int) -> Costs:
    """Of this gateway process and everything below it."""
    root = psutil.Process(pid)
    memory, cpu, count = [0.0, 0.0], [0.0, 0.0], 0
    for process in (root, *root.children(recursive=True)):
        try:
            is_backend = process.pid != pid and SPAWNER not in " ".join(process.cmdline())
            size, spent, of_the_dead = pss_mib(process.pid), cpu_s(process.pid), dead_cpu_s(process)
        except (psutil.Error, OSError):
            continue  # it has ended meanwhile
        memory[is_backend] += size
        cpu[is_backend] += spent
        cpu[True] += of_the_dead
        count += is_backend and process.name() not in ("bwrap", "sh", "dash")
    return Costs(memory[False], memory[True], count, cpu[False], cpu[True])


def pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def cpu_s(pid: int) -> float:
    """Of all its threads, those that have ended too: the clock that clock_getcpuclockid(3) names for a process."""
    return time.clock_gettime((~pid << 3) | 2)


def dead_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "processor": model,
    }
