"""ClusterRates: nodes in simulated time, and the script in a real Redis."""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.cluster.cluster_rates import EVERY_S, SCRIPT, ClusterRates
from app.cluster.redis._waiting_commands import USUAL_DEADLINES, Deadlines
from app.cluster.redis.connection import RedisConnection, Script
from app.domain import Limits
from app.errors import QuotaExceeded, RoutesUnavailable
from app.limits.tenant_budgets import TenantBudgets
from app.limits.tenant_limits import TenantGate, TenantGates
from app.telemetry.metrics import Metrics
from tests.redis_servers import RedisServer

ALICE = ("acme", "key", "alice")
TICK_S = 0.001
PATIENT = Deadlines(20.0, 20.0)  # a Redis that has no processor for a moment is not away


class Cluster:
    """Nodes and a store in simulated time."""

    def __init__(self, nodes: int, limits: Limits) -> None:
        self.levels: dict[str, tuple[float, float]] = {}
        self.is_away = False
        self.all_gates = [TenantGates(Metrics("test"), are_shared=True) for _ in range(nodes)]
        self.gates = [gates.of("acme", limits) for gates in self.all_gates]
        self.now = self.began = time.monotonic()  # not before their buckets are there
        self.rates = [ClusterRates([gates], self.script, lambda: self.now) for gates in self.all_gates]

    async def script(self, keys: Sequence[str], arguments: Sequence[float]) -> list[bytes]:
        """What the script in Lua does."""
        if self.is_away:
            raise RoutesUnavailable
        levels = []
        for number, key in enumerate(keys):
            rate, burst, spent = arguments[3 * number : 3 * number + 3]
            level, at = self.levels.get(key, (burst, self.now))
            level = min(burst, level + (self.now - at) * rate) - spent
            self.levels[key] = level, self.now
            levels.append(b"%.6f" % level)
        return levels

    async def send(self, seconds: float, offers: Sequence[float]) -> int:
        """Each node gets so many requests a second; how many passed in all."""
        passed, owed = 0, [0.0] * len(offers)
        for tick in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for number, gate in enumerate(self.gates):
                owed[number] += offers[number] * TICK_S
                while owed[number] >= 1:
                    owed[number] -= 1
                    passed += passes(gate, self.now)
                if (tick + 17 * number) % round(EVERY_S / TICK_S) == 0:
                    await self.rates[number].round()
        return passed


def passes(gate: TenantGate, now: float) -> bool:
    try:
        gate.check_rate(now)
    except QuotaExceeded:
        return False
    return True


@pytest.mark.parametrize("offers", [(1, 1, 1), (3, 3, 3), (2, 0.9, 0.1), (3, 0, 0)], ids=str)
@pytest.mark.parametrize(("rate", "burst"), [(50.0, 100), (1000.0, 100), (5.0, 5)], ids=str)
async def test_over_time_the_nodes_together_let_the_rate_through(offers, rate, burst):
    cluster = Cluster(3, Limits(requests_per_second=rate, burst=burst))
    await cluster.send(20.0, [rate * offer for offer in offers])
    passed = await cluster.send(20.0, [rate * offer for offer in offers])
    assert passed == pytest.approx(rate * 20.0, rel=0.02)


async def test_what_stays_below_the_rate_is_never_refused():
    cluster = Cluster(3, Limits(requests_per_second=100.0, burst=20))
    assert await cluster.send(20.0, [30.0, 30.0, 30.0]) == pytest.approx(1800, abs=3)


async def test_at_once_no_more_passes_than_a_burst_per_node_and_it_is_made_up_for():
    cluster = Cluster(3, Limits(requests_per_second=50.0, burst=100))
    assert await cluster.send(0.5, [5000.0] * 3) <= 3 * 100 + 50
    assert await cluster.send(59.5, [500.0] * 3) == pytest.approx(100 + 50 * 60 - 300, rel=0.02)


async def test_while_the_store_is_away_each_node_has_its_own_limit_and_pays_for_nothing_afterwards():
    cluster = Cluster(3, Limits(requests_per_second=100.0, burst=10))
    await cluster.send(5.0, [300.0] * 3)
    cluster.is_away = True
    assert await cluster.send(10.0, [300.0] * 3) == pytest.approx(3 * 1000, rel=0.02)
    cluster.is_away = False
    assert await cluster.send(10.0, [300.0] * 3) == pytest.approx(1000, rel=0.05)


async def test_a_forged_level_holds_a_tenant_up_for_seconds_only():
    cluster = Cluster(1, Limits(requests_per_second=10.0, burst=10))
    cluster.levels["trunkline:rate:acme"] = (-1e9, cluster.now)
    await cluster.send(0.2, [100.0])
    assert await cluster.send(15.0, [100.0]) > 0


async def test_a_gate_that_has_not_told_what_it_spent_is_kept_until_it_has():
    cluster = Cluster(1, Limits(requests_per_second=1000.0, burst=10))
    (gates,), (gate,) = cluster.all_gates, cluster.gates
    gate.open_session(ALICE)
    gate.check_rate(cluster.now)
    cluster.now += 1.0
    gate.close_session(ALICE)
    gates.drop_unused("acme")
    assert gates.of("acme", Limits()) is gate
    gates.drop_unused("acme")
    await cluster.rates[0].round()
    cluster.now += 1.0
    await cluster.rates[0].round()
    assert gates.of("acme", Limits()) is not gate


# --- the real script


def errors() -> Counter:
    return Counter("errors", "", ["reason"], registry=CollectorRegistry())


@asynccontextmanager
async def connected(url: str, deadlines: Deadlines = PATIENT) -> AsyncIterator[RedisConnection]:
    async with RedisConnection(url, errors(), deadlines) as connection:
        with anyio.fail_after(20):
            while not connection.is_up:
                await anyio.sleep(0.01)
        yield connection


async def ask(connection: RedisConnection, *buckets: tuple[str, float, float, float]) -> list[float]:
    keys = [f"trunkline:rate:{name}" for name, *_ in buckets]
    numbers: list[Any] = [number for _, *numbers in buckets for number in numbers]
    return [float(level) for level in await connection.run(Script(SCRIPT), keys, numbers)]


async def test_the_script_counts_each_tenant_for_itself_and_goes_into_debt(empty_redis):
    async with connected(empty_redis) as connection:
        assert await ask(connection, ("a", 1.0, 10.0, 3), ("b", 1.0, 5.0, 0)) == [7.0, 5.0]
        assert await ask(connection, ("a", 0.001, 10.0, 9)) == [pytest.approx(-2.0, abs=0.1)]
        assert await ask(connection, ("a", 0.001, 10.0, 0)) == [pytest.approx(-2.0, abs=0.1)]


async def test_a_bucket_goes_when_it_is_full_again(empty_redis):
    async with connected(empty_redis) as connection:
        await ask(connection, ("a", 1000.0, 10.0, 5))
        with anyio.fail_after(20):
            while await connection.execute("EXISTS", "trunkline:rate:a"):
                await anyio.sleep(0.005)


@pytest.mark.parametrize("rubbish", ["", "x y", "1", "nan nan"])
async def test_a_bucket_with_rubbish_in_it_is_no_error(empty_redis, rubbish):
    async with connected(empty_redis) as connection:
        await connection.execute("SET", "trunkline:rate:a", rubbish)
        (level,) = await ask(connection, ("a", 1.0, 10.0, 1))
        assert level == 9.0


async def test_a_forged_debt_is_no_larger_than_one_that_nodes_can_make(empty_redis):
    async with connected(empty_redis) as connection:
        await connection.execute("SET", "trunkline:rate:a", "-1e300 0")
        (level,) = await ask(connection, ("a", 1.0, 10.0, 1))
        assert level == -641.0
        assert 0 < await connection.execute("PTTL", "trunkline:rate:a") < 700_000


async def overload(gate: TenantGate, seconds: float, offer: float) -> tuple[int, float]:
    """How many of so many requests a second passed, and for how many seconds nothing was offered, as the machine stood
    still."""
    passed, began, sent, stood_still_s = 0, time.monotonic(), 0, 0.0
    last = began
    while (now := time.monotonic()) < began + seconds:
        stood_still_s += now - last if now - last > 0.02 else 0.0
        last = now
        while sent < (now - began) * offer:
            sent += 1
            passed += passes(gate, now)
        await anyio.sleep(0.001 + 0.002 * random.random())
    last = min(last, began + seconds)
    return passed, stood_still_s + (now - last if now - last > 0.02 else 0.0)


class Told:
    """The script in a real Redis, and for how many seconds that did not answer, as the machine stood still."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection, self.silent_s = connection, 0.0

    async def __call__(self, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        asked_at = time.monotonic()
        try:
            return await self._connection.run(Script(SCRIPT), keys, arguments)
        finally:
            took_s = time.monotonic() - asked_at
            self.silent_s += took_s if took_s > 0.02 else 0.0


async def test_three_nodes_at_three_times_the_rate_let_the_rate_through_with_a_real_redis(empty_redis):
    rate, seconds, passed = 200.0, 4.0, list[tuple[int, float]]()

    async def node(url: str) -> None:
        async with connected(url) as connection, anyio.create_task_group() as tasks:
            gates, told = TenantGates(Metrics("test"), are_shared=True), Told(connection)
            tasks.start_soon(ClusterRates([gates], told).run)
            gate = gates.of("acme", Limits(requests_per_second=rate, burst=10))
            await overload(gate, 0.5, 3 * rate)
            count, stood_still_s = await overload(gate, seconds, rate)
            passed.append((count, stood_still_s + told.silent_s))
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as nodes:
        for _ in range(3):
            nodes.start_soon(node, empty_redis)
    # While the machine stood still nobody asked, or nobody told the others what had passed.
    amiss = 0.05 * rate * seconds + rate * sum(stood_still_s for _, stood_still_s in passed)
    assert sum(count for count, _ in passed) == pytest.approx(rate * seconds, abs=amiss), passed


@pytest.mark.real
async def test_a_frozen_redis_holds_nobody_up():
    with RedisServer() as server:
        async with connected(server.url, USUAL_DEADLINES) as connection:
            gates = TenantGates(Metrics("test"), are_shared=True)
            shared = ClusterRates([gates], partial(connection.run, Script(SCRIPT)))
            gate = gates.of("acme", Limits(requests_per_second=1.0, burst=10))
            server.freeze()
            gate.check_rate(time.monotonic())
            with anyio.fail_after(20):
                await shared.round()
            assert passes(gate, time.monotonic())
            server.thaw()


async def test_nodes_start_processes_at_one_rate_with_a_real_redis(empty_redis):
    most, seconds = 300, 4.0
    limits = Limits(memory_mb=None, spawns_per_minute=most)
    started, took, untold = [0], [seconds], [0.0]

    async def node(url: str) -> None:
        async with connected(url) as connection, anyio.create_task_group() as tasks:
            budgets, told = TenantBudgets(Metrics("test")), Told(connection)
            tasks.start_soon(ClusterRates([budgets], told).run)
            budgets.know("acme", limits)
            began = time.monotonic()
            # On a busy machine it takes longer until all have started what they may at once.
            while (passed_s := time.monotonic() - began) < seconds or (started[0] < most and passed_s < 60):
                if budgets.allowance("acme").starts:
                    budgets.started("acme")
                    started[0] += 1
                await anyio.sleep(0.005)
            took.append(passed_s)
            untold.append(told.silent_s / 0.005)  # so many it may have started that nobody else knew of
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as nodes:
        for _ in range(3):
            nodes.start_soon(node, empty_redis)
    # Each could start three hundred: together they start what one may at once, and five a second.
    assert most <= started[0] < 1.25 * (most + max(took) * most / 60) + sum(untold)
