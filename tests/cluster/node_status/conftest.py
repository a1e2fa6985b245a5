"""Sessions over fakes."""

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
    "directory", "guard", "pool", "principal", "prove_routes", "registry", "standstill", "store", "swept", "unswept",
]  # fmt: skip
