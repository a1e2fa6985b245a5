"""ClusterUse: nodes over a real Redis."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import prometheus_client
import pytest

from app.auth.sealing import Sealer
from app.cluster import cluster_use
from app.cluster.cluster_use import ClusterUse
from app.cluster.redis._waiting_commands import USUAL_DEADLINES, Deadlines
from app.cluster.redis.connection import RedisConnection
from app.domain import Limits
from app.errors import QuotaExceeded
from app.limits.tenant_budgets import MemoryUse, TenantBudgets
from app.limits.tenant_limits import TenantGates
from app.telemetry.metrics import Metrics
from tests.redis_servers import RedisServer, client_of

SEALS = Sealer(b"s" * 32)
LIMITS = Limits(in_flight=3)
PATIENT = Deadlines(20.0, 20.0)  # a Redis that has no processor for a moment is not away


@pytest.fixture(autouse=True)
def _lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers do not lapse while the machine stands still."""
    monkeypatch.setattr(cluster_use, "LAPSES_S", 60.0)


class Processes:
    """For ProcessPool."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.elsewhere: Mapping[str, int] = {}
        self.looked = 0

    def used(self) -> Counter[str]:
        return self.counts

    def note_remote_use(self, used: Mapping[str, int]) -> None:
        self.elsewhere = used
        self.looked += 1


class Node:
    def __init__(self, connection: RedisConnection, name: str, others: list[str]) -> None:
        self.gates, self.processes = TenantGates(Metrics("test")), Processes()
        self.budgets = TenantBudgets(Metrics("test"))
        self.gate = self.gates.of("acme", LIMITS)
        self.use = ClusterUse(self.gates, self.budgets, self.processes, connection, SEALS, name, lambda: others)


@asynccontextmanager
async def nodes(
    url: str,
    *,
    runs: bool = True,
    names: Sequence[str] = ("node-a", "node-b"),
    deadlines: Deadlines = PATIENT,
) -> AsyncIterator[tuple[Node, Node]]:
    errors = prometheus_client.Counter("errors", "", ["reason"], registry=prometheus_client.CollectorRegistry())
    async with RedisConnection(url, errors, deadlines) as connection, anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            while not connection.is_up:
                await anyio.sleep(0.01)
        one, two = (Node(connection, name, list(names)) for name in names[:2])
        if runs:
            tasks.start_soon(one.use.run)
            tasks.start_soon(two.use.run)
        yield one, two
        tasks.cancel_scope.cancel()


async def until(is_so, seconds: float = 30.0) -> None:
    with anyio.fail_after(seconds):
        while not is_so():
            await anyio.sleep(0.005)


async def test_calls_in_flight_count_on_every_node(empty_redis):
    async with nodes(empty_redis) as (one, two):
        one.gate.begin_call(time.monotonic())
        one.gate.begin_call(time.monotonic())
        await until(lambda: two.gate.remote_in_flight == 2)
        two.gate.begin_call(time.monotonic())
        with pytest.raises(QuotaExceeded):
            two.gate.begin_call(time.monotonic())
        one.gate.end_call()
        await until(lambda: two.gate.remote_in_flight == 1)
        two.gate.begin_call(time.monotonic())
        assert two.gates.of("acme", LIMITS).remote_in_flight == 1


async def test_memory_counts_on_every_node_and_the_largest_process_is_known(empty_redis):
    async with nodes(empty_redis) as (one, two):
        one.budgets.note_memory({"acme": MemoryUse(7 << 20, 5 << 20), "globex": MemoryUse(1, 1)})
        two.budgets.note_memory({"acme": MemoryUse(4 << 20, 4 << 20)})
        await until(lambda: one.budgets.memory_of("acme") == MemoryUse(11 << 20, 5 << 20))
        await until(lambda: two.budgets.memory_of("acme") == MemoryUse(11 << 20, 5 << 20))
        assert (one.budgets.has_largest("acme"), two.budgets.has_largest("acme")) == (True, False)
        one.budgets.note_memory({})
        await until(lambda: two.budgets.has_largest("acme"))


async def test_sessions_are_told_to_be_shown(empty_redis):
    async with nodes(empty_redis) as (one, two):
        for _ in range(3):
            one.gate.open_session(("acme", "key", "alice"))
        await until(lambda: two.gate.remote_sessions == 3)
        assert two.gate.sessions == 0
        two.gates.drop_unused("acme")
        assert two.gates.of("acme", LIMITS).remote_sessions == 3


async def test_a_gate_that_is_made_later_knows_too(empty_redis):
    async with nodes(empty_redis) as (one, two):
        one.gate.begin_call(time.monotonic())
        await until(lambda: two.gate.remote_in_flight == 1)
        two.gates.drop_unused("acme")
        assert two.gates.of("acme", LIMITS).remote_in_flight == 1


async def test_processes_are_told_and_who_waits_for_room_hears_of_it(empty_redis):
    async with nodes(empty_redis) as (one, two):
        one.processes.counts["acme"] = 5
        await until(lambda: two.processes.elsewhere.get("acme", 0) == 5)
        looked = two.processes.looked
        one.processes.counts.clear()
        await until(lambda: two.processes.elsewhere.get("acme", 0) == 0)
        assert two.processes.looked > looked


async def test_what_a_dead_node_used_lapses(empty_redis, monkeypatch):
    monkeypatch.setattr(cluster_use, "LAPSES_S", 0.2)
    async with nodes(empty_redis, runs=False) as (one, two):
        one.processes.counts["acme"] = 5
        with anyio.fail_after(30):
            while two.processes.elsewhere.get("acme", 0) != 5:  # on a machine that stands still it lapses at once
                await one.use.round()
                await two.use.round()
            while two.processes.elsewhere.get("acme", 0):
                await two.use.round()


async def test_among_many_nodes_each_reads_in_some_rounds_only_and_says_in_all(empty_redis, monkeypatch):
    monkeypatch.setattr(cluster_use, "READ_A_ROUND", 1)
    async with nodes(empty_redis, runs=False, names=["node-a", "node-b", "node-c", "node-d"]) as (one, two):
        heard = []
        for used in range(1, 10):
            one.processes.counts["acme"] = used
            await one.use.round()
            await two.use.round()
            heard.append(two.processes.elsewhere.get("acme", 0))
        assert heard == [0, 0, 3, 3, 3, 6, 6, 6, 9]


async def test_what_has_not_changed_is_not_said_each_time_but_again_before_it_lapses(empty_redis, monkeypatch):
    monkeypatch.setattr(cluster_use, "SAY_AGAIN_S", 50.0)
    async with nodes(empty_redis, runs=False) as (one, _):
        with client_of(empty_redis) as client:
            await one.use.round()
            client.delete("trunkline:use:node-a")
            await one.use.round()
            assert not client.exists("trunkline:use:node-a")
            one.use._said_at -= cluster_use.SAY_AGAIN_S
            await one.use.round()
            assert client.exists("trunkline:use:node-a")


@pytest.mark.parametrize(
    "written",
    [b"", b"forged", Sealer(b"t" * 32).seal(b"\x80", "trunkline:use:node-a"), SEALS.seal(b"\x80", "x")],
    ids=["nothing", "rubbish", "another key", "another place"],
)
async def test_what_no_node_of_ours_has_written_counts_nothing(empty_redis, written):
    async with nodes(empty_redis, runs=False) as (_, two):
        with client_of(empty_redis) as client:
            client.set("trunkline:use:node-a", written)
        await two.use.round()
        assert two.processes.elsewhere.get("acme", 0) == 0
        assert two.use._redis._errors.labels("poisoned")._value.get() == 1


async def test_nothing_of_it_can_be_read_in_redis(empty_redis):
    async with nodes(empty_redis, runs=False) as (one, _):
        one.processes.counts["acme"] = 5
        await one.use.round()
        with client_of(empty_redis) as client:
            assert b"acme" not in client.get("trunkline:use:node-a")


@pytest.mark.real
async def test_without_redis_a_node_has_its_own_limits(monkeypatch):
    monkeypatch.setattr(cluster_use, "LAPSES_S", 0.3)
    with RedisServer() as server:
        async with nodes(server.url, deadlines=USUAL_DEADLINES) as (one, two):
            for _ in range(3):
                one.gate.begin_call(time.monotonic())
            await until(lambda: two.gate.remote_in_flight == 3)
            server.kill()
            await until(lambda: two.gate.remote_in_flight == 0)
            two.gate.begin_call(time.monotonic())
            server.start()
            await until(lambda: two.gate.remote_in_flight == 3)
