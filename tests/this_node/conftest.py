"""Sessions over fakes."""

from tests.sessions.rig import directory, pool, principal, registry, store

__all__ = ["directory", "pool", "principal", "registry", "store"]
