"""What is done with what processes use: limits without control groups, and metrics."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from app.domain import ProcessLimits
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.spawner.client import Command, SpawnerClient
from app.jail.spawner.wire import Confinement
from app.processes import _meter as meter
from app.processes import measuring
from app.processes.measuring import look
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from app.protocol._notification_rate import PER_SECOND
from app.telemetry.metrics import Metrics
from tests.processes.rig import Listener, Running, as_it_is, eventually, spec_of
from tests.processes.test_measuring import SHARES

SMALL, NO_LIMIT = ProcessLimits(memory_mb=64), ProcessLimits(memory_mb=None)


async def measure(running: Running) -> None:
    await running.supervisor.meter.measure(running.supervisor.processes)


async def test_a_process_over_its_memory_is_ended_alone_and_its_caller_learns_why(running: Running) -> None:
    greedy, listener = await running.start("glutton", limits=SMALL)
    other, neighbour = await running.start("glutton", limits=ProcessLimits(memory_mb=512))
    free, _ = await running.start("glutton", limits=NO_LIMIT)
    for process in (greedy, other, free):
        process.send(b"memory 200")
    exit = await listener.exit()
    assert (exit.reason, exit.limit) == ("killed", "memory")
    assert exit.description == "killed: it needed more memory than its 64 MiB"
    assert exit.error().limit == "memory"
    assert running.value("trunkline_limits_hit_total", limit="memory") == 1
    await neighbour.line()
    await measure(running)
    assert not neighbour.exits
    assert {each.id for each in running.supervisor.processes} == {other.id, free.id}


async def test_what_a_process_has_started_counts_for_its_memory(running: Running) -> None:
    code = "import os, sys\nif os.fork():\n  sys.stdin.read()\nelse:\n  os.setsid()\n"
    code += "  held = bytearray(b'x') * (200 << 20)\n  sys.stdin.read()"
    _, listener = await running.start("echo", command=sys.executable, args=("-I", "-S", "-c", code), limits=SMALL)
    assert (await listener.exit()).limit == "memory"


async def test_pages_that_its_processes_share_do_not_end_it(running: Running) -> None:
    process, listener = await running.start(
        "echo", command=sys.executable, args=("-I", "-S", "-c", SHARES), limits=ProcessLimits(memory_mb=100)
    )
    await listener.line()
    await measure(running)
    await measure(running)
    assert measuring.measure({process.pid: process.id})[process.pid].resident_bytes > 128 << 20
    assert process.resident_bytes < 100 << 20
    assert not process.is_being_killed


async def test_processes_that_no_control_group_limits_are_looked_at_often(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a look costs on this machine, with whatever else runs there, decides how often there is one.
    monkeypatch.setattr(meter, "look", lambda targets: (measuring.look(targets)[0], 0.001))
    await running.start("echo")
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += 1

    running.supervisor.meter.measured.listen(looked)
    await eventually(lambda: looks >= 3)


async def test_frozen_processes_are_looked_at_once_a_minute_and_whenever_somebody_looks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = await running.start("echo", limits=NO_LIMIT)
    other, _ = await running.start("echo", limits=NO_LIMIT)

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(running.supervisor.meter, "sweep", nothing)
    monkeypatch.setattr(BackendProcess, "is_frozen", property(lambda self: self is process))
    looked: list[set[int]] = []

    def looking(targets: Any) -> Any:
        looked.append({each.pid for each in targets})
        return look(targets)

    one = meter.Meter(running.metrics)
    monkeypatch.setattr(meter, "look", looking)
    both = {process.pid, other.pid}
    for now, expected in (
        (100.0, both),
        (120.0, {other.pid}),
        (140.0, {other.pid}),
        (161.0, both),
        (181.0, {other.pid}),
    ):
        one._measured_at = 0.0
        await one.sweep([process, other], now)
        assert looked[-1] == expected, now
    held = process.resident_bytes + other.resident_bytes
    assert running.value("trunkline_backend_resident_bytes", tenant="_OTHER", backend="_OTHER") == held
    one.watch()
    one._measured_at = 0.0
    await one.sweep([process, other], one._watched_until - 1)
    assert looked[-1] == both


async def test_bytes_and_cpu_of_a_backend_are_counted_to_its_end(running: Running) -> None:
    labels = {"tenant": "_OTHER", "backend": "_OTHER"}
    process, listener = await running.start("echo", limits=NO_LIMIT)
    process.send(b"x" * 99)
    await listener.line()
    await measure(running)
    assert running.value("trunkline_backend_resident_bytes", **labels) == process.resident_bytes > 0
    process.send(b"y" * 199)
    await listener.line(2)
    assert (process.sent_bytes, process.received_bytes) == (300, 300)
    await running.stop(process)
    await measure(running)
    assert running.value("trunkline_backend_sent_bytes_total", **labels) == 300
    assert running.value("trunkline_backend_received_bytes_total", **labels) == 300
    assert running.value("trunkline_backend_cpu_seconds_total", **labels) == pytest.approx(process.cpu_s)
    assert running.value("trunkline_backend_resident_bytes", **labels) == 0
    assert running.supervisor.meter._told == {}


async def test_notifications_that_were_dropped_unread_are_counted(running: Running) -> None:
    process, _ = await running.start("echo", limits=NO_LIMIT)
    notice = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n'
    for _ in range(3):
        process._stdout.data_received(notice * PER_SECOND)
    await measure(running)
    await measure(running)
    assert running.value("trunkline_messages_dropped_total", reason="notification_rate") == PER_SECOND


async def test_a_process_that_ends_while_it_is_looked_at_is_counted_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_looking, may_look = threading.Event(), threading.Event()

    def look_late(targets: Any) -> Any:
        is_looking.set()
        may_look.wait(60)
        return look(targets)

    process, listener = await running.start("echo", limits=NO_LIMIT)
    process.send(b"x" * 99)
    await listener.line()
    monkeypatch.setattr(meter, "look", look_late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.supervisor.meter.measure, running.supervisor.processes)
        await eventually(is_looking.is_set)
        await running.stop(process)
        may_look.set()
    assert running.value("trunkline_backend_sent_bytes_total", tenant="_OTHER", backend="_OTHER") == 100
    assert running.supervisor.meter._told == {}


async def test_the_phases_of_a_start_are_counted_and_the_first_byte_only_of_who_had_something_to_do(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.process._FRESH_S", 600.0)  # it may take a moment until it is leased
    process, listener = await running.start("echo")
    process.lease()
    process.send(b"x")
    await listener.line()
    await measure(running)
    await measure(running)
    name = "trunkline_process_spawn_phase_seconds_count"
    assert [running.value(name, phase=phase) for phase in ("fork", "sandbox", "exec", "first_byte")] == [1, 1, 1, 1]
    monkeypatch.setattr("app.processes.process._FRESH_S", 0.0)
    warm, listener = await running.start("echo")
    warm.lease()
    warm.send(b"x")
    await listener.line()
    await measure(running)
    assert running.value(name, phase="first_byte") == 1
    assert running.value("trunkline_processes_by_tier", tier="none") == 2


def test_a_backend_has_labels_of_its_own_while_there_are_any() -> None:
    labels = Metrics("test", per_backend=2).backend_labels
    shown = [labels.of((tenant, "echo")) for tenant in ("a", "b", "c", "a", "c")]
    assert shown == [("a", "echo"), ("b", "echo"), labels.OTHER, ("a", "echo"), labels.OTHER]
    assert Metrics("test").backend_labels.of(("a", "echo")) == labels.OTHER


# --- with control groups


@pytest.fixture
def roots() -> Iterator[CgroupRoots]:
    roots = open_roots()
    if not {"memory", "cpu", "pids"} <= roots.directories.keys():
        pytest.skip(f"no control groups: {roots.missing}")
    yield roots
    roots.close()


async def test_what_only_control_groups_count_is_counted(running: Running, roots: CgroupRoots) -> None:
    client = SpawnerClient()
    await client.start()
    try:
        limits = ProcessLimits(memory_mb=64, pids=8, cpu=0.2)
        process = BackendProcess(spec_of("glutton", limits=limits), client, PipeLimits(), lambda process: None)
        listener, meter = Listener(), running.supervisor.meter
        process.attach(listener)
        confinement = Confinement(cgroup=roots.cgroup("acme", limits, None))
        await process.start(as_it_is(Command([sys.executable, *process.spec.args], {}, confinement=confinement)))
        assert process.is_limited_by_kernel
        process.send(b"forks 20")
        await listener.line()
        process.send(b"spin 2")
        await listener.line(2)
        await meter.measure([process])
        assert process.resident_bytes > 4 << 20
        assert process.cpu_s > 0
        assert running.value("trunkline_cpu_throttled_seconds_total") > 0
        assert running.value("trunkline_limits_hit_total", limit="cpu") == 1
        assert running.value("trunkline_limits_hit_total", limit="pids") > 0
        process.send(b"memory 200")
        assert (await listener.exit()).limit == "memory"
        meter.count(process)
        assert running.value("trunkline_oom_kills_total") >= 1
    finally:
        await client.aclose()
