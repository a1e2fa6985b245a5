"""One node of several, over fakes."""

from tests.cluster.rig import cluster
from tests.sessions.rig import directory, fence, guard, pool, principal, prove_routes, registry, store, swept, unswept

__all__ = [
    "cluster", "directory", "fence", "guard", "pool", "principal", "prove_routes", "registry", "store", "swept",
    "unswept",
]  # fmt: skip
