"""Gauges of the use of limits: of the node, and of how many tenants have reached a limit or are near it.

Tenants have no series of their own: their names are no closed set, and readers of metrics need not know them.
GET /api/v1/use and the log name them.
"""

from collections.abc import Callable, Iterator
from functools import partial

from app.limits.tenant_limits import TenantGates
from app.telemetry.metrics import Metrics

NEAR = 0.8  # of a limit

Use = tuple[int, int]  # what is used, and the limit


def show_use(
    metrics: Metrics, gates: TenantGates, processes: Callable[[str], int], node: dict[str, Callable[[], Use]]
) -> None:
    """Sets the gauges' functions, which each scrape calls. `processes` counts those of a tenant on all nodes, as far as
    is known here; `node` has the limits of the node, by name."""
    for limit in ("sessions", "processes", "in_flight"):
        use = partial(_use_of_tenants, gates, processes, limit)
        metrics.tenants_near_limit.labels(limit).set_function(partial(_count, use, NEAR))
        metrics.tenants_at_limit.labels(limit).set_function(partial(_count, use, 1.0))
    for limit, look in node.items():
        metrics.node_used.labels(limit).set_function(partial(_part, look, 0))
        metrics.node_limit.labels(limit).set_function(partial(_part, look, 1))


def _use_of_tenants(gates: TenantGates, processes: Callable[[str], int], limit: str) -> Iterator[Use]:
    for tenant, gate in gates:
        allowed, used = {
            "sessions": (gate.limits.sessions, gate.sessions + gate.remote_sessions),
            "processes": (gate.limits.processes, processes(tenant)),
            "in_flight": (gate.limits.in_flight, gate.in_flight + gate.remote_in_flight),
        }[limit]
        if allowed:  # neither None (no limit) nor 0 (nothing can be used)
            yield used, allowed


def _count(use: Callable[[], Iterator[Use]], share: float) -> int:
    return sum(used >= share * allowed for used, allowed in use())


def _part(look: Callable[[], Use], which: int) -> float:
    return look()[which]
