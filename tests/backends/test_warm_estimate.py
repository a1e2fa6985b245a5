"""WarmEstimate, as arithmetic."""

import math
from collections.abc import Iterable

import pytest

from app.backends._plan import REFILL_QUIET_S, REFILL_SPACING_S
from app.backends._warm_estimate import FIRST_START_S, LOWER_EVERY_S, MAX_START_S, MOST, QUIET_S, WHYS, WarmEstimate

REFILL_S = REFILL_SPACING_S + FIRST_START_S


def after(
    arrivals: Iterable[float], *, now: float | None = None, memory: float = math.inf, most: int = 100
) -> WarmEstimate:
    """An estimate after arrivals at these times, each of which was considered."""
    estimate, last = WarmEstimate(0.0), 0.0
    for last in arrivals:
        estimate.arrived(last)
        estimate.reconsider(last, fit_memory=memory, max_processes=most)
    estimate.reconsider(last if now is None else now, fit_memory=memory, max_processes=most)
    return estimate


def test_it_begins_with_one_and_gives_up_after_an_hour_without_anybody() -> None:
    estimate = after([])
    assert (estimate.target, estimate.why) == (1, "floor")
    assert estimate.look_again_at() <= QUIET_S + 1
    estimate.reconsider(QUIET_S + 1, fit_memory=math.inf, max_processes=10)
    assert (estimate.target, estimate.why) == (0, "quiet")


def test_arrivals_with_time_between_them_need_one() -> None:
    gap = REFILL_QUIET_S + REFILL_S
    estimate = after(number * gap for number in range(1, 200))
    assert (estimate.target, estimate.why) == (1, "arrivals")


@pytest.mark.parametrize("burst", [2, 5, 20])
def test_arrivals_at_once_need_one_each(burst: int) -> None:
    estimate = after(minute * 60.0 for minute in range(1, 30) for _ in range(burst))
    assert estimate.target == burst


def test_arrivals_faster_than_starts_need_what_is_missing_meanwhile() -> None:
    """Ten arrivals, 0.7 s apart: each leaves 0.5 s for a start of 1.2 s."""
    estimate = after(100 + number * 0.7 for number in range(10))
    assert estimate.target == math.ceil(10 - 9 * 0.5 / REFILL_S)


def test_who_is_told_of_late_is_counted_with_the_latest() -> None:
    assert after([100.0, 90.0, 80.0]).target == 3
    assert after([100.0, 90.0, 110.0]).arrivals == pytest.approx(3, abs=0.01)


def test_one_large_burst_among_hundreds_of_arrivals_is_not_paid_for() -> None:
    alone = [number * 5.0 for number in range(1, 500)]
    assert after(alone + [2600.0] * 4 + [2700 + number * 5.0 for number in range(1000)]).wanted(7700)[0] == 1


def test_old_arrivals_count_less() -> None:
    bursts = [hour * 3600.0 for hour in range(1, 3) for _ in range(10)]
    estimate = after(bursts + [10_000 + number * 60.0 for number in range(1000)])
    assert estimate.wanted(70_000)[0] == 1


def test_a_slow_start_needs_more() -> None:
    arrivals = [100 + number * 2.0 for number in range(50)]
    quick, slow = WarmEstimate(0.0), WarmEstimate(0.0)
    for _ in range(100):
        quick.started(0.1)
        slow.started(5.0)
    for each in (quick, slow):
        for at in arrivals:
            each.arrived(at)
    assert quick.wanted(200)[0] == 1
    assert slow.wanted(200)[0] > 20


def test_it_is_raised_at_once_and_lowered_by_one_at_a_time() -> None:
    estimate = after([100.0] * 4)
    assert estimate.target == 4
    calm = [200 + number * 10.0 for number in range(500)]
    for at in calm:
        estimate.arrived(at)
    assert estimate.wanted(calm[-1])[0] == 1
    now, targets = calm[-1], []
    for _ in range(4):
        estimate.reconsider(now, fit_memory=math.inf, max_processes=100)
        targets.append(estimate.target)
        estimate.reconsider(now + LOWER_EVERY_S - 1, fit_memory=math.inf, max_processes=100)
        assert estimate.target == targets[-1]
        assert estimate.target == 1 or estimate.look_again_at() <= now + LOWER_EVERY_S
        now += LOWER_EVERY_S
    assert targets == [3, 2, 1, 1]


def test_at_night_there_is_none() -> None:
    estimate = after([number * 10.0 for number in range(1, 1000)] + [20_000.0] * 5)
    assert estimate.target > 0
    estimate.reconsider(20_000 + QUIET_S + 1, fit_memory=math.inf, max_processes=100)
    assert (estimate.target, estimate.why) == (0, "quiet")
    estimate.arrived(60_000.0)
    estimate.reconsider(60_000.0, fit_memory=math.inf, max_processes=100)
    assert estimate.target >= 1


@pytest.mark.parametrize(
    ("memory", "most", "target", "why"),
    [(math.inf, 100, 8, "arrivals"), (3.9, 100, 3, "memory"), (0.4, 100, 1, "memory"), (5.0, 2, 2, "max_processes")],
)
def test_limits(memory: float, most: int, target: int, why: str) -> None:
    estimate = after([100.0] * 8, memory=memory, most=most)
    assert (estimate.target, estimate.why) == (target, why)


def test_no_number_grows_without_bound() -> None:
    estimate = after([100.0] * 1000)
    assert estimate.target == MOST
    assert len(estimate._weights) <= MOST
    for _ in range(1000):
        estimate.started(1e9)
    assert estimate.start_s <= MAX_START_S
    estimate.started(-5)
    assert estimate.start_s > 0


def test_it_says_why_in_words() -> None:
    words = set()
    for why in WHYS:
        estimate = after([100.0] * 8)
        estimate.why = why
        words.add(estimate.words())
    assert len(words) == len(WHYS)
