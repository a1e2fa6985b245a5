"""TenantMemory: real processes that take more than their tenant has."""

import threading

import anyio
import anyio.to_thread
import pytest

from app.domain import Limits, ProcessLimits
from app.limits import tenant_memory
from app.limits.tenant_budgets import MIB, MemoryUse, TenantBudgets
from app.limits.tenant_memory import TenantMemory
from tests.processes.rig import metrics, running

__all__ = ["metrics", "running"]
pytestmark = pytest.mark.real
NO_LIMIT = ProcessLimits(memory_mb=None)


class Rig:
    """Processes of `acme`, which has 150 MiB."""

    def __init__(self, running) -> None:
        self.running, self.supervisor = running, running.supervisor
        self.budgets = TenantBudgets(running.metrics)
        self.budgets.know("acme", Limits(memory_mb=150))
        self.memory = TenantMemory(self.budgets, lambda: self.supervisor.processes)

    async def holding(self, mib, tenant="acme"):
        process, listener = await self.running.start("glutton", limits=NO_LIMIT, tenant=tenant)
        process.send(b"memory %d" % mib)
        await listener.line()
        return process, listener

    async def look(self) -> None:
        await self.supervisor.meter.measure(self.supervisor.processes)
        await self.memory.look()


@pytest.fixture
async def rig(running) -> Rig:
    return Rig(running)


async def test_the_largest_process_of_a_tenant_that_is_over_its_memory_is_ended(rig, running):
    _, calm = await rig.holding(80)
    _, listener = await rig.holding(110)
    _, unharmed = await rig.holding(300, tenant="globex")
    await rig.look()
    exit = await listener.exit()
    assert (exit.reason, exit.limit) == ("killed", "tenant_memory")
    assert "more memory than it has" in exit.description
    assert running.value("trunkline_limits_hit_total", limit="memory_mb") == 1
    await rig.look()
    assert not calm.exits
    assert not unharmed.exits
    assert rig.budgets.memory_of("acme").total < 110 * MIB
    assert rig.budgets.memory_of("globex").total > 300 * MIB


async def test_below_its_memory_nothing_of_a_tenant_is_ended(rig):
    held = [await rig.holding(40) for _ in range(2)]
    await rig.look()
    assert not any(process.is_being_killed for process, _ in held)
    assert rig.budgets.allowance("acme").starts is None


async def test_over_several_nodes_only_that_with_the_largest_process_ends_one(rig):
    process, listener = await rig.holding(80)
    rig.budgets.note_remote_memory({"acme": MemoryUse(120 * MIB, 110 * MIB)})
    await rig.look()
    assert not process.is_being_killed
    assert rig.budgets.allowance("acme").starts == 0
    rig.budgets.note_remote_memory({"acme": MemoryUse(120 * MIB, 60 * MIB)})
    await rig.look()
    assert (await listener.exit()).limit == "tenant_memory"


async def test_it_looks_whenever_something_was_measured(rig):
    rig.supervisor.meter.measured.listen(rig.memory.measured)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.memory.run)
        process, listener = await rig.running.start("glutton", limits=NO_LIMIT)
        process.send(b"memory 400")
        assert (await listener.exit()).limit == "tenant_memory"
        tasks.cancel_scope.cancel()


async def test_one_that_has_ended_while_its_memory_was_looked_at_takes_none(rig, monkeypatch):
    """The look takes a while, and longer on a busy machine: the other one must not be ended for it."""
    other, _ = await rig.holding(100)
    process, listener = await rig.holding(80)
    is_looking, may_go_on, look = threading.Event(), threading.Event(), tenant_memory._in_proportion

    def slow(sizes):
        is_looking.set()
        may_go_on.wait(20)
        return look(sizes)

    monkeypatch.setattr(tenant_memory, "_in_proportion", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.look)
        await anyio.to_thread.run_sync(is_looking.wait, 20)
        process.kill()
        await listener.exit()
        with anyio.fail_after(5):
            while process in rig.supervisor.processes:
                await anyio.sleep(0.01)
        may_go_on.set()
    assert not other.is_being_killed
    assert rig.budgets.memory_of("acme").total < 150 * MIB
