"""Fate: how long a node that died waits for its next start, and when there is none."""

from app.fleet import AT_ONCE_S, GIVE_UP_AFTER, Fate


def test_a_node_that_lived_long_is_started_again_soon_as_often_as_need_be():
    fate = Fate()
    assert [fate.died(AT_ONCE_S) for _ in range(20)] == [0.5] * 20


def test_one_that_dies_at_once_waits_longer_each_time_and_is_given_up():
    fate = Fate()
    delays = [fate.died(lived_s) for lived_s in (None, 0.1, 9.9, None, None)]
    assert len(delays) == GIVE_UP_AFTER
    assert delays == [0.5, 1.0, 2.0, 4.0, None]


def test_a_life_in_between_makes_everything_good():
    fate = Fate()
    for _ in range(GIVE_UP_AFTER - 1):
        assert fate.died(None) is not None
    assert fate.died(AT_ONCE_S + 1) == 0.5
    assert fate.died(None) == 0.5
