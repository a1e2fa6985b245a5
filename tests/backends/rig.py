"""Pools of real processes."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.backends.pool import PoolOptions, ProcessPool
from app.domain import Limits
from app.limits.tenant_budgets import TenantBudgets

NO_LIMITS = Limits(processes=None)


class Clock:
    """The real time, and what the test adds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_pool(running) -> AsyncIterator[Callable[..., Any]]:
    """Opens a pool with these options."""
    pools: list[ProcessPool] = []

    async def make(
        *,
        budgets: Any = None,
        prepare: Any = None,
        reclaim: Any = lambda spec, count: 3600.0,
        clock: Callable[[], float] = time.monotonic,
        is_busy: Callable[[], bool] = lambda: False,
        room: Callable[[int, int, int], int] = lambda alive, starting, used: 1000,
        **fields: Any,
    ) -> ProcessPool:
        pool = ProcessPool(
            running.supervisor,
            running.metrics,
            PoolOptions(**fields),
            budgets=budgets or TenantBudgets(running.metrics),
            prepare=prepare,
            reclaim=reclaim,
            is_busy=is_busy,
            room=room,
            clock=clock,
            chance=lambda: 0.5,
        )
        pools.append(await pool.__aenter__())
        return pool

    yield make
    for pool in reversed(pools):
        await pool.__aexit__(None, None, None)


async def lease_all(pool, specs, limits=NO_LIMITS):
    """Leases one after another."""
    leases = []
    for spec in specs:
        leases.append(await pool.lease(spec, limits))
        leases[-1].handshake_succeeded()
    return leases


def total(pool, number: str) -> int:
    """This number of all backends together."""
    return sum(getattr(each, number) for each in pool.snapshot().values())
