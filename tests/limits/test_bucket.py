"""TokenBucket: arithmetic with a clock of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.limits.bucket import MAX_DEBT_S, TokenBucket


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(10.0, 3, now=0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(0.0) == pytest.approx(0.1)
    assert bucket.take(0.1) == 0.0
    assert bucket.take(0.1) > 0


def test_a_refusal_costs_nothing() -> None:
    bucket = TokenBucket(1.0, 1, now=0.0)
    bucket.take(0.0)
    for _ in range(100):
        assert bucket.take(0.5) == pytest.approx(0.5)
    assert bucket.take(1.0) == 0.0


def test_it_never_holds_more_than_the_burst() -> None:
    bucket = TokenBucket(1000.0, 2, now=0.0)
    assert [bucket.take(1e6) for _ in range(3)][:2] == [0.0, 0.0]
    assert bucket.take(1e6) > 0


def test_smaller_limits_act_at_once() -> None:
    bucket = TokenBucket(100.0, 100, now=0.0)
    bucket.configure(1.0, 1)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0) == pytest.approx(1.0)


@given(st.floats(0.1, 1000), st.integers(1, 50), st.lists(st.floats(0, 0.5), max_size=60))
def test_it_never_lets_more_through_than_burst_and_rate_allow(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, now, passed = TokenBucket(rate, burst, now=0.0), 0.0, 0
    for gap in gaps:
        now += gap
        passed += bucket.take(now) == 0.0
    assert passed <= burst + rate * now + 1e-6


def test_what_is_spent_is_told_once():
    bucket = TokenBucket(10.0, 3, now=0.0)
    for _ in range(5):
        bucket.take(0.0)
    assert [bucket.tell(), bucket.tell()] == [3, 0]


def test_an_adopted_level_holds_less_what_was_spent_since():
    bucket = TokenBucket(1.0, 10, now=0.0)
    bucket.tell()
    bucket.take(0.0)
    bucket.adopt(3.0, 0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, 1.0]


def test_a_debt_is_waited_out():
    bucket = TokenBucket(10.0, 10, now=0.0)
    bucket.adopt(-4.0, 0.0)
    assert bucket.take(0.0) == pytest.approx(0.5)
    assert bucket.take(0.51) == 0.0


def test_an_adopted_level_is_neither_above_the_burst_nor_far_below_nothing():
    bucket = TokenBucket(10.0, 5, now=0.0)
    bucket.adopt(1e9, 0.0)
    assert [bucket.take(0.0) for _ in range(6)][-1] > 0
    bucket.adopt(-1e9, 0.0)
    assert bucket.take(0.0) < 2 * MAX_DEBT_S


def test_it_is_full_when_a_new_one_would_be_no_different():
    bucket = TokenBucket(10.0, 5, now=0.0)
    assert bucket.is_full(0.0)
    bucket.take(0.0)
    assert not bucket.is_full(0.0)
    assert bucket.is_full(0.11)
