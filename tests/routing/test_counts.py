"""SessionCounts: what is said of counts, and when. Pure."""

from collections import Counter

import pytest

from app.routing.counts import SessionCounts
from app.routing.rotation import TURN_BEATS

T, P, Q = "tenant", "principal-p", "principal-q"


def counts() -> SessionCounts:
    made = SessionCounts()
    made.add("1", (T, P))
    made.add("2", (T, P))
    made.add("3", (T, Q))
    return made


def test_a_route_counts_once_under_each_of_its_names():
    mine = counts()
    mine.add("1", (T, P))
    mine.add("caller", ())
    mine.doubt_all()
    assert mine.to_say(10) == {T: 3, P: 2, Q: 1}
    mine.remove("1")
    mine.remove("1")
    mine.doubt_all()
    assert mine.to_say(10) == {T: 2, P: 1, Q: 1}


def test_all_are_said_in_turn_a_few_at_a_time():
    mine = counts()
    assert [mine.to_say(2) for _ in range(4)] == [{T: 3}, {P: 2}, {Q: 1}, {T: 3}]


def test_many_are_all_said_within_a_minute():
    mine, said = SessionCounts(), Counter[str]()
    for number in range(6_000):
        mine.add(str(number), (f"principal-{number}",))
    for _ in range(TURN_BEATS):
        said.update(mine.to_say(500))
    assert (len(said), said.total()) == (6_000, 6_000)


def test_doubtful_ones_come_first_even_when_there_is_nothing_left_of_them():
    mine = counts()
    mine.remove("3")
    mine.doubt((Q,))
    assert mine.has_doubts
    assert mine.to_say(1) == {Q: 0}
    assert not mine.has_doubts


def test_what_is_being_changed_is_not_said_meanwhile():
    mine = counts()
    mine.doubt_all()
    with mine.changing((T, P)):
        assert mine.to_say(10) == {Q: 1}
        assert not mine.has_doubts
    assert mine.has_doubts
    assert mine.to_say(2) == {T: 3, P: 2}


def test_a_change_that_failed_leaves_a_doubt():
    mine = counts()
    with pytest.raises(OSError, match="gone"), mine.changing((P,)):
        raise OSError("gone")
    assert mine.to_say(1) == {P: 2}


def test_what_changed_while_it_was_said_is_said_again():
    mine = counts()
    said = mine.to_say(10)
    mine.add("4", (T,))
    mine.doubt_changed(said)
    assert mine.to_say(1) == {T: 4}
