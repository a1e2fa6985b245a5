"""A registry over fakes, and a principal: fixtures that each folder imports into its conftest.py.

Tests of what greets by itself have a `pool` of their own, a ServerPool; the registry is then over that.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from app.domain import BackendSpec, Principal, Timeouts
from app.sessions.directory import BackendDirectory
from app.sessions.loop_pause import StandstillDetector, StandstillGuard
from app.sessions.open_sessions import OpenSessions
from app.sessions.registry import SessionRegistry
from app.sessions.sweeping import sweep_for_ever
from app.telemetry.metrics import Metrics
from tests.sessions.fakes import FakePool, FakeStore, all_ours, alone

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
def directory(store: FakeStore) -> BackendDirectory:
    return BackendDirectory(store.get_backend, store.get_tenant)


@pytest.fixture
def standstill() -> StandstillDetector:
    """By a clock that does not go on: none is detected because the machine is busy."""
    return StandstillDetector(lambda: 1000.0)


@pytest.fixture
async def unswept(
    pool: FakePool, directory: BackendDirectory, standstill: StandstillDetector
) -> AsyncIterator[SessionRegistry]:
    """Every test ends with nothing held: no process, no call counted."""
    typed_pool: Any = pool
    sessions = OpenSessions()
    async with SessionRegistry(
        directory,
        typed_pool,
        Metrics("test"),
        alone(sessions),
        max_sessions=MAX_SESSIONS,
        sessions=sessions,
        standstill=standstill,
    ) as registry:
        yield registry
        gates = {session.gate for session in registry}
    assert all(gate.in_flight == gate.begun == 0 for gate in gates)
    assert all(lease.released for lease in pool.leases)


@pytest.fixture
def prove_routes() -> Callable[[float], Awaitable[None]]:
    return all_ours


@pytest.fixture
def guard(unswept: SessionRegistry, prove_routes: Callable[[float], Awaitable[None]]) -> StandstillGuard:
    return StandstillGuard(unswept.standstill, unswept._ownership, prove_routes, unswept._sessions.deliver_held)


@pytest.fixture
def swept() -> list[Callable[[float], None]]:
    """What else is done at each sweep."""
    return []


@pytest.fixture
async def registry(
    unswept: SessionRegistry, guard: StandstillGuard, swept: list[Callable[[float], None]]
) -> AsyncIterator[SessionRegistry]:
    def each(now: float) -> None:
        for sweep in swept:
            sweep(now)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep_for_ever, unswept.sweeping, guard, each)
        yield unswept
        tasks.cancel_scope.cancel()
