"""Sessions over fakes, on a node that is alone and on one of several."""

from tests.cluster.rig import cluster
from tests.sessions.rig import (
    directory,
    guard,
    pool,
    principal,
    prove_routes,
    registry,
    standstill,
    store,
    swept,
    unswept,
)

__all__ = [
    "cluster", "directory", "guard", "pool", "principal", "prove_routes", "registry", "standstill", "store", "swept",
    "unswept",
]  # fmt: skip
