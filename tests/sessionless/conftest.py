"""Clients that open no session, over fakes."""

from tests.sessionless.rig import asked, client, implicit, stateless
from tests.sessions.rig import directory, pool, principal, registry, store

__all__ = ["asked", "client", "directory", "implicit", "pool", "principal", "registry", "stateless", "store"]
