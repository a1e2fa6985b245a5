"""The pool and processes of shared backends: each is prepared before it counts as warm."""

import anyio
import pytest

from app.errors import BackendExited, InvalidResponse
from tests.backends.rig import NO_LIMITS, total
from tests.processes.rig import eventually, spec_of


def shared(server: str, **fields):
    return spec_of(server, isolation="shared", **fields)


async def test_a_shared_process_is_prepared_before_it_is_handed_out(make_pool):
    may_go = anyio.Event()

    async def prepare(process):
        await may_go.wait()
        return f"prepared {process.id}"

    pool = await make_pool(prepare=prepare)
    spec = shared("echo", warm=1)
    pool.configure(spec)
    await eventually(lambda: total(pool, "starting") == 1)
    may_go.set()
    lease = await pool.lease(spec, NO_LIMITS)
    assert lease.prepared == f"prepared {lease.connection.id}"
    assert lease.is_current
    pool.restart(spec.key)
    assert not lease.is_current
    own = await pool.lease(spec_of("echo", name="own"), NO_LIMITS)
    assert own.prepared is None


async def test_a_process_that_cannot_be_prepared_is_stopped_and_its_caller_told(make_pool, running):
    async def refuse(process):
        raise InvalidResponse("no")

    pool = await make_pool(prepare=refuse)
    with pytest.raises(InvalidResponse):
        await pool.lease(shared("echo"), NO_LIMITS)
    await eventually(lambda: not running.supervisor.processes)
    assert pool.snapshot()["acme", "echo"].starting == 0


async def test_a_process_that_dies_while_it_is_prepared_counts_as_one_early_death(make_pool):
    async def wait_for_its_end(process):
        await process.wait_gone()
        raise BackendExited(started=False)

    pool = await make_pool(prepare=wait_for_its_end)
    spec = shared("crash_at_start")
    for _ in range(2):
        with pytest.raises(BackendExited):
            await pool.lease(spec, NO_LIMITS)
    breaker = pool._inventory.stocks[spec.key].breaker
    assert (breaker.is_open, breaker._in_a_row) == (False, 2)


async def test_whoever_waits_hears_of_an_unexpected_error_in_preparing(make_pool, running):
    """Before, the next process was started for the caller, and the next, until the wait was over."""

    async def fail(process):
        raise RuntimeError("a bug")

    pool = await make_pool(prepare=fail)
    with pytest.raises(BackendExited, match="an unexpected error of the gateway"):
        await pool.lease(shared("echo"), NO_LIMITS)
    await eventually(lambda: not running.supervisor.processes)
