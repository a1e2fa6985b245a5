"""TenantBudgets: what tenants may still start, in simulated time."""

import math

import anyio
import anyio.lowlevel
import pytest

from app.domain import Limits
from app.errors import NotFound, StorageUnavailable
from app.limits.tenant_budgets import LOOK_UP_AGAIN_S, MIB, NO_MEMORY, Allowance, MemoryUse, TenantBudgets
from app.telemetry.metrics import Metrics

TEN = Limits(memory_mb=None, spawns_per_minute=10)
LARGE = MemoryUse(90 * MIB, 60 * MIB)


class Rig:
    """Budgets at a time that the test sets; `told` counts how often the pool would plan again."""

    def __init__(self, limits_of=None) -> None:
        self.now, self.told = 1000.0, 0
        self.metrics = Metrics("test")
        self.budgets = TenantBudgets(self.metrics, limits_of, lambda: self.now)
        self.budgets.changed.listen(self.tell)

    def tell(self) -> None:
        self.told += 1

    def start(self, count: int) -> None:
        for _ in range(count):
            self.budgets.started("acme")

    def held_back(self) -> float:
        return self.metrics.limits_hit.labels("spawns_per_minute")._value.get()


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.budgets.know("acme", TEN)
    return rig


def test_a_tenant_starts_as_many_at_once_as_in_a_minute_and_then_one_after_the_other(rig):
    assert rig.budgets.allowance("acme").starts == 10
    rig.start(10)
    assert rig.budgets.allowance("acme") == (0, pytest.approx(6.0))
    reached, again_after_s = rig.budgets.reached("acme")
    assert (reached.name, reached.of, reached.allowed, reached.used) == ("spawns_per_minute", "tenant", 10, None)
    assert again_after_s == pytest.approx(6.0)
    rig.now += 6.01
    assert rig.budgets.allowance("acme").starts == 1
    assert rig.budgets.reached("acme") is None
    assert rig.budgets.starts_in_last_minute("acme") == 10
    rig.now += 54
    assert rig.budgets.starts_in_last_minute("acme") == 0
    assert rig.budgets.allowance("acme").starts == 10


def test_how_often_starts_were_held_back_is_counted_once_for_each_start(rig):
    assert rig.held_back() == 0
    rig.start(10)
    for _ in range(3):
        rig.budgets.allowance("acme")
    assert rig.held_back() == 1
    rig.now += 6.01
    rig.start(1)
    rig.budgets.allowance("acme")
    assert rig.held_back() == 2


def test_without_a_rate_starts_are_only_counted(rig):
    rig.budgets.know("acme", Limits(memory_mb=None))
    rig.start(1000)
    assert (rig.budgets.allowance("acme"), rig.budgets.starts_in_last_minute("acme")) == (Allowance(), 1000)
    assert rig.budgets.reached("acme") is None
    assert rig.budgets.reached("nobody") is None
    assert rig.budgets.starts_in_last_minute("nobody") == 0


def test_a_rate_of_zero_is_no_process_at_all(rig):
    rig.budgets.know("acme", Limits(memory_mb=None, spawns_per_minute=0))
    assert rig.budgets.allowance("acme") == (0, math.inf)
    reached, again_after_s = rig.budgets.reached("acme")
    assert (reached.allowed, again_after_s) == (0, 60.0)


def test_a_new_rate_counts_at_once_and_what_was_started_stays_counted(rig):
    rig.start(10)
    told = rig.told
    rig.budgets.know("acme", TEN)
    assert rig.told == told
    rig.budgets.know("acme", Limits(memory_mb=None, spawns_per_minute=60))
    assert rig.told == told + 1
    assert rig.budgets.allowance("acme") == (0, pytest.approx(1.0))


# --- memory


def test_a_tenant_that_has_used_up_its_memory_starts_nothing_until_some_is_free(rig):
    rig.budgets.know("acme", Limits(memory_mb=100))
    rig.budgets.note_memory({"acme": LARGE})
    assert rig.budgets.allowance("acme").starts is None
    rig.budgets.note_remote_memory({"acme": MemoryUse(10 * MIB, 10 * MIB)})
    assert rig.budgets.allowance("acme") == (0, math.inf)
    reached, again_after_s = rig.budgets.reached("acme")
    assert (reached.name, reached.allowed, reached.used, again_after_s) == ("memory_mb", 100, 100, 5.0)
    told = rig.told
    rig.budgets.note_remote_memory({})
    assert rig.told == told + 1
    assert rig.budgets.allowance("acme").starts is None
    assert rig.budgets.allowance("zenith") == Allowance()


def test_the_largest_process_is_on_one_node(rig):
    rig.budgets.note_memory({"acme": LARGE})
    assert rig.budgets.has_largest("acme")
    rig.budgets.note_remote_memory({"acme": MemoryUse(70 * MIB, 70 * MIB)})
    assert not rig.budgets.has_largest("acme")
    assert rig.budgets.memory_of("acme") == MemoryUse(160 * MIB, 70 * MIB)
    assert rig.budgets.memory_of("zenith") == NO_MEMORY


# --- what is known


def test_a_tenant_of_which_nothing_is_counted_is_forgotten(rig):
    rig.start(1)
    rig.budgets.prune(rig.now)
    assert [name for name, _ in rig.budgets.buckets()] == ["acme/spawns"]
    rig.now += 61
    rig.budgets.know("acme", TEN)
    rig.budgets.prune(rig.now)
    assert [name for name, _ in rig.budgets.buckets()] == ["acme/spawns"]
    rig.now += 61
    rig.budgets.allowance("acme")  # somebody waits, for longer than a minute
    rig.budgets.prune(rig.now)
    assert rig.budgets.processes_of("acme") == TEN.processes
    rig.now += 61
    rig.budgets.prune(rig.now)
    assert list(rig.budgets.buckets()) == []
    rig.budgets.know("acme", TEN)
    rig.budgets.note_memory({"acme": LARGE})
    assert [name for name, _ in rig.budgets.buckets()] == ["acme/spawns"]


async def test_limits_that_nobody_has_told_are_looked_up_before_anything_is_started(monkeypatch):
    monkeypatch.setattr("app.limits.tenant_budgets.LOOK_UP_AGAIN_S", 0.01)
    assert LOOK_UP_AGAIN_S > 0.01
    answers: list[Limits | Exception] = [
        StorageUnavailable(),
        TEN,
        Limits(memory_mb=None),
        NotFound("Tenant not found"),
    ]
    asked: list[str] = []

    async def limits_of(tenant: str) -> Limits:
        asked.append(tenant)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    rig = Rig(limits_of)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.budgets.run)
        with anyio.fail_after(10):
            assert rig.budgets.allowance("acme") == (0, math.inf)
            while rig.budgets.allowance("acme").starts != 10:
                await anyio.sleep(0.001)
            rig.budgets.limits_may_have_changed("acme")
            assert rig.budgets.allowance("acme").starts == 10
            while rig.budgets.allowance("acme").starts is not None:
                await anyio.sleep(0.001)
            rig.budgets.limits_may_have_changed()
            while len(asked) < 4:
                await anyio.sleep(0.001)
            assert rig.budgets.allowance("acme") == (0, math.inf)
        tasks.cancel_scope.cancel()
    assert asked[:4] == ["acme"] * 4


class LateLimits:
    """What the database says, with the answers held back until the test lets them go."""

    def __init__(self) -> None:
        self.stored = Limits(memory_mb=1)
        self.asked, self.may_answer = 0, anyio.Event()

    async def __call__(self, tenant: str) -> Limits:
        found, self.asked = self.stored, self.asked + 1
        await self.may_answer.wait()
        return found

    async def until_asked(self, times: int) -> None:
        with anyio.fail_after(5):
            while self.asked < times:
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("is_told", [True, False])
async def test_an_answer_that_is_older_than_a_change_does_not_count(is_told, monkeypatch):
    """It was read before the change and comes after it: told with the new limits, or only that they may be others."""
    monkeypatch.setattr("app.limits.tenant_budgets.LOOK_UP_AGAIN_S", 0.001)
    late = LateLimits()
    rig = Rig(late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.budgets.run)
        rig.budgets.allowance("acme")  # not known yet
        await late.until_asked(1)
        late.stored = Limits(memory_mb=2)
        if is_told:
            rig.budgets.know("acme", late.stored)
        else:
            rig.budgets.limits_may_have_changed("acme")
        late.may_answer.set()
        await late.until_asked(2)
        await anyio.wait_all_tasks_blocked()
        assert rig.budgets.memory_mb_of("acme") == 2
        tasks.cancel_scope.cancel()
