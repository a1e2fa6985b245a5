"""WaitingLine: who is refused comes back at a time at which there is likely to be room, and not with all others."""

from collections import Counter

import pytest

from app.limits.waiting_line import FIRST_PACE, LEAST_S, MOST_S, WaitingLine


def test_places_follow_each_other_at_the_pace_of_the_last_sessions() -> None:
    line = WaitingLine()
    for _ in range(100):  # a hundred seconds with fifty sessions each
        for _ in range(50):
            line.opened()
        line.measure(1.0)
    assert line.pace == pytest.approx(50, rel=0.01)
    waits = [line.place(1000.0) for _ in range(500)]
    per_second = Counter(int(wait) for wait in waits)
    assert waits[0] >= LEAST_S
    assert max(waits) == pytest.approx(LEAST_S + 10, rel=0.02)
    assert all(45 <= per_second[second] <= 55 for second in range(2, 10))


def test_a_time_in_which_everybody_was_refused_does_not_slow_the_pace() -> None:
    line = WaitingLine()
    for _ in range(50):
        line.measure(0.5)
    assert line.pace == FIRST_PACE


def test_the_line_moves_on_with_time() -> None:
    line = WaitingLine()
    waits = [line.place(0.0) for _ in range(int(FIRST_PACE) * 10)]
    assert waits[-1] == pytest.approx(LEAST_S + 10, rel=0.02)
    assert line.place(9.0) == pytest.approx(LEAST_S + 1, rel=0.1)
    assert line.place(100.0) == pytest.approx(LEAST_S, rel=0.1)


def test_the_end_of_a_line_that_is_too_long_is_spread() -> None:
    line = WaitingLine()
    waits = [line.place(0.0) for _ in range(5000)][1000:]
    assert all(MOST_S / 2 <= wait <= MOST_S for wait in waits)
    assert len({int(wait) for wait in waits}) >= MOST_S / 2 - 1
