"""A registry over fakes, clients that open no session with it, and a principal.

Tests of what greets by itself have a `pool` of their own, a ServerPool; the registry is then over that.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.auth.sealing import Sealer
from app.domain import BackendSpec, Principal, Timeouts
from app.metrics import Metrics
from app.protocol.calls.call_deadlines import CANCEL_GRACE_S
from app.sessionless.requests import ImplicitSessions
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from tests.sessions.cluster import Cluster, running_cluster
from tests.sessions.fakes import FakePool, FakeStore, alone
from tests.sessions.modern_client import ELICITS, Client, held

SPEC = BackendSpec(
    "acme", "echo", "echo-server", calls_per_session=32, timeouts=Timeouts(idle_s=100.0, absolute_s=1000.0)
)
MAX_SESSIONS = 50


@pytest.fixture
def principal() -> Principal:
    return Principal("acme", "key", "k1", frozenset({"mcp:connect"}))


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(SPEC)


@pytest.fixture
def stateless(store: FakeStore) -> None:
    """The backend keeps no state: home may be joined by other processes."""
    store.specs[SPEC.key] = replace(SPEC, recovery="respawn")


@pytest.fixture
def directory(store: FakeStore) -> BackendDirectory:
    return BackendDirectory(SimpleNamespace(get=store.get_backend), SimpleNamespace(get=store.get_tenant))


@pytest.fixture
async def registry(pool: FakePool, directory: BackendDirectory) -> AsyncIterator[SessionRegistry]:
    """Every test ends with nothing held: no process, no call counted."""
    typed_pool: Any = pool
    async with SessionRegistry(directory, typed_pool, Metrics("test"), alone(), max_sessions=MAX_SESSIONS) as registry:
        yield registry
        gates = {session.gate for session in registry}
    assert all(gate.in_flight == 0 for gate in gates)
    assert all(lease.released for lease in pool.leases)


@pytest.fixture
async def implicit(registry: SessionRegistry) -> AsyncIterator[ImplicitSessions]:
    """Every test ends with nothing held: no line, no suspended call, no call counted."""
    implicit = ImplicitSessions(registry, Sealer(b"k" * 32))
    yield implicit
    end_of_grace = time.monotonic() + CANCEL_GRACE_S + 1
    for session in registry:
        session.sweep(end_of_grace)
    assert [line for session in registry for line in held(implicit, session.principal)] == []
    assert len(implicit.suspended) == 0
    assert {session.gate.in_flight for session in registry} <= {0}


@pytest.fixture
def client(implicit: ImplicitSessions, principal: Principal) -> Client:
    return Client(implicit, principal)


@pytest.fixture
def asked(implicit: ImplicitSessions, principal: Principal) -> Client:
    """A client that answers questions."""
    return Client(implicit, principal, ELICITS)


@pytest.fixture
async def cluster(directory: BackendDirectory, store: FakeStore, principal: Principal) -> AsyncIterator[Cluster]:
    """One of several nodes; it has a stateful backend, `echo`, and one without state, `stateless`."""
    store.specs["acme", "stateless"] = replace(SPEC, name="stateless", recovery="respawn")
    async with running_cluster(directory, principal) as cluster:
        yield cluster
