"""RetryAfter: refused clients come back when there is likely to be room, and not all at once."""

from collections import Counter

import pytest

from app.limits.overload import FIRST_RATE, LEAST_S, MOST_S, RetryAfter


def test_clients_come_back_at_the_rate_at_which_sessions_were_opened() -> None:
    retry_after = RetryAfter()
    for _ in range(100):  # a hundred seconds with fifty sessions each
        for _ in range(50):
            retry_after.session_opened()
        retry_after.measure(1.0)
    assert retry_after.rate == pytest.approx(50, rel=0.01)
    waits = [retry_after.next_s(1000.0) for _ in range(500)]
    per_second = Counter(int(wait) for wait in waits)
    assert waits[0] >= LEAST_S
    assert max(waits) == pytest.approx(LEAST_S + 10, rel=0.02)
    assert all(45 <= per_second[second] <= 55 for second in range(2, 10))


def test_an_interval_in_which_everybody_was_refused_does_not_lower_the_rate() -> None:
    retry_after = RetryAfter()
    for _ in range(50):
        retry_after.measure(0.5)
    assert retry_after.rate == FIRST_RATE


def test_times_move_on_with_the_clock() -> None:
    retry_after = RetryAfter()
    waits = [retry_after.next_s(0.0) for _ in range(int(FIRST_RATE) * 10)]
    assert waits[-1] == pytest.approx(LEAST_S + 10, rel=0.02)
    assert retry_after.next_s(9.0) == pytest.approx(LEAST_S + 1, rel=0.1)
    assert retry_after.next_s(100.0) == pytest.approx(LEAST_S, rel=0.1)


def test_clients_that_would_wait_too_long_are_spread_at_random() -> None:
    retry_after = RetryAfter()
    waits = [retry_after.next_s(0.0) for _ in range(5000)][1000:]
    assert all(MOST_S / 2 <= wait <= MOST_S for wait in waits)
    assert len({int(wait) for wait in waits}) >= MOST_S / 2 - 1
