"""LimitsUse: what a tenant has taken of its limits, on one node or on all. Values only."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from app.limits.gates import Identity, TenantGate

MOST_PRINCIPALS = 100  # of a node; who has most over all nodes is among the first of one of them, or near enough


@dataclass(frozen=True, slots=True)
class LimitsUse:
    """As the limits count it. `principals` are those with the most sessions, by digest: no node tells who they are."""

    sessions: int = 0
    processes: int = 0
    in_flight: int = 0
    memory_bytes: int = 0
    principals: tuple[tuple[str, int], ...] = ()

    @property
    def sessions_of_one(self) -> int:
        """How many sessions that principal has that has most."""
        return max((sessions for _, sessions in self.principals), default=0)


def use_of(gate: TenantGate | None, processes: int, memory_bytes: int) -> LimitsUse:
    """What this node has; a tenant without sessions has no gate."""
    if gate is None:
        return LimitsUse(0, processes, 0, memory_bytes)
    principals = tuple((_digest(each), sessions) for each, sessions in gate.most_of_one(MOST_PRINCIPALS).items())
    return LimitsUse(gate.sessions, processes, gate.in_flight, memory_bytes, principals)


def added(uses: Iterable[LimitsUse]) -> LimitsUse:
    """What all nodes have."""
    sums, principals = LimitsUse(), Counter[str]()
    for use in uses:
        principals.update(dict(use.principals))
        sums = LimitsUse(
            sums.sessions + use.sessions,
            sums.processes + use.processes,
            sums.in_flight + use.in_flight,
            sums.memory_bytes + use.memory_bytes,
            (),
        )
    return LimitsUse(sums.sessions, sums.processes, sums.in_flight, sums.memory_bytes, tuple(principals.most_common(1)))


def _digest(identity: Identity) -> str:
    return hashlib.sha256(repr(identity).encode("ascii", "backslashreplace")).hexdigest()[:16]
