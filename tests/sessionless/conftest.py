"""Clients that open no session, over fakes."""

from tests.sessionless.rig import asked, client, implicit, stateless
from tests.sessions.rig import directory, fence, guard, pool, principal, prove_routes, registry, store, swept, unswept

__all__ = [
    "asked", "client", "directory", "fence", "guard", "implicit", "pool", "principal", "prove_routes", "registry",
    "stateless", "store", "swept", "unswept",
]  # fmt: skip
