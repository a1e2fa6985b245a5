"""Back-off and breaker, as arithmetic."""

import itertools

import pytest

from app.backends._breaker import MAX_DELAY_S, UNPROVEN_STARTS, Breaker


def allowance(breaker: Breaker, now: float, *, unproven: int = 0, warm: int = 0) -> int | None:
    return breaker.allowance(now, unproven=unproven, warm=warm) if breaker.limits_starts else None


def crash_loop(breaker: Breaker, until: float) -> list[float]:
    """Starts whenever it is allowed; each dies at once. Returns when."""
    now, starts = 0.0, []
    while now < until:
        if allowance(breaker, now):
            starts.append(now)
            breaker.died_early(now)
        now += 0.01
    return starts


def test_delays_double_up_to_the_maximum():
    starts = crash_loop(Breaker(lambda: 0.5), 200)
    gaps = [round(later - sooner, 1) for sooner, later in itertools.pairwise(starts)]
    assert gaps[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.75), (0.5, 1.0), (0.999999, 1.25)])
def test_delays_are_spread_by_a_quarter(chance, factor):
    breaker = Breaker(lambda: chance)
    breaker.died_early(100.0)
    assert breaker.retry_after_s(100.0) == pytest.approx(0.5 * factor, rel=1e-3)


def test_a_crash_loop_starts_at_most_twelve_processes_a_minute():
    starts = crash_loop(Breaker(lambda: 0.0), 600)
    assert max(sum(start <= other < start + 60 for other in starts) for start in starts) <= 12


@pytest.mark.parametrize("between_s", [0.0, 10.0, MAX_DELAY_S * 1.25, 86_400.0])
def test_the_fifth_early_death_in_a_row_opens_it_however_slow_the_loop_is(between_s):
    breaker = Breaker(lambda: 0.5)
    times = [number * between_s for number in range(6)]
    assert [breaker.died_early(now) for now in times[:4]] == [False] * 4
    assert not breaker.is_open
    assert breaker.died_early(times[4])
    assert breaker.is_open
    assert breaker.died_early(times[5]) is False  # it was open already


def test_what_has_worked_between_early_deaths_keeps_it_closed():
    breaker = Breaker(lambda: 0.5)
    for now in range(10):
        breaker.died_early(now)
        if now % 4 == 3:
            breaker.succeeded()
    assert not breaker.is_open


def test_after_the_delay_one_trial_is_let_through():
    breaker = Breaker(lambda: 0.5)
    for _ in range(5):
        breaker.died_early(0.0)
    assert allowance(breaker, 7.9) == 0
    assert allowance(breaker, 8.1) == 1
    assert allowance(breaker, 8.1, unproven=1) == 0
    assert allowance(breaker, 8.1, warm=1) == 0


def test_deaths_of_those_that_were_under_way_do_not_lengthen_the_delay_beyond_the_opening_one():
    breaker = Breaker(lambda: 0.5)
    for _ in range(100):
        breaker.died_early(0.0)
    assert breaker.retry_after_s(0.0) == pytest.approx(8.0)
    assert breaker.retry_after_s(0.0) < MAX_DELAY_S


def test_a_handshake_resets_everything():
    breaker = Breaker(lambda: 0.5)
    for now in range(5):
        breaker.died_early(now)
    assert breaker.succeeded()
    assert not breaker.is_open
    assert allowance(breaker, 5.0) is None
    assert not breaker.succeeded()
    breaker.died_early(6.0)
    assert breaker.retry_after_s(6.0) == pytest.approx(0.5)
    assert not breaker.is_open


def test_an_unproven_backend_gets_a_few_starts_at_once():
    breaker = Breaker(lambda: 0.5)
    assert allowance(breaker, 0.0) == UNPROVEN_STARTS
    assert allowance(breaker, 0.0, unproven=UNPROVEN_STARTS) == 0
    breaker.succeeded()
    assert allowance(breaker, 0.0, unproven=100) is None
