"""From users to nodes, in arithmetic that the answer shows. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import InvalidRequest

MEMORY_SHARE = 0.8  # of a node's memory: the rest is for the kernel, files that are read, and peaks
CPU_SHARE = 0.7  # of a node's cores, and of the one that its event loop has
REFILL_S = 0.2  # until a warm process that was taken is replaced, besides its start
SHARED_SESSIONS = 100  # of one process; then another is started
SPARE = 1  # nodes that may be away


@dataclass(frozen=True)
class Backend:
    """What sessions with it cost. `mode`: exec, fork or shared. `fixed_mib` is there once on each node: a template,
    what the processes of a program share, or the one process of all."""

    name: str
    mode: str
    process_mib: float
    start_cpu_s: float
    start_s: float
    call_cpu_ms: float
    fixed_mib: float = 0.0
    idle_cpu_s_per_hour: float = 0.0
    park_s: float | None = None
    source: str = "measured"


@dataclass(frozen=True)
class NodeCosts:
    """Of a node itself."""

    node_mib: float
    session_kib: float
    call_cpu_ms: float


@dataclass(frozen=True)
class Demand:
    """`concurrent`: the share of the users who have sessions at the busiest time. `calls_per_hour`: of such a user, to
    all backends together. `arrive_min`: within that time all of them open their sessions."""

    users: int
    concurrent: float
    calls_per_hour: float
    arrive_min: float

    @property
    def at_once(self) -> int:
        return math.ceil(round(self.users * self.concurrent, 6))


@dataclass(frozen=True)
class Machine:
    """A node's."""

    cores: float
    memory_mib: float


@dataclass(frozen=True)
class Part:
    """What one backend needs, on all nodes together; `warm` and `fixed_mib` are of each node."""

    backend: Backend
    sessions: int
    processes: int  # at the same time; shared ones besides the one of each node
    memory_mib: float
    starts_cores: float
    wakes_cores: float
    calls_cores: float
    idle_cores: float
    warm: int


@dataclass(frozen=True)
class Answer:
    """`needed` nodes carry everything; `nodes` has the spare ones besides. `loads`: how many nodes each limit asks for,
    before it is rounded up; `binds` is the largest."""

    parts: tuple[Part, ...]
    sessions_mib: float
    node_mib: float  # of each node, whatever it carries: itself, templates, shared and warm processes
    usable_mib: float  # of each node, for processes and sessions
    gateway_cores: float
    loads: dict[str, float]
    binds: str
    needed: int

    @property
    def nodes(self) -> int:
        return self.needed + SPARE

    @property
    def processes_mib(self) -> float:
        return sum(part.memory_mib for part in self.parts)

    @property
    def memory_mib(self) -> float:
        """Of all nodes that carry something."""
        return self.processes_mib + self.sessions_mib + self.needed * self.node_mib

    @property
    def cores(self) -> float:
        return sum(_cores(part) for part in self.parts) + self.gateway_cores


def answer(backends: Sequence[Backend], demand: Demand, machine: Machine, node: NodeCosts) -> Answer:
    """Each user who is there has a session with each backend.

    Raises:
        InvalidRequest: not even what each node needs for itself fits into one.
    """
    calls_per_s = demand.at_once * demand.calls_per_hour / 3600
    parts = tuple(_part(each, demand, len(backends)) for each in backends)
    sessions_mib = sum(part.sessions for part in parts) * node.session_kib / 1024
    gateway_cores = calls_per_s * node.call_cpu_ms / 1000
    cores = sum(map(_cores, parts)) + gateway_cores
    own = node.node_mib + sum(part.backend.fixed_mib + part.warm * part.backend.process_mib for part in parts)
    usable = machine.memory_mib * MEMORY_SHARE - own
    if usable <= 0:
        raise InvalidRequest(
            f"a node of {machine.memory_mib / 1024:g} GiB is too small: {own:.0f} MiB are for the node itself, "
            "templates, shared and warm processes; "
            f"{MEMORY_SHARE:.0%} of its memory are {machine.memory_mib * MEMORY_SHARE:.0f}"
        )
    loads = {
        "memory": (sum(part.memory_mib for part in parts) + sessions_mib) / usable,
        "cores": cores / (machine.cores * CPU_SHARE),
        "event loop": gateway_cores / CPU_SHARE,
    }
    binds = max(loads, key=loads.__getitem__)
    needed = max(1, math.ceil(round(loads[binds], 6)))
    return Answer(parts, sessions_mib, own, usable, gateway_cores, loads, binds, needed)


def _part(backend: Backend, demand: Demand, of: int) -> Part:
    sessions = demand.at_once
    calls_per_s = demand.calls_per_hour / of / 3600  # of a session
    arrivals_per_s = sessions / (demand.arrive_min * 60)
    away = 0.0 if backend.park_s is None else math.exp(-calls_per_s * backend.park_s)
    wakes_per_s = sessions * calls_per_s * away
    is_shared = backend.mode == "shared"
    # Who has just come has a process, whatever the others do.
    new = 0.0 if backend.park_s is None else min(1.0, backend.park_s / (demand.arrive_min * 60))
    processes = math.ceil(round(sessions * (new + (1 - new) * (1 - away)), 6))
    if is_shared:
        processes //= SHARED_SESSIONS
    started_per_s = 0.0 if is_shared else arrivals_per_s + wakes_per_s
    return Part(
        backend=backend,
        sessions=sessions,
        processes=processes,
        memory_mib=processes * (backend.fixed_mib if is_shared else backend.process_mib),
        starts_cores=0.0 if is_shared else arrivals_per_s * backend.start_cpu_s,
        wakes_cores=0.0 if is_shared else wakes_per_s * backend.start_cpu_s,
        calls_cores=sessions * calls_per_s * backend.call_cpu_ms / 1000,
        idle_cores=(sessions if is_shared else processes) * backend.idle_cpu_s_per_hour / 3600,
        warm=0 if is_shared else math.ceil(round(started_per_s * (backend.start_s + REFILL_S), 6)) + 1,
    )


def _cores(part: Part) -> float:
    return part.starts_cores + part.wakes_cores + part.calls_cores + part.idle_cores
