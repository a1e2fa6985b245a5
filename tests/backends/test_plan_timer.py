"""PlanTimer: one timer, for the earliest."""

import time
from functools import partial

import anyio
import pytest

from app.backends._warm_pool import PlanTimer

pytestmark = pytest.mark.anyio


def slow_clock() -> float:
    """As on a busy machine, where the loop's time goes on between two looks at it."""
    time.sleep(0.005)
    return time.monotonic()


@pytest.mark.parametrize("clock", [time.monotonic, slow_clock])
async def test_a_plan_that_is_due_at_once_is_made_once_whatever_is_asked_for_meanwhile(clock) -> None:
    plans = list[float]()
    timer = PlanTimer(lambda: plans.append(time.monotonic()), clock)
    now = time.monotonic()
    timer.at(now)
    timer.at(now)
    timer.at(now + 60)
    with anyio.fail_after(20):
        while not plans:
            await anyio.sleep(0.002)
    await anyio.sleep(0.02)  # calm: no second one is to come
    assert len(plans) == 1
    timer.close()


async def test_the_earliest_counts_and_a_later_one_is_for_the_next_plan_to_ask_for() -> None:
    planned = anyio.Event()
    timer = PlanTimer(planned.set, time.monotonic)
    timer.at(time.monotonic() + 60)
    timer.at(time.monotonic() + 0.01)
    with anyio.fail_after(20):
        await planned.wait()
    timer.close()


async def test_nothing_is_planned_once_it_is_closed() -> None:
    plans = list[int]()
    timer = PlanTimer(partial(plans.append, 1), time.monotonic)
    timer.at(time.monotonic())
    timer.soon()
    timer.close()
    await anyio.sleep(0.02)
    assert not plans
