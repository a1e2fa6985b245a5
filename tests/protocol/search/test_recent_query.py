"""Which call is learned from: one that soon follows a query."""

from app.protocol.search._words import MAX_QUERY
from app.protocol.search.recent_query import MAX_AGE_S, MAX_CALLS, RecentQuery


def test_the_next_calls_follow_the_query() -> None:
    recent = RecentQuery()
    recent.asked("send mail", 10.0)
    assert [recent.called(10.0 + each) for each in range(MAX_CALLS + 1)] == ["send mail"] * MAX_CALLS + [None]


def test_a_late_call_follows_none() -> None:
    recent = RecentQuery()
    recent.asked("send mail", 10.0)
    assert recent.called(10.0 + MAX_AGE_S) == "send mail"
    assert recent.called(10.1 + MAX_AGE_S) is None


def test_only_the_last_query_counts() -> None:
    recent = RecentQuery()
    assert recent.called(0.0) is None
    recent.asked("first", 1.0)
    recent.asked("second", 2.0)
    assert recent.called(3.0) == "second"


def test_a_long_query_is_kept_as_far_as_it_is_read() -> None:
    recent = RecentQuery()
    recent.asked("w " * MAX_QUERY, 0.0)
    assert recent.called(0.0) == ("w " * MAX_QUERY)[:MAX_QUERY]
