"""Sessions over fakes, on a node that is alone and on one of several."""

from tests.cluster.rig import cluster
from tests.sessions.rig import directory, pool, principal, registry, store

__all__ = ["cluster", "directory", "pool", "principal", "registry", "store"]
