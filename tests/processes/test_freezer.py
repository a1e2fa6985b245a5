"""Freezer: real processes that stand still and go on, in control groups of either version."""

import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import pytest

from app.domain import ProcessLimits
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.spawner.cgroups import UNIFIED, Group
from app.jail.spawner.client import Command, SpawnerClient
from app.processes import freezer as freezer_module
from app.processes.freezer import BATCH, Freezable, Freezer, has_swap_now
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from tests.jail.spawner.conftest import Child, client, spawn
from tests.processes.rig import Listener, as_it_is, eventually, spec_of

__all__ = ["client"]

TICKER = ["-u", "-c", "import itertools, time\nfor n in itertools.count():\n    print(n)\n    time.sleep(0.005)"]


@pytest.fixture(params=[UNIFIED, "freezer"])
def roots(request: pytest.FixtureRequest) -> Iterator[CgroupRoots]:
    """Those of one version."""
    found = open_roots()
    if request.param not in found.directories:
        found.close()
        pytest.skip(f"no control groups for {request.param}: {found.missing[request.param]}")
    kept = {request.param, "memory"} & found.directories.keys()
    one = CgroupRoots({name: found.directories[name] for name in kept})
    assert not one.why_not_frozen
    yield one
    found.close()


class Rig:
    def __init__(self, client: SpawnerClient, roots: CgroupRoots, freezer: Freezer) -> None:
        self.client, self.roots, self.freezer = client, roots, freezer
        self.told: list[OSError | None] = []
        self.children: list[Child] = []

    async def start(self, *argv: str, **limits: Any) -> tuple[Freezable, Child]:
        cgroup = self.roots.cgroup("acme", ProcessLimits(**{"memory_mb": None, "pids": None, "cpu": None, **limits}))
        child = await spawn(self.client, *(argv or ("python3", *TICKER)), confinement={"cgroup": cgroup})
        self.children.append(child)
        return Freezable(self.freezer, Group(cgroup, child.spawned.id)), child

    def group(self, process: Freezable) -> Group:
        assert process.group is not None
        return process.group

    async def has_told(self, times: int) -> None:
        await eventually(lambda: len(self.told) >= times)


@pytest.fixture
async def rig(client: SpawnerClient, roots: CgroupRoots, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(freezer_module, "WITHIN_S", 60.0)  # who waits for its turn stands still only then
    freezer = Freezer(has_swap=lambda: False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(freezer.run)
        rig = Rig(client, roots, freezer)
        yield rig
        tasks.cancel_scope.cancel()
    await client.aclose()
    for child in rig.children:
        child.close()


def said(child: Child) -> int:
    """How many bytes it has written since the last look."""
    os.set_blocking(child.stdout, False)
    try:
        return len(os.read(child.stdout, 1 << 20))
    except BlockingIOError:
        return 0


async def test_a_process_stands_still_and_goes_on(rig: Rig) -> None:
    process, child = await rig.start()
    await child.read_line()
    assert process.freeze(rig.told.append)
    assert process.is_frozen
    await rig.has_told(1)
    assert rig.group(process).is_frozen()
    said(child)
    await anyio.sleep(0.1)  # calm: it would have said twenty things in it
    assert said(child) == 0
    process.thaw(rig.told.append)
    assert not process.is_frozen
    await rig.has_told(2)
    await eventually(lambda: said(child))
    assert rig.told == [None, None]


async def test_orders_for_the_same_process_keep_their_order(rig: Rig) -> None:
    process, child = await rig.start()
    for _ in range(BATCH):
        assert process.freeze(rig.told.append)
        process.thaw(rig.told.append)
    await rig.has_told(2 * BATCH)
    assert set(rig.told) == {None}
    assert not rig.group(process).is_frozen()
    said(child)
    await eventually(lambda: said(child))
    process.thaw(rig.told.append)  # nothing to do, and nobody to tell
    process.freeze(rig.told.append)
    await rig.has_told(2 * BATCH + 1)
    assert rig.group(process).is_frozen()


async def test_what_a_frozen_process_has_started_ends_with_it(rig: Rig) -> None:
    process, child = await rig.start("sh", "-c", "setsid sleep 600 & setsid sleep 600 & echo; read x")
    await child.read_line()
    process.freeze(rig.told.append)
    await rig.has_told(1)
    rig.client.kill(child.spawned.id)
    assert (await child.end()).number == signal.SIGKILL
    await eventually(lambda: not os.path.exists(rig.group(process).joins[0]))


async def backend(rig: Rig) -> tuple[BackendProcess, Listener]:
    """The echo server, leased."""
    spec, listener = spec_of("echo"), Listener()
    cgroup = rig.roots.cgroup("acme", ProcessLimits(memory_mb=None, pids=None, cpu=None))
    command = Command([spec.command, *spec.args], {"PATH": os.environ["PATH"]}, confinement={"cgroup": cgroup})
    process = BackendProcess(spec, rig.client, PipeLimits(), lambda process: None, freezer=rig.freezer)
    await process.start(as_it_is(command))
    process.attach(listener)
    process.lease()
    return process, listener


async def test_a_backend_reads_what_was_written_while_it_stood_still(rig: Rig) -> None:
    process, listener = await backend(rig)
    assert process.freeze(rig.told.append)
    await rig.has_told(1)
    process.send(b"one")
    process.thaw(rig.told.append)
    assert await listener.line() == b"one"
    process.kill()
    await process.wait_gone()


async def test_a_frozen_backend_is_stopped_as_others_are(rig: Rig) -> None:
    """It goes on, and ends by itself at the end of its input."""
    process, listener = await backend(rig)
    process.freeze(rig.told.append)
    await rig.has_told(1)
    process.begin_stop()
    assert not process.freeze(rig.told.append)
    assert (await listener.exit()).description == "exit status 0"


async def test_a_backend_that_has_something_to_read_is_not_frozen(rig: Rig) -> None:
    process, _ = await backend(rig)
    process.pause_reading()
    for _ in range(4):
        process.send(b"x" * (1 << 18))  # more than its pipes hold
    assert not process.freeze(rig.told.append)
    process.kill()
    await process.wait_gone()


async def test_a_process_that_ended_meanwhile_is_refused(rig: Rig) -> None:
    process, child = await rig.start()
    rig.client.kill(child.spawned.id)
    await child.end()
    await eventually(lambda: not os.path.exists(rig.group(process).joins[0]))
    process.freeze(rig.told.append)
    await rig.has_told(1)
    assert [each and each.errno for each in rig.told] == [errno.ENOENT]
    assert not process.is_frozen


async def test_what_does_not_stand_still_in_time_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for a disk."""
    process, child = await rig.start()
    monkeypatch.setattr(Group, "is_frozen", lambda group: False)
    monkeypatch.setattr(freezer_module, "WITHIN_S", 0.05)
    process.freeze(rig.told.append)
    await rig.has_told(1)
    assert [each and each.errno for each in rig.told] == [errno.EBUSY]
    assert not process.is_frozen
    said(child)
    await eventually(lambda: said(child))


class Stilled(Group):
    """Stands still as soon as a test says so."""

    is_still = False

    def __init__(self) -> None:
        self.thawed = 0

    def freeze(self) -> None:
        pass

    def thaw(self) -> None:
        self.thawed += 1

    def is_frozen(self) -> bool:
        return Stilled.is_still


async def test_after_a_standstill_of_the_node_all_are_looked_at_before_they_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freezer, told = Freezer(has_swap=lambda: False), list[OSError | None]()
    groups = [Stilled() for _ in range(BATCH + 10)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(freezer.run)
        for group in groups:
            freezer.order(group, told.append, freeze=True)
        await eventually(lambda: len(freezer._stopping) == len(groups))
        later = time.monotonic() + 6.0
        monkeypatch.setattr(Stilled, "is_still", True)
        monkeypatch.setattr(freezer_module, "time", SimpleNamespace(monotonic=lambda: later))
        await eventually(lambda: len(told) == len(groups))
        tasks.cancel_scope.cancel()
    assert set(told) == {None}
    assert not any(group.thawed for group in groups)


async def test_without_a_control_group_nothing_is_frozen_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    freezer, told = Freezer(), list[OSError | None]()
    assert not Freezable(freezer).freeze(told.append)
    assert not Freezable(freezer).freeze(told.append)
    Freezable(freezer).thaw(told.append)
    assert (told, len(caplog.records)) == ([], 1)


class Pushed(Group):
    """Says that there is more to push out, so many times."""

    def __init__(self, times: int, after: Callable[[], None] = lambda: None) -> None:
        self.times, self._after, self.pushed = times, after, 0

    can_freeze = True

    def freeze(self) -> None: ...

    thaw = freeze

    def is_frozen(self) -> bool:
        return True

    def push_out(self, size: int) -> bool:
        self.pushed += 1
        if self.pushed > self.times:
            raise OSError(errno.EAGAIN, "no more")
        self._after()
        return True


@pytest.mark.parametrize(("has_swap", "pushed"), [(True, 4), (False, 0)])
async def test_memory_is_pushed_out_step_by_step_where_there_is_swap(has_swap: bool, pushed: int) -> None:
    freezer, told = Freezer(has_swap=lambda: has_swap), list[OSError | None]()
    groups = Pushed(3), Pushed(0)
    process, last = (Freezable(freezer, group) for group in groups)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(freezer.run)
        process.freeze(told.append)
        last.freeze(told.append)
        if has_swap:
            await eventually(lambda: groups[1].pushed)
        await eventually(lambda: len(told) == 2)
        tasks.cancel_scope.cancel()
    assert groups[0].pushed == pushed


async def test_no_more_is_pushed_out_of_a_process_that_goes_on() -> None:
    freezer, told = Freezer(has_swap=lambda: True), list[OSError | None]()
    group = Pushed(100, lambda: process.thaw(told.append))
    process = Freezable(freezer, group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(freezer.run)
        process.freeze(told.append)
        await eventually(lambda: len(told) == 2)
        tasks.cancel_scope.cancel()
    assert group.pushed == 1


async def test_the_kernel_is_asked_to_push_memory_out(rig: Rig) -> None:
    """Without swap it finds nothing, or pages of files."""
    if "memory" not in rig.roots.directories:
        pytest.skip("no control group limits memory here")
    process, child = await rig.start(memory_mb=64)
    await child.read_line()
    process.freeze(rig.told.append)
    await rig.has_told(1)
    await anyio.to_thread.run_sync(process.push_out)
    assert rig.group(process).is_frozen()
    process.thaw(rig.told.append)
    await rig.has_told(2)
    await eventually(lambda: said(child))


def test_swap_is_what_the_kernel_lists(tmp_path: Path) -> None:
    swaps = tmp_path / "swaps"
    assert not has_swap_now(swaps)
    swaps.write_text("Filename\tType\tSize\tUsed\tPriority\n")
    assert not has_swap_now(swaps)
    swaps.write_text("Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1 0 100\n")
    assert has_swap_now(swaps)
