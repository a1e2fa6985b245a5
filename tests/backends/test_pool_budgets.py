"""What a tenant may start, with real processes: by its rate, and by its memory."""

import math
import time
from dataclasses import replace

import anyio
import pytest

from app.backends.checks.backend_check import check_backend
from app.backends.checks.steps import Steps
from app.domain import Limits
from app.errors import BackendBusy
from app.limits.tenant_budgets import MIB, MemoryUse, TenantBudgets
from tests.backends.rig import lease_all, total
from tests.processes.rig import eventually, spec_of

THREE = Limits(processes=None, memory_mb=None, spawns_per_minute=3)
LARGE = Limits(processes=None, memory_mb=100)


class Clock:
    """Time that only a test moves on."""

    def __init__(self) -> None:
        self.began, self.ahead_s = time.monotonic(), 0.0

    def __call__(self) -> float:
        return self.began + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budgets(running, clock) -> TenantBudgets:
    return TenantBudgets(running.metrics, clock=clock)


def come(budgets, clock, seconds) -> None:
    clock.ahead_s += seconds
    budgets.changed.tell()


async def test_starts_over_the_rate_wait_their_turn_in_order(make_pool, budgets, clock):
    pool, order = await make_pool(budgets=budgets), []
    await lease_all(pool, [spec_of("echo"), spec_of("slow"), spec_of("echo")], THREE)

    async def caller(name, tenant="acme"):
        await pool.lease(spec_of("echo", tenant=tenant), THREE)
        order.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller, "first")
        await eventually(lambda: total(pool, "waiting") == 1)
        tasks.start_soon(caller, "second")
        await eventually(lambda: total(pool, "waiting") == 2)
        await caller("other", "globex")
        assert order == ["other"]
        come(budgets, clock, 20.1)
        await eventually(lambda: order == ["other", "first"])
        assert total(pool, "waiting") == 1
        come(budgets, clock, 20.1)
    assert order == ["other", "first", "second"]
    assert budgets.starts_in_last_minute("acme") == 5


async def test_the_pool_plans_by_itself_when_the_next_may_start(make_pool, running):
    now = [time.monotonic()]  # it stands still until somebody waits
    pool = await make_pool(budgets=TenantBudgets(running.metrics, clock=lambda: now[0]))
    often = Limits(processes=None, memory_mb=None, spawns_per_minute=600)
    for _ in range(600):
        pool._budgets.know("acme", often)
        pool._budgets.started("acme")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.lease, spec_of("echo"), often)
            await eventually(lambda: total(pool, "waiting") == 1)
            now[0] += 0.09
            await anyio.sleep(0.2)  # calm: it is not to go on
            assert total(pool, "waiting") == 1
            now[0] += 0.02


async def test_who_waits_too_long_hears_of_the_rate_and_when_to_come_again(make_pool, running, budgets):
    await lease_all(await make_pool(budgets=budgets), [spec_of("echo")] * 3, THREE)
    pool = await make_pool(budgets=budgets, deadline_s=0.1)
    with pytest.raises(BackendBusy, match="starts processes too often; its limit is 3 a minute") as refused:
        await pool.lease(spec_of("echo"), THREE)
    reached = refused.value.reached
    assert reached is not None
    assert (reached.name, reached.of, reached.allowed, reached.used) == ("spawns_per_minute", "tenant", 3, None)
    assert reached.raised_by.endswith("PATCH /api/v1/tenants/acme, limits.spawns_per_minute")
    assert refused.value.retry_after_s is not None
    assert 15 < refused.value.retry_after_s <= 20
    assert running.value("trunkline_rate_limited_total", limit="spawns_per_minute") == 1
    assert running.value("trunkline_limits_hit_total", limit="spawns_per_minute") == 1


@pytest.mark.parametrize("most", [0, 1])
async def test_who_would_wait_for_longer_than_he_may_hears_of_the_rate_at_once(make_pool, budgets, most):
    pool, limits = await make_pool(budgets=budgets, deadline_s=30.0), replace(THREE, spawns_per_minute=most)
    await lease_all(pool, [spec_of("echo")] * most, limits)
    with pytest.raises(BackendBusy, match=f"its limit is {most} a minute"):
        pool.lease(spec_of("echo"), limits).send(None)  # it never suspends


async def test_a_warm_process_is_no_start_and_its_replacement_waits_without_failing(make_pool, running, budgets, clock):
    pool, spec = await make_pool(budgets=budgets), spec_of("echo", warm=2)
    budgets.know("acme", THREE)
    pool.configure(spec)
    await eventually(lambda: total(pool, "warm") == 2)
    await lease_all(pool, [spec] * 2, THREE)
    await eventually(lambda: total(pool, "warm") == 1)
    assert budgets.starts_in_last_minute("acme") == 3
    await eventually(lambda: budgets.allowance("acme").starts == 0)
    assert total(pool, "starting") == 0
    come(budgets, clock, 21)
    await eventually(lambda: total(pool, "warm") == 2)
    assert running.value("trunkline_rate_limited_total", limit="spawns_per_minute") == 0


async def test_warm_processes_of_a_tenant_wait_until_its_limits_are_known(make_pool, running):
    known = anyio.Event()

    async def limits_of(tenant: str) -> Limits:
        await known.wait()
        return THREE

    budgets = TenantBudgets(running.metrics, limits_of)
    pool = await make_pool(budgets=budgets)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budgets.run)
        pool.configure(spec_of("echo", warm=5))
        await eventually(lambda: budgets._unknown)
        assert budgets.allowance("acme") == (0, math.inf)
        known.set()
        await eventually(lambda: total(pool, "warm") == 3)
        assert budgets.allowance("acme").starts == 0
        tasks.cancel_scope.cancel()


async def test_a_start_that_fails_counts_too(make_pool, budgets):
    pool = await make_pool(budgets=budgets)
    with pytest.raises(Exception, match="No such file"):
        await pool.lease(spec_of("echo", command="/does/not/exist"), THREE)
    assert budgets.starts_in_last_minute("acme") == 1


async def test_a_check_counts_as_a_start(make_pool, budgets):
    pool = await make_pool(budgets=budgets)
    assert (await check_backend(pool, spec_of("trouble"), THREE, Steps())).failure is None
    await lease_all(pool, [spec_of("echo")] * 2, THREE)
    result = await check_backend(await make_pool(budgets=budgets, deadline_s=0.1), spec_of("trouble"), THREE, Steps())
    assert result.failure is not None
    assert (result.failure.step, result.failure.reason) == ("start", "backend_busy")
    assert "limits.spawns_per_minute" in (result.failure.hint or "")


async def test_without_memory_a_tenant_waits_and_others_do_not(make_pool, budgets):
    pool = await make_pool(budgets=budgets)
    await lease_all(pool, [spec_of("echo")], LARGE)
    budgets.note_memory({"acme": MemoryUse(100 * MIB, 100 * MIB)})
    served = anyio.Event()

    async def caller():
        await pool.lease(spec_of("echo"), LARGE)
        served.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller)
        await eventually(lambda: total(pool, "waiting") == 1)
        await lease_all(pool, [spec_of("echo", tenant="globex")], LARGE)
        assert not served.is_set()
        budgets.note_memory({"acme": MemoryUse(50 * MIB, 50 * MIB)})
    assert served.is_set()


async def test_who_waits_too_long_for_memory_hears_how_much_is_used(make_pool, running, budgets):
    pool = await make_pool(budgets=budgets, deadline_s=0.1)
    budgets.note_memory({"acme": MemoryUse(60 * MIB, 60 * MIB)})
    budgets.note_remote_memory({"acme": MemoryUse(60 * MIB, 60 * MIB)})
    with pytest.raises(BackendBusy, match="use 120 MiB of memory; its limit is 100") as refused:
        await pool.lease(spec_of("echo"), LARGE)
    reached = refused.value.reached
    assert reached is not None
    assert (reached.name, reached.of, reached.allowed, reached.used) == ("memory_mb", "tenant", 100, 120)
    assert running.value("trunkline_rate_limited_total", limit="memory_mb") == 1
