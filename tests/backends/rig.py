"""Pools of real processes."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.backends.pool import PoolOptions, ProcessPool
from app.domain import Limits

NO_LIMITS = Limits(processes=None)


@pytest.fixture
async def make_pool(running) -> AsyncIterator[Callable[..., Any]]:
    """Opens a pool with these options; one for each test."""
    pools: list[ProcessPool] = []

    async def make(**fields: Any) -> ProcessPool:
        pool = ProcessPool(running.supervisor, running.metrics, PoolOptions(**fields), chance=lambda: 0.5)
        pools.append(await pool.__aenter__())
        return pool

    yield make
    for pool in pools:
        await pool.__aexit__(None, None, None)


async def lease_all(pool, specs, limits=NO_LIMITS):
    """Leases one after another."""
    leases = []
    for spec in specs:
        leases.append(await pool.lease(spec, limits))
        leases[-1].handshake_succeeded()
    return leases
