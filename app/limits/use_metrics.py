"""How full things are, as gauges: of the node, and how many tenants have used a limit up or are about to.

Tenants have no series of their own: their names are no closed set, and whoever reads metrics need not know who the
others are. GET /api/v1/use and the log say who it is.
"""

from collections.abc import Callable, Iterator
from functools import partial

from app.limits.gates import TenantGates
from app.metrics import Metrics

NEAR = 0.8  # of a limit

Use = tuple[int, int]  # what is used, and the limit


class TenantsUse:
    """What the tenants with sessions on this node have used, over all nodes as far as this one knows."""

    def __init__(self, gates: TenantGates, processes: Callable[[str], int]) -> None:
        self._gates, self._processes = gates, processes

    def count(self, limit: str, share: float) -> int:
        """How many have used so much of the limit."""
        return sum(used >= share * allowed for used, allowed in self._of(limit))

    def _of(self, limit: str) -> Iterator[Use]:
        for tenant, gate in self._gates:
            limits = gate.limits
            allowed, used = {
                "sessions": (limits.sessions, gate.sessions + gate.sessions_elsewhere),
                "processes": (limits.processes, self._processes(tenant)),
                "in_flight": (limits.in_flight, gate.in_flight + gate.in_flight_elsewhere),
            }[limit]
            if allowed:  # none is no limit; nothing is allowed where it is 0, and nothing is used
                yield used, allowed


def show_use(metrics: Metrics, tenants: TenantsUse, node: dict[str, Callable[[], Use]]) -> None:
    """Has each scrape ask. `node` has the limits of the node, by name."""
    for limit in ("sessions", "processes", "in_flight"):
        metrics.tenants_near_limit.labels(limit).set_function(partial(tenants.count, limit, NEAR))
        metrics.tenants_at_limit.labels(limit).set_function(partial(tenants.count, limit, 1.0))
    for limit, look in node.items():
        metrics.node_used.labels(limit).set_function(partial(_part, look, 0))
        metrics.node_limit.labels(limit).set_function(partial(_part, look, 1))


def _part(look: Callable[[], Use], which: int) -> float:
    return look()[which]
