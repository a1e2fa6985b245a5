"""Streams of sessions over fakes."""

from tests.sessions.rig import directory, fence, guard, pool, principal, prove_routes, registry, store, swept, unswept

__all__ = [
    "directory", "fence", "guard", "pool", "principal", "prove_routes", "registry", "store", "swept", "unswept",
]  # fmt: skip
