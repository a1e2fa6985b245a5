"""The pool's breaker: backends whose processes die early are not started again and again."""

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial

import anyio
import pytest

from app.backends._breaker import OPENING_DEATHS, Breaker
from app.errors import BackendExited, BackendUnavailable
from tests.backends.rig import NO_LIMITS, lease_all
from tests.processes.rig import Listener, eventually, spec_of


async def crash(pool, spec, *, at_our_question=False):
    """One session whose backend dies before it has answered."""
    lease = await pool.lease(spec, NO_LIMITS)
    if at_our_question:
        lease.probed()
    listener = Listener()
    lease.connection.attach(listener)
    lease.connection.send(b"{}")
    await listener.exit()
    lease.release("backend_exited")


@pytest.fixture
def quick_delays(monkeypatch):
    monkeypatch.setattr("app.backends._breaker.FIRST_DELAY_S", 0.005)


async def fail_five_times(fail, monkeypatch):
    """The first four delays are short; the last one is longer than a busy machine stands still."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.backends._breaker.FIRST_DELAY_S", 0.005)
        for _ in range(4):
            await fail()
    monkeypatch.setattr("app.backends._breaker.FIRST_DELAY_S", 1.0)
    await fail()


async def test_after_five_early_deaths_callers_are_refused_at_once_with_last_lines(make_pool, running, monkeypatch):
    pool, spec = await make_pool(), spec_of("crash_in_handshake")
    await fail_five_times(partial(crash, pool, spec), monkeypatch)
    with pytest.raises(BackendUnavailable) as caught:
        pool.lease(spec, NO_LIMITS).send(None)  # it never suspends
    assert caught.value.stderr == ("no idea what to do",)
    assert 0 < (caught.value.retry_after_s or 0) <= 16
    assert running.value("trunkline_breaker_open") == 1
    assert pool.snapshot()[spec.key].breaker_open


async def test_a_process_that_ends_at_our_own_question_counts_for_nothing(make_pool, running):
    pool, spec = await make_pool(), spec_of("crash_in_handshake")
    for _ in range(OPENING_DEATHS + 1):
        await crash(pool, spec, at_our_question=True)
    assert pool.snapshot()[spec.key].retry_after_s == 0
    assert running.value("trunkline_breaker_open") == 0


async def test_a_trial_that_succeeds_closes_the_breaker(make_pool, running, quick_delays):
    pool, spec = await make_pool(), spec_of("crash_in_handshake")
    for _ in range(5):
        await crash(pool, spec)
    await eventually(lambda: pool.snapshot()[spec.key].retry_after_s == 0)
    (trial,) = [await pool.lease(spec, NO_LIMITS)]
    with pytest.raises(BackendUnavailable):  # one at a time
        await pool.lease(spec, NO_LIMITS)
    trial.handshake_succeeded()
    await lease_all(pool, [spec] * 3)
    assert running.value("trunkline_breaker_open") == 0


async def test_a_change_of_the_backend_closes_the_breaker(make_pool, running, quick_delays):
    pool = await make_pool()
    for _ in range(5):
        await crash(pool, spec_of("crash_in_handshake"))
    await lease_all(pool, [spec_of("echo", name="crash-in-handshake", version=2)])
    assert running.value("trunkline_breaker_open") == 0


async def test_a_burst_in_front_of_a_broken_backend_starts_few_processes(make_pool, running):
    pool, spec, refused = await make_pool(), spec_of("crash_in_handshake"), []

    async def caller():
        try:
            await crash(pool, spec)
        except BackendUnavailable:
            refused.append(1)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(caller)
    assert running.value("trunkline_process_spawns_total", result="started") <= 12
    assert len(refused) >= 38


async def test_commands_that_cannot_be_started_open_the_breaker_too(make_pool, monkeypatch):
    pool, spec = await make_pool(), spec_of("echo", command="no-such-command")

    async def fail():
        with pytest.raises(BackendExited):
            await pool.lease(spec, NO_LIMITS)

    await fail_five_times(fail, monkeypatch)
    with pytest.raises(BackendUnavailable) as caught:
        await pool.lease(spec, NO_LIMITS)
    assert caught.value.stderr == ("No such file or directory: 'no-such-command'",)


async def test_warm_processes_that_die_open_the_breaker_and_are_not_restarted_at_once(make_pool, running, monkeypatch):
    monkeypatch.setattr("app.backends._breaker.FIRST_DELAY_S", 0.0)
    died_early = Breaker.died_early

    def last_one_for_long(breaker, now):
        if breaker._in_a_row == OPENING_DEATHS - 1:  # for longer than a busy machine stands still
            monkeypatch.setattr("app.backends._breaker.FIRST_DELAY_S", 1.0)
        return died_early(breaker, now)

    monkeypatch.setattr(Breaker, "died_early", last_one_for_long)
    pool = await make_pool()
    pool.configure(spec_of("crash_at_start", warm=1))
    await eventually(lambda: running.value("trunkline_breaker_open") == 1)
    assert running.value("trunkline_process_spawns_total", result="started") == 5


async def test_a_hundred_kills_of_working_sessions_do_not_open_the_breaker(make_pool, running):
    pool, spec = await make_pool(), spec_of("echo")
    await lease_all(pool, [spec])

    async def killed_in_mid_call():
        (lease,) = await lease_all(pool, [spec])
        os.kill(lease.connection.pid, signal.SIGKILL)
        await lease.connection.wait_gone()
        lease.release("backend_exited")

    for _ in range(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(killed_in_mid_call)
    assert running.value("trunkline_process_exits_total", reason="signaled") == 100
    assert running.value("trunkline_breaker_open") == 0
    await lease_all(pool, [spec])


async def test_whoever_waits_hears_of_an_unexpected_error_and_the_breaker_counts_it(running, make_pool, monkeypatch):
    """Before, it was tried again without a pause until the caller had waited for as long as it may."""
    pool, spec, tries = await make_pool(), spec_of("echo"), []

    async def spawn(*_):
        tries.append(1)
        raise RuntimeError("a bug")

    monkeypatch.setattr(running.supervisor, "spawn", spawn)

    async def fail():
        with pytest.raises(BackendExited, match="an unexpected error of the gateway"):
            await pool.lease(spec, NO_LIMITS)

    await fail_five_times(fail, monkeypatch)
    with pytest.raises(BackendUnavailable):
        await pool.lease(spec, NO_LIMITS)
    assert len(tries) == OPENING_DEATHS


async def test_a_slow_crash_loop_opens_the_breaker_and_nobody_waits_for_what_will_not_come(make_pool, running, clock):
    """Its deaths are so far apart that no minute has five of them."""
    pool, spec = await make_pool(clock=clock), spec_of("crash_in_handshake")
    for _ in range(5):
        await crash(pool, spec)
        clock.ahead += 40
    assert running.value("trunkline_breaker_open") == 1
    await crash(pool, spec)
    for _ in range(8):
        with pytest.raises(
            BackendUnavailable, match=r"the last time with: exit status 3; it is started again in \d+ s"
        ):
            pool.lease(spec, NO_LIMITS).send(None)  # it never suspends


async def test_who_would_wait_for_longer_than_he_may_is_refused_at_once(make_pool, monkeypatch):
    monkeypatch.setattr("app.backends._breaker.FIRST_DELAY_S", 20.0)
    pool, spec = await make_pool(deadline_s=10.0), spec_of("crash_in_handshake")
    await crash(pool, spec)
    with pytest.raises(BackendUnavailable, match="it is started again in 20 s") as caught:
        pool.lease(spec, NO_LIMITS).send(None)
    assert 10 < (caught.value.retry_after_s or 0) <= 20


async def test_who_waits_is_refused_when_the_next_start_gets_later_than_he_may_wait(make_pool, clock):
    pool, spec = await make_pool(clock=clock, deadline_s=100.0), spec_of("crash_in_handshake")
    await crash(pool, spec)
    clock.ahead += 1
    trial = await pool.lease(spec, NO_LIMITS)
    free = asyncio.ensure_future(pool.lease(spec, NO_LIMITS))
    await eventually(lambda: pool.waiting_of_node()[0])
    clock.ahead += 99.9
    trial.connection.send(b"{}")
    with pytest.raises(BackendUnavailable, match="it is started again in 1 s"):
        await free
    trial.release("backend_exited")


async def test_who_has_waited_for_a_trial_in_vain_is_told_what_it_is_about(make_pool, clock, monkeypatch):
    pool, spec = await make_pool(clock=clock), spec_of("crash_in_handshake")
    await crash(pool, spec)
    clock.ahead += 1
    trial = await pool.lease(spec, NO_LIMITS)
    monkeypatch.setattr(pool._limits, "options", replace(pool._limits.options, deadline_s=0.1))
    with pytest.raises(BackendUnavailable, match="it is being tried again"):
        await pool.lease(spec, NO_LIMITS)
    trial.release("done")
