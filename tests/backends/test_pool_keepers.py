"""Backends that keep a home for each principal: nobody gets a process with another's home. Real processes."""

from functools import partial

import anyio
import anyio.lowlevel

from app.processes.process import ProcessState
from tests.backends.rig import NO_LIMITS, total
from tests.processes.rig import eventually, spec_of

ANN, BOB = ("acme", "key", "ann"), ("acme", "key", "bob")
keeping = partial(spec_of, "echo", state="keep")


async def test_each_principal_gets_a_process_with_its_own_home(make_pool):
    pool = await make_pool()
    served = {}

    async def caller(name, identity):
        served[name] = await pool.lease(keeping(), NO_LIMITS, identity)
        served[name].handshake_succeeded()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(caller, f"ann{number}", ANN)
            tasks.start_soon(caller, f"bob{number}", BOB)
    assert {name: lease.connection.spec.keeper for name, lease in served.items()} == {
        name: ANN if name.startswith("ann") else BOB for name in served
    }


async def test_no_process_is_warm_for_nobody(make_pool):
    pool = await make_pool()
    pool.configure(keeping(warm=2))
    await anyio.wait_all_tasks_blocked()
    assert (total(pool, "warm"), total(pool, "starting")) == (0, 0)


async def test_what_was_started_for_a_caller_who_left_is_not_given_to_another(make_pool, running):
    pool = await make_pool()
    with anyio.CancelScope() as gone:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.lease, keeping(), NO_LIMITS, ANN)
            with anyio.fail_after(10):
                while total(pool, "starting") == 0:  # each turn of the loop, since a start takes few of them
                    await anyio.lowlevel.checkpoint()
            gone.cancel()
    lease = await pool.lease(keeping(), NO_LIMITS, BOB)
    assert lease.connection.spec.keeper == BOB
    anns = [each for each in running.supervisor.processes if each.spec.keeper == ANN]
    assert all(each.state in (ProcessState.STOPPING, ProcessState.GONE, ProcessState.WARM) for each in anns)


async def test_it_makes_no_difference_to_other_backends(make_pool):
    pool = await make_pool()
    pool.configure(spec_of("echo", warm=1))
    await eventually(lambda: total(pool, "warm") == 1)
    lease = await pool.lease(spec_of("echo", warm=1), NO_LIMITS, ANN)
    assert lease.was_warm
    assert lease.connection.spec.keeper is None
