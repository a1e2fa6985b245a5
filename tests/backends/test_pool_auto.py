"""`warm: auto`: the pool follows the arrivals, with real processes and a clock of the test's own."""

import anyio
import pytest

from app.backends import _warm_estimate as estimate
from app.backends._warm_estimate import LOWER_EVERY_S, QUIET_S
from app.backends._warm_pool import MEASURE_EVERY_S
from app.errors import GatewayError
from tests.backends.rig import NO_LIMITS, lease_all, total
from tests.processes.rig import Listener, eventually, spec_of

AUTO = spec_of("echo", warm="auto")


def why(pool) -> str:
    return pool.snapshot()[AUTO.key].warm_why


async def test_it_begins_with_one_and_has_as_many_as_come_at_once(make_pool, running, clock):
    pool = await make_pool(clock=clock)
    pool.configure(AUTO)
    await eventually(lambda: total(pool, "warm") == 1)
    assert "nothing has been asked" in why(pool)
    assert running.value("trunkline_warm_target", why="floor") == 1
    leases = await lease_all(pool, [AUTO] * 3)
    assert total(pool, "warm_target") == 3
    assert running.value("trunkline_warm_target", why="arrivals") == 3
    await eventually(lambda: total(pool, "warm") == 3)
    for lease in leases:
        lease.release("test")
    before = running.value("trunkline_warm_leases_total", result="hit")
    await lease_all(pool, [AUTO] * 3)
    assert running.value("trunkline_warm_leases_total", result="hit") == before + 3
    assert "arrivals" in why(pool)


async def test_when_nobody_comes_for_an_hour_there_is_none(make_pool, clock):
    pool = await make_pool(clock=clock)
    await lease_all(pool, [AUTO] * 2)
    await eventually(lambda: total(pool, "warm") == 2)
    clock.ahead += QUIET_S + 2
    pool._planning.soon()  # its timer runs by the loop's clock
    await eventually(lambda: total(pool, "warm") == 0)
    assert "nobody has asked" in why(pool)


async def test_it_looks_again_by_itself_whatever_is_planned_before(make_pool, monkeypatch):
    pool = await make_pool()
    pool.configure(AUTO)
    await eventually(lambda: total(pool, "warm") == 1)
    monkeypatch.setattr(estimate, "QUIET_S", 1.0)
    (lease,) = await lease_all(pool, [AUTO])  # which plans a refill before the next look
    # A machine that stands still for a second does not come to the refill.
    await eventually(lambda: total(pool, "warm") == 1 or "nobody has asked" in why(pool))
    lease.release("test")
    await eventually(lambda: total(pool, "warm") == 0 and "nobody has asked" in why(pool))


async def test_it_shrinks_by_one_at_a_time(make_pool, clock):
    pool = await make_pool(clock=clock)
    await lease_all(pool, [AUTO] * 3)
    clock.ahead += 60
    for _ in range(400):
        clock.ahead += 5
        pool._sizing.arrived(pool._inventory.stocks[AUTO.key], clock())
    assert total(pool, "warm_target") < 3
    smaller = total(pool, "warm_target")
    clock.ahead += LOWER_EVERY_S
    pool._planning.soon()
    await eventually(lambda: total(pool, "warm_target") == max(1, smaller - 1))


async def test_the_memory_of_its_processes_caps_it(make_pool, running, clock):
    pool = await make_pool(clock=clock, warm_bytes=1)
    await lease_all(pool, [AUTO])
    stock = pool._inventory.stocks[AUTO.key]
    with anyio.fail_after(20):
        while not pool._inventory.resident_bytes_of(stock):
            await running.supervisor.meter.measure(running.supervisor.processes)
    clock.ahead += MEASURE_EVERY_S
    await lease_all(pool, [AUTO] * 4)
    assert total(pool, "warm_target") == 1
    assert running.value("trunkline_warm_target", why="memory") == 1
    assert "WARM_MEMORY_MB" in why(pool)


async def test_backends_share_the_memory_for_warm_processes_of_the_node(make_pool, running, clock):
    pool = await make_pool(clock=clock)
    first, second = AUTO, spec_of("echo", warm="auto", name="second")
    leases = await lease_all(pool, [first, second])
    for lease in leases:  # they are no forks of the spawner any more, which have its size
        listener = Listener()
        lease.connection.attach(listener)
        lease.connection.send(b"up")
        await listener.line()
    sizes = pool._inventory.resident_bytes_of
    with anyio.fail_after(20):
        before, now = [0], [1]
        while before != now or not all(now):  # one that has just been forked has the size of its parent
            before = now
            await anyio.sleep(0.1)
            await running.supervisor.meter.measure(running.supervisor.processes)
            now = [sizes(each) for each in pool._inventory.stocks.values()]
    pool._sizing._warm_bytes = 4.5 * max(map(sizes, pool._inventory.stocks.values()))
    clock.ahead += MEASURE_EVERY_S
    leases += await lease_all(pool, [first] * 3)
    targets = [pool.snapshot()[spec.key].warm_target for spec in (first, second)]
    clock.ahead += MEASURE_EVERY_S
    leases += await lease_all(pool, [second] * 5)
    assert targets == [3, 1]
    assert [pool.snapshot()[spec.key].warm_target for spec in (first, second)] == [3, 1]
    assert "WARM_MEMORY_MB" in pool.snapshot()[second.key].warm_why


async def test_who_gets_no_process_that_works_is_no_arrival(make_pool):
    pool = await make_pool()
    broken = spec_of("crash_in_handshake", warm="auto")
    for _ in range(2):
        lease = await pool.lease(broken, NO_LIMITS)
        lease.connection.send(b"{}")
        await lease.connection.wait_gone()
        lease.release("test")
    with pytest.raises(GatewayError):
        await pool.lease(spec_of("missing", warm="auto", command="/nowhere"), NO_LIMITS)
    assert [stock.demand.arrivals for stock in pool._inventory.stocks.values()] == [0, 0]


async def test_arrivals_count_by_the_time_at_which_they_came(make_pool, clock):
    """Two that come at once need two processes, also if the first has opened its session when the second has not."""
    pool = await make_pool(clock=clock)
    leases = [await pool.lease(AUTO, NO_LIMITS) for _ in range(2)]
    for lease in leases:
        clock.ahead += 30
        lease.handshake_succeeded()
    assert total(pool, "warm_target") == 2


async def test_no_more_than_the_backend_may_have(make_pool, clock):
    pool = await make_pool(clock=clock)
    small = spec_of("echo", warm="auto", max_processes=2)
    await lease_all(pool, [small] * 2)
    for _ in range(5):
        pool._sizing.arrived(pool._inventory.stocks[small.key], clock())
    assert total(pool, "warm_target") == 2
    assert "max_processes" in why(pool)


async def test_a_number_instead_and_back_begins_anew(make_pool, running, clock):
    pool = await make_pool(clock=clock)
    await lease_all(pool, [AUTO] * 4)
    pool.configure(spec_of("echo", warm=1, version=2))
    assert (total(pool, "warm_target"), why(pool)) == (1, "")
    pool.configure(spec_of("echo", warm="auto", version=3))
    assert (total(pool, "warm_target"), running.value("trunkline_warm_target", why="floor")) == (1, 1)
    pool.forget(AUTO.key)
    assert running.value("trunkline_warm_target", why="floor") == 0


async def test_starts_are_measured(make_pool, clock):
    pool = await make_pool(clock=clock)
    await lease_all(pool, [AUTO])
    demand = pool._inventory.stocks[AUTO.key].demand
    measured = demand.start_s
    assert 0 < measured != estimate.FIRST_START_S  # which was assumed
    await eventually(lambda: total(pool, "warm") == 1)
    lease = await pool.lease(AUTO, NO_LIMITS)
    lease.handshake_succeeded()
    assert lease.was_warm
    assert demand.start_s == measured
