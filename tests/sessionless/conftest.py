"""Clients that open no session, over fakes."""

from tests.sessionless.rig import asked, client, sessionless, stateless
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
    "asked",
    "client",
    "directory",
    "guard",
    "pool",
    "principal",
    "prove_routes",
    "registry",
    "sessionless",
    "standstill",
    "stateless",
    "store",
    "swept",
    "unswept",
]  # fmt: skip
