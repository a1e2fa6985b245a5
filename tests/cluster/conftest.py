"""One node of several, over fakes."""

from tests.cluster.rig import cluster
from tests.sessions.rig import directory, pool, principal, registry, store

__all__ = ["cluster", "directory", "pool", "principal", "registry", "store"]
