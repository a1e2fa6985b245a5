"""The pool: leases, limits, waiting and warm processes, with real processes."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from app.backends import _plan as plan
from app.backends.inventory import Lease
from app.domain import Limits
from app.errors import BackendBusy, BackendExited, BackendNotFound, ShuttingDown
from app.processes.process import ProcessState
from tests.backends.rig import NO_LIMITS, lease_all, total
from tests.processes.rig import Listener, eventually, spec_of


async def start_waiting(tasks, pool, spec, done, name, limits=NO_LIMITS):
    """Starts a caller that notes `name` once served, and returns when it waits."""

    async def caller():
        lease = await pool.lease(spec, limits)
        lease.handshake_succeeded()
        done.append((name, lease))

    waiting = total(pool, "waiting")
    tasks.start_soon(caller)
    await eventually(lambda: total(pool, "waiting") > waiting)


def limit_of(error):
    reached = error.reached
    return reached.name, reached.of, reached.allowed, reached.used


class Done(list[tuple[str, Lease]]):
    """Who was served, in order."""

    async def have_been(self, count):
        await eventually(lambda: len(self) >= count)


def has_warm(pool, count):
    return total(pool, "warm") == count


async def fill(pool, spec):
    pool.configure(spec)
    await eventually(lambda: total(pool, "warm") >= spec.warm)


# --- leases


async def test_a_lease_is_a_process_of_its_own(make_pool):
    pool = await make_pool()
    first, second = await lease_all(pool, [spec_of("echo")] * 2)
    listeners = Listener(), Listener()
    for lease, listener in zip((first, second), listeners, strict=True):
        lease.connection.attach(listener)
        lease.connection.send(lease.connection.id.encode())
    assert await listeners[0].line() == first.connection.id.encode()
    assert await listeners[1].line() == second.connection.id.encode()
    assert first.connection.pid != second.connection.pid
    assert [total(pool, name) for name in ("leased", "warm", "starting", "waiting")] == [2, 0, 0, 0]


async def test_a_released_process_is_stopped_and_never_reused(make_pool):
    pool = await make_pool()
    (lease,) = await lease_all(pool, [spec_of("echo")])
    listener = Listener()
    lease.connection.attach(listener)
    lease.release("done")
    lease.release("again")
    assert lease.connection.state is ProcessState.STOPPING
    await lease.connection.wait_gone()
    assert listener.exits == []
    (other,) = await lease_all(pool, [spec_of("echo")])
    assert other.connection.pid != lease.connection.pid


async def test_one_process_is_ended_and_a_warm_one_replaced(make_pool, running):
    pool = await make_pool()
    spec = spec_of("echo", warm=2)
    await fill(pool, spec)
    leased = await pool.lease(spec, NO_LIMITS)
    listener = Listener()
    leased.connection.attach(listener)
    await eventually(lambda: total(pool, "warm") == 2)
    (first, _) = [each for each in running.supervisor.processes if each.state is ProcessState.WARM]
    pool.end(first, "somebody wanted it")
    assert total(pool, "warm") == 1  # nobody is handed it while it stops
    (next_one,) = await lease_all(pool, [spec])
    assert next_one.connection is not first
    pool.end(leased.connection, "somebody wanted it")
    pool.end(leased.connection, "again")
    await eventually(lambda: len(listener.exits))
    assert [(each.reason, each.description) for each in listener.exits] == [("stopped", "somebody wanted it")]
    leased.release("exited")
    await eventually(lambda: total(pool, "warm") == 2)
    assert not pool.failures.of(spec.key)


async def test_a_command_that_cannot_be_started_is_told_to_the_caller(make_pool):
    pool = await make_pool()
    with pytest.raises(BackendExited, match="No such file or directory: 'uvx-nope'") as caught:
        await pool.lease(spec_of("echo", command="uvx-nope"), NO_LIMITS)
    assert caught.value.started is False
    assert caught.value.hint is not None
    assert pool.snapshot()["acme", "echo"].leased == 0


async def test_a_closed_pool_refuses_and_stops_everything(make_pool, running):
    pool = await make_pool()
    spec = spec_of("echo", warm=2)
    await fill(pool, spec)
    (lease,) = await lease_all(pool, [spec])
    await pool.aclose()
    await pool.aclose()
    with pytest.raises(ShuttingDown):
        await pool.lease(spec, NO_LIMITS)
    await lease.connection.wait_gone()
    await eventually(lambda: not running.supervisor.processes)


async def test_closing_refuses_who_waits(make_pool):
    pool = await make_pool(max_processes=1)
    spec = spec_of("echo")
    await lease_all(pool, [spec])

    async def wait_in_vain():
        with pytest.raises(ShuttingDown):
            await pool.lease(spec, NO_LIMITS)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_in_vain)
        await eventually(lambda: total(pool, "waiting") == 1)
        await pool.aclose()


# --- limits


async def test_a_backend_keeps_its_maximum_until_a_process_has_gone(make_pool):
    pool = await make_pool()
    spec, done = spec_of("echo", max_processes=2), Done()
    first, _second = await lease_all(pool, [spec, spec])
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec, done, "third")
        assert total(pool, "leased") == 2
        first.release("done")
    assert first.connection.state is ProcessState.GONE
    assert [name for name, _ in done] == ["third"]


async def test_a_tenant_keeps_its_limit_over_all_its_backends(make_pool):
    pool = await make_pool()
    limits, done = Limits(processes=1), Done()
    (lease,) = await lease_all(pool, [spec_of("echo")], limits)
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec_of("echo", name="other"), done, "second", limits)
        await lease_all(pool, [spec_of("echo", tenant="globex")], limits)  # not held up by acme
        assert done == []
        lease.release("done")
    assert len(done) == 1


async def test_a_limit_that_is_changed_concerns_those_who_wait_already(make_pool):
    """Before, the pool learned it only from the tenant's next caller."""
    pool, done = await make_pool(), Done()
    leases = await lease_all(pool, [spec_of("echo")] * 2, Limits(processes=2))
    async with anyio.create_task_group() as tasks:
        for name in ("third", "fourth"):
            await start_waiting(tasks, pool, spec_of("echo"), done, name, Limits(processes=2))
        pool._budgets.know("acme", Limits(processes=3))
        await done.have_been(1)
        pool._budgets.know("acme", Limits(processes=1))
        for lease in leases:
            lease.release("over")
            await lease.connection.wait_gone()
        await anyio.wait_all_tasks_blocked()
        assert (total(pool, "waiting"), total(pool, "starting")) == (1, 0)
        pool._budgets.know("acme", Limits(processes=2))
    assert [name for name, _ in done] == ["third", "fourth"]


async def test_processes_of_the_tenant_on_other_nodes_count(make_pool):
    pool, done = await make_pool(), Done()
    pool.note_remote_use({"acme": 1})
    limits = Limits(processes=2)
    async with anyio.create_task_group() as tasks:
        await lease_all(pool, [spec_of("echo")], limits)
        assert dict(pool.used()) == {"acme": 1}
        await start_waiting(tasks, pool, spec_of("echo"), done, "second", limits)
        pool.note_remote_use({})
        await done.have_been(1)


async def test_the_version_for_new_processes_is_known_until_the_backend_is_removed(make_pool):
    pool, spec = await make_pool(), spec_of("echo")
    assert pool.spec_of(spec.key) is None
    await lease_all(pool, [spec])
    assert (pool.spec_of(spec.key), pool.backends()) == (spec, {spec.key})
    pool.forget(spec.key)
    assert pool.spec_of(spec.key) is None


async def test_warm_processes_do_not_count_for_the_tenant(make_pool):
    pool = await make_pool()
    spec, limits = spec_of("echo", warm=3), Limits(processes=1)
    await fill(pool, spec)
    await lease_all(pool, [spec], limits)
    with anyio.move_on_after(0.05) as scope:  # a warm one is there, but the limit comes first
        await pool.lease(spec, limits)
    assert scope.cancelled_caught


async def test_a_full_node_stops_a_warm_process_of_another_backend(make_pool):
    pool = await make_pool(max_processes=2)
    await fill(pool, spec_of("echo", name="hoard", warm=2))
    with anyio.fail_after(10):
        (lease,) = await lease_all(pool, [spec_of("echo")])
    snapshot = pool.snapshot()
    assert lease.connection.state is ProcessState.LEASED
    assert snapshot["acme", "hoard"].warm == 1


async def test_tenants_are_served_in_turns(make_pool):
    pool = await make_pool(max_processes=1)
    greedy, modest = spec_of("echo", tenant="greedy"), spec_of("echo", tenant="modest")
    (lease,) = await lease_all(pool, [greedy])
    done = Done()
    async with anyio.create_task_group() as tasks:
        for name in ("g1", "g2", "g3"):
            await start_waiting(tasks, pool, greedy, done, name)
        await start_waiting(tasks, pool, modest, done, "m1")
        for served in range(1, 5):
            lease.release("done")
            await done.have_been(served)
            lease = done[-1][1]
    assert [name for name, _ in done] == ["g1", "m1", "g2", "g3"]


async def test_the_queue_is_bounded(make_pool):
    pool = await make_pool(max_processes=1, max_waiting=1)
    spec, done = spec_of("echo"), Done()
    (lease,) = await lease_all(pool, [spec])
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec, done, "queued")
        with pytest.raises(BackendBusy, match="1 sessions wait") as caught:
            await pool.lease(spec, NO_LIMITS)
        assert limit_of(caught.value) == ("node_waiting", "node", 1, 1)
        lease.release("done")
    assert len(done) == 1


async def test_waiting_has_a_deadline(make_pool, running, monkeypatch):
    pool = await make_pool(max_processes=1)
    spec = spec_of("echo")
    await lease_all(pool, [spec])
    monkeypatch.setattr(pool._limits, "options", replace(pool._limits.options, deadline_s=0.05))
    with pytest.raises(BackendBusy, match=r"no process came free within 0\.05 s: this node has 1 processes") as caught:
        await pool.lease(spec, NO_LIMITS)
    assert limit_of(caught.value) == ("node_processes", "node", 1, 1)
    assert "MAX_PROCESSES" in caught.value.reached.raised_by
    assert total(pool, "waiting") == 0
    assert running.value("trunkline_pool_wait_seconds_count") == 2
    assert running.value("trunkline_rate_limited_total", limit="node_processes") == 1


async def test_who_waits_asks_for_idle_sessions_and_again_when_there_may_be_one(make_pool):
    spec, asked, done = spec_of("echo", max_processes=1), [], Done()

    def reclaim(spec, count):
        asked.append((spec.key, count))
        if len(asked) == 2:
            lease.release("reclaimed")
        return 0.05 if len(asked) == 1 else 60.0

    pool = await make_pool(reclaim=reclaim)
    (lease,) = await lease_all(pool, [spec])
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec, done, "newcomer")
        await done.have_been(1)
    assert asked == [(spec.key, 1)] * 2
    assert lease.connection.exit is not None


async def test_who_waits_asks_again_when_a_session_will_have_been_idle_for_long_enough(make_pool):
    pool = await make_pool(reclaim=lambda spec, count: 60.0)
    spec, done, loop = spec_of("echo", max_processes=1), Done(), asyncio.get_running_loop()
    (lease,) = await lease_all(pool, [spec])
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec, done, "newcomer")
        # Sooner timers, for the stock, have rung by then.
        await eventually(
            lambda: pool._planning._handle is not None and pool._planning._handle.when() - loop.time() > 50
        )
        lease.release("done")
        await done.have_been(1)


async def test_a_changed_backend_may_have_sessions_to_end_sooner(make_pool):
    spec, asked, done = spec_of("echo", max_processes=1), [], Done()

    def reclaim(spec, count):
        asked.append(spec.version)
        return 3600.0

    pool = await make_pool(reclaim=reclaim)
    (lease,) = await lease_all(pool, [spec])
    async with anyio.create_task_group() as tasks:
        await start_waiting(tasks, pool, spec, done, "newcomer")
        await eventually(lambda: asked == [spec.version])
        pool.configure(replace(spec, version=spec.version + 1))
        await eventually(lambda: asked == [spec.version, spec.version + 1])
        lease.release("done")
        await done.have_been(1)


async def test_who_has_waited_too_long_hears_whose_limit_it_was(make_pool, monkeypatch):
    pool = await make_pool(max_processes=10)
    spec = spec_of("echo", max_processes=1)
    await lease_all(pool, [spec])
    monkeypatch.setattr(pool._limits, "options", replace(pool._limits.options, deadline_s=0.05))
    with pytest.raises(BackendBusy, match="the backend echo has 1 processes; its limit is 1") as caught:
        await pool.lease(spec, NO_LIMITS)
    assert limit_of(caught.value) == ("max_processes", "backend", 1, 1)
    assert caught.value.facts == {"limit": "max_processes", "limit_of": "backend", "allowed": 1, "used": 1}
    with pytest.raises(BackendBusy, match="the tenant acme has 1 processes; its limit is 1") as caught:
        await pool.lease(spec, Limits(processes=1))
    assert limit_of(caught.value) == ("processes", "tenant", 1, 1)
    assert "PATCH /api/v1/tenants/acme" in caught.value.reached.raised_by


async def test_a_cancelled_caller_leaks_nothing_at_any_moment(make_pool, running):
    pool = await make_pool()
    spec, kept = spec_of("echo"), []
    await lease_all(pool, [spec])
    for number in range(30):
        with anyio.move_on_after(number * 0.0003):
            kept.append(await pool.lease(spec, NO_LIMITS))
    await eventually(lambda: total(pool, "stopping") == total(pool, "starting") == total(pool, "warm") == 0)
    assert total(pool, "waiting") == 0
    assert total(pool, "leased") == len(kept) + 1 == len(running.supervisor.processes)


async def test_a_process_handed_over_at_the_moment_of_cancellation_is_released(make_pool, monkeypatch):
    pool = await make_pool(max_processes=1)
    spec, serve = spec_of("echo"), pool._serve
    (lease,) = await lease_all(pool, [spec])
    caller = asyncio.create_task(pool.lease(spec, NO_LIMITS))
    await eventually(lambda: total(pool, "waiting") == 1)
    (waiter,) = pool._waiting

    def serve_and_cancel(waiter):
        serve(waiter)
        caller.cancel()  # between the hand-over and the caller's next step

    monkeypatch.setattr(pool, "_serve", serve_and_cancel)
    lease.release("done")
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert waiter.lease.result().connection.is_stopping()
    await eventually(lambda: total(pool, "stopping") == 0)


async def test_the_place_of_a_process_that_died_is_free_again(make_pool):
    pool = await make_pool(max_processes=1)
    spec = spec_of("echo")
    for _ in range(3):
        with anyio.fail_after(20):
            (lease,) = await lease_all(pool, [spec])
        os.kill(lease.connection.pid, signal.SIGKILL)
        await lease.connection.wait_gone()
        lease.release("backend_exited")
    assert total(pool, "leased") == 0


# --- warm processes


async def test_a_warm_process_is_handed_out_without_waiting(make_pool, running):
    pool = await make_pool()
    spec = spec_of("echo", warm=3)
    await fill(pool, spec)
    coroutine = pool.lease(spec, NO_LIMITS)
    with pytest.raises(StopIteration) as finished:  # it never suspends
        coroutine.send(None)
    assert finished.value.value.connection.state is ProcessState.LEASED
    assert total(pool, "warm") == 2
    assert running.value("trunkline_warm_leases_total", result="hit") == 1
    assert running.value("trunkline_warm_leases_total", result="miss") == 0


async def test_the_first_filling_is_quick_and_refilling_waits_for_quiet(make_pool):
    pool = await make_pool()
    spec = spec_of("echo", warm=5)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("REFILL_QUIET_S", "REFILL_SPACING_S", "REFILL_WITHIN_S"):
            patch.setattr(plan, name, 600.0)  # the first filling waits for none of them
        await fill(pool, spec)
    leased_at = time.monotonic()
    await lease_all(pool, [spec] * 3)
    await eventually(lambda: total(pool, "warm") >= 3)
    first_after = time.monotonic() - leased_at
    await eventually(lambda: total(pool, "warm") == 5)
    assert first_after >= 0.19
    assert time.monotonic() - leased_at >= 0.58


@pytest.fixture
def long_within(monkeypatch):
    """Longer than a busy machine stands still: the test's clock is the real one, and what the test adds."""
    monkeypatch.setattr(plan, "REFILL_WITHIN_S", 120.0)


@pytest.mark.usefixtures("long_within")
async def test_a_busy_node_refills_when_it_has_time(make_pool, clock):
    is_busy = True
    pool = await make_pool(clock=clock, is_busy=lambda: is_busy)
    spec = spec_of("echo", warm=3)
    await fill(pool, spec)  # the first time it does not wait
    await lease_all(pool, [spec] * 3)
    clock.ahead += plan.REFILL_WITHIN_S / 2
    pool._carry_out_plan()
    assert (total(pool, "warm"), total(pool, "starting")) == (0, 0)
    is_busy = False
    await eventually(lambda: total(pool, "warm") == 3)


@pytest.mark.usefixtures("long_within")
async def test_a_node_that_stays_busy_refills_one_at_a_time_each_in_time(make_pool, clock):
    pool = await make_pool(clock=clock, is_busy=lambda: True)
    spec = spec_of("echo", warm=3)
    await fill(pool, spec)
    await lease_all(pool, [spec] * 3)
    for number in (1, 2, 3):
        clock.ahead += plan.REFILL_WITHIN_S
        pool._carry_out_plan()
        assert total(pool, "starting") == 1
        await eventually(partial(has_warm, pool, number))
        pool._carry_out_plan()
        assert total(pool, "starting") == 0


async def test_callers_that_never_pause_do_not_keep_the_pool_empty(make_pool, clock):
    pool = await make_pool(clock=clock)
    spec = spec_of("echo", warm=2)
    await fill(pool, spec)
    started = pool._inventory.stocks[spec.key]
    for _ in range(2):
        await lease_all(pool, [spec])
        clock.ahead += plan.REFILL_WITHIN_S - plan.REFILL_QUIET_S
        started.handed_out(clock())  # somebody came a moment ago
    pool._carry_out_plan()
    assert total(pool, "starting") == 1


async def test_a_lease_from_an_empty_stock_is_a_miss_and_does_not_wait_for_the_refill(make_pool, running):
    pool = await make_pool()
    spec = spec_of("echo", warm=1)
    await fill(pool, spec)
    await lease_all(pool, [spec, spec])
    assert running.value("trunkline_warm_leases_total", result="miss") == 1
    await eventually(lambda: total(pool, "warm") == 1)


async def test_a_new_version_replaces_the_warm_processes_but_not_the_leased(make_pool):
    pool = await make_pool()
    old, new = spec_of("echo", warm=2, version=1), spec_of("echo", warm=2, version=2)
    await fill(pool, old)
    (lease,) = await lease_all(pool, [old])
    pool.configure(new)
    assert total(pool, "warm") == 0
    await eventually(lambda: total(pool, "warm") == 2)
    (other,) = await lease_all(pool, [old])  # a caller with the old spec in hand gets the new version
    assert (lease.connection.spec.version, other.connection.spec.version) == (1, 2)
    assert lease.connection.state is ProcessState.LEASED


async def test_a_lease_with_a_newer_spec_tells_the_pool_of_it(make_pool):
    pool = await make_pool()
    await fill(pool, spec_of("echo", warm=1, version=1))
    (lease,) = await lease_all(pool, [spec_of("echo", warm=1, version=2)])
    assert lease.connection.spec.version == 2


async def test_a_namesake_of_one_that_was_removed_gets_none_of_its_processes(make_pool):
    """Versions begin anew: a session of a new tenant got a process with the environment of the old one's backend, until
    the node had heard of the removal."""
    pool = await make_pool()
    old, new = (spec_of("echo", warm=1, env={"X": str(made)}, made=made) for made in (1, 2))
    await fill(pool, old)
    (lease,) = await lease_all(pool, [new])
    assert lease.connection.spec.env == {"X": "2"}
    (late,) = await lease_all(pool, [old])  # read just before the removal
    assert late.connection.spec.env == {"X": "2"}


async def test_a_disabled_backend_keeps_no_warm_processes(make_pool):
    pool = await make_pool()
    await fill(pool, spec_of("echo", warm=2))
    pool.configure(spec_of("echo", warm=2, enabled=False, version=2))
    await eventually(lambda: total(pool, "stopping") == 0)
    assert total(pool, "warm") == 0


async def test_a_forgotten_backend_stops_its_warm_processes_and_refuses_who_waits(make_pool, running):
    pool = await make_pool()
    spec = spec_of("echo", warm=1, max_processes=2)
    await fill(pool, spec)
    leases = await lease_all(pool, [spec, spec])

    async def wait_in_vain():
        with pytest.raises(BackendNotFound):
            await pool.lease(spec, NO_LIMITS)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_in_vain)
        await eventually(lambda: total(pool, "waiting") == 1)
        pool.forget(spec.key)
    pool.forget(spec.key)
    assert total(pool, "leased") == 2
    for lease in leases:
        lease.release("done")
    await eventually(lambda: not running.supervisor.processes)
    assert pool.snapshot() == {}


async def test_warm_processes_that_are_evicted_or_stopped_are_not_early_deaths(make_pool, running):
    pool = await make_pool()
    for version in range(1, 8):
        await fill(pool, spec_of("echo", warm=1, version=version))
    assert running.value("trunkline_breaker_open") == 0


async def test_without_descriptors_for_a_process_callers_wait_until_there_are_some(make_pool):
    left = [1]
    pool = await make_pool(room=lambda alive, starting, used: left[0] - starting)
    first = await pool.lease(spec_of("echo"), NO_LIMITS)
    left[0] = 0
    async with anyio.create_task_group() as tasks:
        done: list[Any] = []
        await start_waiting(tasks, pool, spec_of("echo"), done, "second")
        assert total(pool, "leased") == 1
        left[0] = 1  # nobody tells the pool
    assert [name for name, _ in done] == ["second"]
    first.release("done")


async def test_who_waited_in_vain_hears_that_descriptors_are_short(make_pool):
    pool = await make_pool(room=lambda alive, starting, used: 0, deadline_s=0.05)
    with pytest.raises(BackendBusy, match="few file descriptors left"):
        await pool.lease(spec_of("echo"), NO_LIMITS)
