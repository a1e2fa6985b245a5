"""Watching: what a node remembers of its last minutes, for whoever looks for the cause of a trouble."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from app.cluster.node_status.activity import Activity, Looked
from app.cluster.node_status.problems.watch import ProblemWatch
from app.limits.lately import Refusals
from app.limits.tenant_limits import Tallies, TenantGate
from app.processes.process import BackendProcess


@dataclass(frozen=True, slots=True)
class Watching:
    """`activity.run` and `problems.run` are tasks of the node; `tallies` and `refusals` are counted where requests
    end."""

    tallies: Tallies
    refusals: Refusals
    activity: Activity
    problems: ProblemWatch

    @classmethod
    def nothing(cls, node: str) -> Self:
        """A node of which nothing is remembered."""
        return cls(Tallies(), Refusals(), Activity(Tallies(), dict), ProblemWatch(node, ()))


def look(
    gates: Iterable[tuple[str, TenantGate]], waiting: Mapping[str, int], processes: Collection[BackendProcess]
) -> Mapping[str, Looked]:
    """What each tenant has now."""
    found = defaultdict[str, Looked](Looked)
    for tenant, gate in gates:
        if gate.sessions:
            found[tenant] = Looked(gate.sessions)
    running, sizes = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for process in processes:
        running[process.spec.tenant][process.state.value] += 1
        sizes[process.spec.tenant] += process.resident_bytes
    for tenant in {*waiting, *running}:
        sessions = found[tenant].sessions
        found[tenant] = Looked(sessions, waiting.get(tenant, 0), sizes[tenant], running[tenant])
    return found
