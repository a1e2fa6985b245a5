"""LimitsUse: how much of its limits a tenant uses, on one node or on all."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.limits.tenant_limits import Identity, TenantGate

MOST_PRINCIPALS = 100  # that a node tells: the one with the most sessions on all nodes is very likely among them


@dataclass(frozen=True, slots=True)
class LimitsUse:
    """As the limits count. `principals`: (digest, sessions) of those with the most sessions. `spawns`: processes that
    were started within the last minute."""

    sessions: int = 0
    processes: int = 0
    in_flight: int = 0
    memory_bytes: int = 0
    principals: tuple[tuple[str, int], ...] = ()
    spawns: int = 0
    parked_sessions: int = 0
    frozen_sessions: int = 0

    @property
    def sessions_of_one(self) -> int:
        """The sessions of the principal that has the most."""
        return max((sessions for _, sessions in self.principals), default=0)


def use_of(gate: TenantGate | None, processes: int, memory_bytes: int, spawns: int) -> LimitsUse:
    """The use on this node; a tenant without sessions has no gate."""
    if gate is None:
        return LimitsUse(0, processes, 0, memory_bytes, spawns=spawns)
    principals = tuple((_digest(each), sessions) for each, sessions in gate.most_of_one(MOST_PRINCIPALS).items())
    resting = gate.resting
    return LimitsUse(
        gate.sessions,
        processes,
        gate.in_flight,
        memory_bytes,
        principals,
        spawns,
        resting["parked"],
        resting["frozen"],
    )


def added(uses: Sequence[LimitsUse]) -> LimitsUse:
    """The use on all nodes."""
    principals = Counter[str]()
    for use in uses:
        principals.update(dict(use.principals))
    return LimitsUse(
        sum(use.sessions for use in uses),
        sum(use.processes for use in uses),
        sum(use.in_flight for use in uses),
        sum(use.memory_bytes for use in uses),
        tuple(principals.most_common(1)),
        sum(use.spawns for use in uses),
        sum(use.parked_sessions for use in uses),
        sum(use.frozen_sessions for use in uses),
    )


def _digest(identity: Identity) -> str:
    return hashlib.sha256(repr(identity).encode("ascii", "backslashreplace")).hexdigest()[:16]
