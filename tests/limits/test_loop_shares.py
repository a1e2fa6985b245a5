"""LoopShares: a tenant's share of the event loop's time."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import anyio
import pytest

from app.errors import RateLimited
from app.limits.loop_shares import (
    BURST_S,
    MAX_DEBT_S,
    MAX_REST_S,
    MAX_TENANTS,
    MAX_WAITING,
    PIECE_S,
    SHARE,
    LoopShares,
    LoopUses,
)
from app.protocol.search.work import Work
from app.telemetry.metrics import Metrics


class Clock:
    """Of the shares' own; what they wait for on the loop is real."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tenant_is_over_its_share_until_it_has_paid_for_it() -> None:
    uses = LoopUses()
    assert not uses.is_over("acme", 0.0)
    assert not uses.charge("acme", BURST_S, 0.0)
    assert uses.charge("acme", 0.02, 0.0)
    assert uses.is_over("acme", 0.02 / SHARE - 0.001)
    assert not uses.is_over("acme", 0.02 / SHARE + 0.001)
    assert not uses.is_over("globex", 0.0)


def test_a_long_piece_is_forgiven_in_a_second() -> None:
    uses = LoopUses()
    uses.charge("acme", 100.0, 0.0)
    assert uses.is_over("acme", 0.9)
    assert not uses.is_over("acme", (MAX_DEBT_S - BURST_S) / SHARE + 0.001)


def test_the_tenant_that_used_the_loop_longest_ago_is_forgotten() -> None:
    uses = LoopUses()
    for number in range(MAX_TENANTS):
        uses.charge(f"t{number}", 1.0, 0.0)
    uses.charge("t0", 1.0, 0.0)
    uses.charge("another", 1.0, 0.0)
    assert len(uses) == MAX_TENANTS
    assert uses.is_over("t0", 0.0)
    assert not uses.is_over("t1", 0.0)


async def test_a_turn_within_the_share_does_not_suspend() -> None:
    shares = LoopShares(clock=Clock())
    shares.charge("acme", BURST_S)
    shares.charge("globex", 1.0)
    with pytest.raises(StopIteration):
        shares.turn("acme").send(None)


@pytest.fixture
async def shares() -> AsyncIterator[LoopShares]:
    """One where two tenants are over their share, and the rest after their pieces is over."""
    clock = Clock()
    shares = LoopShares(clock=clock, used=clock)
    for tenant in ("acme", "globex"):
        shares.charge(tenant, MAX_DEBT_S)
    clock.now += 0.6
    yield shares
    assert not shares.waiting("acme")
    assert not shares.waiting("globex")


async def test_tenants_over_their_share_go_round(shares: LoopShares) -> None:
    order = list[str]()

    async def work(tenant: str, name: str) -> None:
        for number in range(2):
            await shares.turn(tenant)
            order.append(f"{name}{number}")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for tenant, name in (("acme", "a"), ("acme", "b"), ("acme", "c"), ("globex", "g")):
                tasks.start_soon(work, tenant, name)
    assert order == ["a0", "g0", "b0", "g1", "c0", "a1", "b1", "c1"]


async def test_others_have_the_loop_as_long_as_the_piece_took() -> None:
    shares, pieces = LoopShares(), list[tuple[float, float, float]]()
    shares.charge("acme", MAX_DEBT_S)

    async def work(seconds: float) -> None:
        await shares.turn("acme")
        with shares.measured("acme"):
            began, until = time.perf_counter(), time.thread_time() + seconds
            while time.thread_time() < until:
                pass  # the piece holds the loop
        pieces.append((seconds, began, time.perf_counter()))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for seconds in (0.004, 0.03, 0.01, 0.001):
                tasks.start_soon(work, seconds)
    assert len(pieces) == 4
    for (seconds, _, done), (_, after, _) in pairwise(pieces):
        assert after - done >= 0.9 * seconds


async def test_time_in_which_the_loop_has_no_processor_is_nobody_s() -> None:
    shares = LoopShares()

    async def work() -> None:
        with shares.measured("acme"):
            time.sleep(2 * BURST_S)
        time.sleep(2 * BURST_S)

    await shares.charged("acme", work())
    assert not shares.is_over("acme")


async def test_the_rest_after_a_piece_is_bounded() -> None:
    clock = Clock()
    shares = LoopShares(clock=clock, used=clock)
    for _ in range(3):
        shares.charge("acme", 100.0)
    clock.now += MAX_REST_S
    shares.charge("acme", 0.0)  # still over: only the rest has passed
    with anyio.fail_after(5):
        await shares.turn("acme")


async def test_work_is_done_in_pieces_with_room_for_others() -> None:
    clock = Clock()
    shares, seen = LoopShares(clock=clock, used=clock), list[int]()
    done = 0

    def work() -> Work[str]:
        nonlocal done
        for _ in range(20):
            clock.now += PIECE_S / 4
            done += 1
            yield
        return "result"

    async def bystander() -> None:
        while done < 20:
            seen.append(done)
            await asyncio.sleep(0)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bystander)
            assert await shares.in_pieces("acme", work()) == "result"
    assert max(after - before for before, after in pairwise([0, *seen, 20])) <= 5
    assert not shares.is_over("acme")
    shares.charge("acme", BURST_S - 20 * PIECE_S / 8)
    assert shares.is_over("acme")  # the pieces were charged


async def test_one_that_is_cancelled_leaves_its_place(shares: LoopShares) -> None:
    order = list[str]()

    async def work(name: str) -> None:
        await shares.turn("acme")
        order.append(name)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, "a")
            with anyio.CancelScope() as scope:
                tasks.start_soon(work, "b")
                await asyncio.sleep(0)
                scope.cancel()
                await work("cancelled")
            tasks.start_soon(work, "c")
    assert order == ["a", "b", "c"]


async def test_a_tenant_with_too_many_waiting_requests_is_refused(shares: LoopShares) -> None:
    admitted = 0

    async def request() -> None:
        nonlocal admitted
        await shares.enter("acme")
        admitted += 1

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_WAITING):
                tasks.start_soon(request)
            await asyncio.sleep(0)
            assert shares.waiting("acme") == MAX_WAITING
            with pytest.raises(RateLimited) as refused:
                await shares.enter("acme")
            tasks.start_soon(shares.turn, "acme")  # a reader is there once
    assert admitted == MAX_WAITING
    assert refused.value.limit == "loop_share"


async def test_waits_are_counted() -> None:
    metrics = Metrics("test", per_backend=1)
    shares = LoopShares(metrics)
    for tenant in ("acme", "globex"):
        shares.charge(tenant, MAX_DEBT_S)
        with anyio.fail_after(5):
            await shares.turn(tenant)
    assert metrics.loop_share_waits.labels("acme")._value.get() > 0
    assert metrics.loop_share_waits.labels("_OTHER")._value.get() > 0


async def test_what_was_charged_inside_is_not_charged_again() -> None:
    clock = Clock()
    shares, charged = LoopShares(clock=clock, used=clock), list[float]()
    charge = shares.charge

    def noted(tenant: str, seconds: float) -> None:
        charged.append(round(seconds, 6))
        charge(tenant, seconds)

    shares.charge = noted  # type: ignore[method-assign]

    async def work() -> str:
        clock.now += 0.001
        with shares.measured("acme"):
            clock.now += 0.02
        await asyncio.sleep(0)
        clock.now += 0.003
        return "done"

    assert await shares.charged("acme", work()) == "done"
    assert charged == [0.02, 0.001, 0.003]
