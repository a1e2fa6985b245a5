"""SessionCounts: what is said of counts, and when. Pure."""

from collections import Counter
from contextlib import suppress

import pytest

from app.cluster.routing._session_counts import TURN_BEATS, SessionCounts

T, P, Q = "tenant", "principal-p", "principal-q"


def counts() -> SessionCounts:
    made = SessionCounts()
    made.add("1", (T, P))
    made.add("2", (T, P))
    made.add("3", (T, Q))
    made.to_say(10)  # as a beat
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
    assert [mine.to_say(2) for _ in range(4)] == [{P: 2}, {Q: 1}, {T: 3}, {P: 2}]


def test_many_are_all_said_within_a_minute():
    mine, said = SessionCounts(), Counter[str]()
    for number in range(6_000):
        mine.add(str(number), (f"principal-{number}",))
    while mine.has_doubts:
        mine.to_say(500)
    for _ in range(TURN_BEATS):
        said.update(mine.to_say(500))
    assert (len(said), said.total()) == (6_000, 6_000)


def test_doubtful_ones_come_first_even_when_there_is_nothing_left_of_them():
    mine = counts()
    mine.remove("3")
    assert mine.has_doubts
    assert mine.to_say(2) == {T: 2, Q: 0}
    assert not mine.has_doubts


def test_what_is_being_changed_is_not_said_meanwhile():
    mine = counts()
    mine.doubt_all()
    with mine.changing((T, P)):
        assert mine.to_say(10) == {Q: 1}
        assert not mine.has_doubts
    assert mine.has_doubts
    assert mine.to_say(2) == {T: 3, P: 2}


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_change_the_number_is_said_whatever_became_of_it(fails: bool):
    """Redis may have counted it after it has heard a number that was right."""
    mine = counts()
    with suppress(OSError), mine.changing((P,)):
        if fails:
            raise OSError("gone")
    assert mine.has_doubts
    mine._rotation.next(mine._sessions, 3)  # so that nothing of it is said in turn
    assert mine.to_say(1) == {P: 2}
    assert not mine.has_doubts


def test_what_changed_while_it_was_said_is_said_again_and_nothing_else():
    mine = counts()
    mine.doubt_all()
    with mine.saying(mine.to_say(10)):
        mine.add("4", (T,))
        mine._unsure.clear()
    assert mine.to_say(1) == {T: 4}
    assert not mine.has_doubts


def test_numbers_that_redis_may_not_have_heard_are_said_again():
    mine = counts()
    mine.doubt_all()
    with suppress(OSError), mine.saying(mine.to_say(10)):
        raise OSError("gone")
    assert mine.to_say(10) == {T: 3, P: 2, Q: 1}


def test_a_route_that_the_node_does_not_hold_counts_no_more_with_the_second_look():
    mine = counts()
    held = {"1", "2"}
    assert mine.compare(held) == []  # it may be on its way out
    assert mine.compare(held) == ["3"]
    assert mine.compare(held) == []
    assert mine.to_say(2) == {T: 2, Q: 0}


def test_a_route_that_is_held_again_was_no_stray():
    mine = counts()
    everything = {"1", "2", "3"}
    for held in ({"1", "2"}, everything, {"1", "2"}):
        assert mine.compare(held) == []
    assert "3" in mine
