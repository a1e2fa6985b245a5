"""Clients that open no session, over fakes."""

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
from tests.sessions.sessionless.rig import asked, client, sessionless, stateless

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
