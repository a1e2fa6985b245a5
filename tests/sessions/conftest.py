"""A registry over fakes, and a principal."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.domain import BackendSpec, Principal, Timeouts
from app.metrics import Metrics
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from tests.sessions.cluster import Cluster, running_cluster
from tests.sessions.fakes import FakePool, FakeStore, alone

SPEC = BackendSpec("acme", "echo", "echo-server", timeouts=Timeouts(idle_s=100.0, absolute_s=1000.0))


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
def directory(store: FakeStore) -> BackendDirectory:
    return BackendDirectory(SimpleNamespace(get=store.get_backend), SimpleNamespace(get=store.get_tenant))


@pytest.fixture
async def registry(pool: FakePool, directory: BackendDirectory) -> AsyncIterator[SessionRegistry]:
    typed_pool: Any = pool
    async with SessionRegistry(directory, typed_pool, Metrics("test"), alone(), max_sessions=5) as registry:
        yield registry


@pytest.fixture
async def cluster(directory: BackendDirectory, store: FakeStore, principal: Principal) -> AsyncIterator[Cluster]:
    """One of several nodes; it has a stateful backend, `echo`, and one without state, `stateless`."""
    store.specs["acme", "stateless"] = replace(SPEC, name="stateless", recovery="respawn")
    async with running_cluster(directory, principal) as cluster:
        yield cluster
