"""Callers who wait for a shared process: for a place, and until it is initialised; and who wait for the place of one.
With real processes.
"""

from dataclasses import replace
from functools import partial

import anyio
import pytest

from app.backends.connections._shared_process import SharedConnection
from app.backends.connections.shared_processes import SharedProcesses, initialized
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy
from tests.backends.rig import NO_LIMITS, lease_all, total
from tests.processes.rig import eventually, spec_of

ANN = Principal("acme", "key", "ann", frozenset())
SHARED = spec_of("stateless", isolation="shared")
ONE = Limits(processes=1)


class Callers:
    """Of a shared backend: who has joined its process, and who was refused."""

    def __init__(self, pool, tasks) -> None:
        self.shared, self._tasks = SharedProcesses(pool), tasks
        self.joined: list[str] = []
        self.refused: dict[str, BackendBusy] = {}

    def come(self, name: str, limits: Limits) -> None:
        self._tasks.start_soon(self._wait, name, limits)

    async def join(self, spec: BackendSpec, limits: Limits = NO_LIMITS) -> SharedConnection:
        return await self.shared.lease(spec, limits, ANN, self._tasks)

    async def _wait(self, name: str, limits: Limits) -> None:
        try:
            await self.join(SHARED, limits)
            self.joined.append(name)
        except BackendBusy as error:
            self.refused[name] = error


async def test_each_caller_waits_for_a_place_as_long_as_with_a_process_of_its_own(make_pool, running, monkeypatch):
    """Before, all of them waited `initialize_s` longer, and as long as the first."""
    monkeypatch.setattr("app.backends.pool.KEPT_S", 0.05)
    pool = await make_pool(deadline_s=0.3, prepare=partial(initialized, running.metrics))
    (lease,) = await lease_all(pool, [spec_of("echo")], ONE)
    async with anyio.create_task_group() as tasks:
        callers = Callers(pool, tasks)
        callers.come("first", ONE)
        await eventually(lambda: total(pool, "waiting") == 1)
        monkeypatch.setattr(pool._limits, "options", replace(pool._limits.options, deadline_s=30.0))
        callers.come("second", ONE)
        await eventually(lambda: callers.refused, 10.0)
        assert list(callers.refused) == ["first"]
        reached = callers.refused["first"].reached
        assert reached is not None
        assert (reached.name, reached.of) == ("processes", "tenant")
        await anyio.sleep(0.3)  # calm: its place is kept all the while
        assert total(pool, "waiting") == 1  # in the place of the first still
        lease.release("over")
        await eventually(lambda: callers.joined == ["second"])
        assert running.value("trunkline_rate_limited_total", limit="processes") == 1


async def test_the_place_is_given_up_when_nobody_waits_for_it_any_more(make_pool, running, monkeypatch):
    monkeypatch.setattr("app.backends.pool.KEPT_S", 0.05)
    pool = await make_pool(deadline_s=0.1, prepare=partial(initialized, running.metrics))
    await lease_all(pool, [spec_of("echo")], ONE)
    async with anyio.create_task_group() as tasks:
        callers = Callers(pool, tasks)
        callers.come("only", ONE)
        await eventually(lambda: callers.refused, 10.0)
        await eventually(lambda: total(pool, "waiting") == 0, 10.0)
    assert running.value("trunkline_rate_limited_total", limit="processes") == 1


@pytest.mark.parametrize("is_for", ["a caller", "later sessions"])
async def test_once_there_is_a_place_the_process_has_its_time_to_be_initialised(
    make_pool, running, monkeypatch, is_for
):
    """A server may take longer for it than anybody waits for a place."""
    monkeypatch.setattr("app.backends.pool.KEPT_S", 0.05)
    may_go = anyio.Event()

    async def prepare(process):
        await may_go.wait()
        return await initialized(running.metrics, process)

    pool = await make_pool(deadline_s=0.05, prepare=prepare)
    async with anyio.create_task_group() as tasks:
        callers = Callers(pool, tasks)
        if is_for == "a caller":
            callers.come("only", NO_LIMITS)
        else:
            tasks.start_soon(pool.lease, SHARED, NO_LIMITS)
        await eventually(lambda: total(pool, "starting") == 1)
        await anyio.sleep(0.5)  # calm: longer than the place is kept, and nothing ends it
        assert (callers.refused, total(pool, "waiting")) == ({}, 1)
        may_go.set()
    assert total(pool, "leased") == 1


# --- places of shared processes without sessions


async def test_a_process_without_sessions_makes_room_and_the_next_session_gets_another(make_pool, running):
    """Before, it kept its place for a minute, and nobody else could start anything."""
    pool = await make_pool(max_processes=2, prepare=partial(initialized, running.metrics))
    async with anyio.create_task_group() as tasks:
        callers = Callers(pool, tasks)
        last, first, both = replace(SHARED, name="last"), replace(SHARED, name="first"), Limits(processes=2)
        at_last, at_first = await callers.join(last, both), await callers.join(first, both)
        at_last.release("over")
        again = await callers.join(last, both)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(pool.lease, spec_of("echo", tenant="globex"), NO_LIMITS)
            await eventually(lambda: total(pool, "waiting") == 1)
            await anyio.wait_all_tasks_blocked()
            assert total(pool, "leased") == 2  # they have sessions, also the one that had none
            at_first.release("over")
        assert {key[1]: each.leased for key, each in pool.snapshot().items()} == {"last": 1, "first": 0, "echo": 1}
        again.release("over")
        another = await callers.join(first, Limits(processes=1))  # in the place of its own tenant's other one
        assert again.id == at_last.id != another.id != at_first.id
        callers.shared.sweep(0.0)
        assert total(pool, "leased") == 2


async def test_the_process_that_has_been_unused_for_longest_makes_room(make_pool, running):
    pool = await make_pool(max_processes=2, prepare=partial(initialized, running.metrics))
    async with anyio.create_task_group() as tasks:
        callers = Callers(pool, tasks)
        one, other = [await callers.join(replace(SHARED, name=name)) for name in ("one", "other")]
        other.release("over")
        one.release("over")
        await pool.lease(spec_of("echo", tenant="globex"), NO_LIMITS)
    assert {key[1]: each.leased for key, each in pool.snapshot().items()} == {"one": 1, "other": 0, "echo": 1}


async def test_a_process_that_nobody_has_joined_makes_room_soon_but_not_at_once(make_pool, running, monkeypatch):
    """Those who have waited for it have not run yet when it is there."""
    monkeypatch.setattr("app.backends.connections._shared_process.JOINED_WITHIN_S", 60.0)
    pool = await make_pool(max_processes=1, prepare=partial(initialized, running.metrics))
    async with anyio.create_task_group() as tasks:
        shared = Callers(pool, tasks).shared
        with anyio.move_on_after(0.0):
            await shared.lease(SHARED, NO_LIMITS, ANN, tasks)
        await eventually(lambda: total(pool, "leased") == 1)
        tasks.start_soon(pool.lease, spec_of("echo"), NO_LIMITS)
        await eventually(lambda: total(pool, "waiting") == 1)
        shared.sweep(0.0)
        await anyio.wait_all_tasks_blocked()
        assert pool.snapshot()[SHARED.key].leased == 1
        monkeypatch.setattr("app.backends.connections._shared_process.JOINED_WITHIN_S", 0.0)
        shared.sweep(0.0)
    assert {key[1]: each.leased for key, each in pool.snapshot().items()} == {"stateless": 0, "echo": 1}
