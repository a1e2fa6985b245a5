"""Once: two ways, in any order. Numbers: repeated and missing."""

from hypothesis import given
from hypothesis import strategies as st

from app.cluster.routing import notice as module
from app.cluster.routing.notice import Kind, Notice, Numbers, Once, Way

RESTARTED = Notice(Kind.BACKEND_RESTARTED, ("acme", "echo"))
OTHER = {Way.NOTICE: Way.TRAIL, Way.TRAIL: Way.NOTICE}


def comes(heard: Once, way: Way, now: float = 0.0, notice: Notice = RESTARTED) -> bool:
    """Whether it takes effect."""
    if heard.is_repeated(way, notice, now):
        return False
    heard.owe(OTHER[way], notice, now)
    return True


@given(st.permutations([Way.NOTICE] * 4 + [Way.TRAIL] * 4))
def test_each_of_several_changes_takes_effect_once_in_whatever_order_they_come(ways):
    heard = Once()
    assert sum(comes(heard, way) for way in ways) == 4
    assert not heard._owed


def test_changes_of_other_things_are_others():
    heard = Once()
    assert comes(heard, Way.NOTICE)
    assert comes(heard, Way.TRAIL, notice=Notice(Kind.BACKEND_RESTARTED, ("acme", "time")))


def test_a_notice_that_never_comes_is_not_waited_for_for_long():
    heard = Once()
    assert comes(heard, Way.TRAIL, now=0.0)
    assert comes(heard, Way.NOTICE, now=61.0)


def test_a_database_that_was_away_for_long_is_no_second_restart():
    heard = Once()
    assert comes(heard, Way.NOTICE, now=0.0)
    assert not comes(heard, Way.TRAIL, now=3000.0)


def test_what_is_owed_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    heard = Once()
    for number in range(100):
        heard.owe(Way.TRAIL, Notice(Kind.TENANT_REMOVED, (f"t{number}",)), 0.0)
    assert len(heard._owed) <= 10
    assert heard.is_repeated(Way.TRAIL, Notice(Kind.TENANT_REMOVED, ("t99",)), 1.0)


def test_numbers_tell_the_next_the_repeated_and_the_missing():
    numbers = Numbers()
    assert [numbers.step("a", number) for number in (5, 6, 6, 5, 9, 10)] == [1, 1, 0, -1, 3, 1]
    assert numbers.step("b", 1) == 1


def test_the_sender_not_heard_for_longest_is_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_SENDERS", 2)
    numbers = Numbers()
    for sender in "abac":
        numbers.step(sender, 7)
    assert len(numbers._last) == 2
    assert [numbers.step("a", 7), numbers.step("b", 7)] == [0, 1]


def test_what_the_trail_owes_from_before_it_was_followed_is_not_waited_for():
    """Else a later change of the same thing by the command line would be taken for it."""
    heard = Once()
    assert comes(heard, Way.NOTICE)
    assert comes(heard, Way.TRAIL, notice=Notice(Kind.BACKEND_RESTARTED, ("acme", "time")))
    heard.forget(Way.TRAIL)
    assert comes(heard, Way.TRAIL)
    assert not comes(heard, Way.NOTICE, notice=Notice(Kind.BACKEND_RESTARTED, ("acme", "time")))
