"""RateLimiter: so many at once, so many per second, in a table that does not grow."""

import sys

import pytest
from prometheus_client import CollectorRegistry, Counter

from app.errors import RateLimited
from app.limits import caller_rates
from app.limits.caller_rates import RateLimiter

RATE, BURST = 10.0, 300


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def limiter(clock: Clock, registry: CollectorRegistry) -> RateLimiter:
    return RateLimiter("bad_credentials", Counter("limited", "", ["limit"], registry=registry), clock)


def spend_all(limiter: RateLimiter, key: object) -> int:
    """How often it is let through."""
    for count in range(100_000):
        try:
            limiter.spend(key)
        except RateLimited:
            return count
    raise AssertionError("no limit")


def test_what_comes_at_once_is_let_through_and_then_so_much_per_second(limiter, clock):
    assert spend_all(limiter, "a") == BURST
    with pytest.raises(RateLimited) as caught:
        limiter.spend("a")
    assert caught.value.limit == "bad_credentials"
    assert caught.value.retry_after_s == pytest.approx(1 / RATE)
    clock.now += 2.0
    assert spend_all(limiter, "a") == 2 * RATE
    clock.now += 1000.0
    assert spend_all(limiter, "a") == BURST


def test_each_key_has_its_own(limiter):
    spend_all(limiter, ("t", "key", "a"))
    limiter.spend(("t", "key", "b"))
    limiter.spend("t")


def test_a_cost_is_taken_whole_or_not_at_all(limiter):
    limiter.spend("a", BURST - 1.0)
    with pytest.raises(RateLimited) as caught:
        limiter.spend("a", 2.0)
    assert caught.value.retry_after_s == pytest.approx(1 / RATE)
    limiter.spend("a", 1.0)


def test_what_is_given_back_can_be_spent_and_never_more_than_there_is(limiter):
    for _ in range(1000):
        limiter.spend("a")
        limiter.give_back("a")
        limiter.give_back("a")
        limiter.give_back("nobody")
    assert spend_all(limiter, "a") == BURST
    limiter.give_back("a")
    assert spend_all(limiter, "a") == 1


def test_refusals_are_counted(limiter, registry):
    spend_all(limiter, "a")
    spend_all(limiter, "a")
    assert registry.get_sample_value("limited_total", {"limit": "bad_credentials"}) == 2


def test_the_table_is_bounded_in_entries_and_bytes_and_forgets_the_one_heard_of_longest_ago(limiter, monkeypatch):
    monkeypatch.setattr(caller_rates, "MAX_KEYS", 100)
    spend_all(limiter, "busy" * 10_000)
    for number in range(300):
        limiter.spend("x" * 10_000 + str(number))
        with pytest.raises(RateLimited):
            limiter.spend("busy" * 10_000)
    assert len(limiter._levels) == 100
    assert max(sys.getsizeof(key) for key in limiter._levels) < 60
    for number in range(100):
        limiter.spend(number)
    limiter.spend("busy" * 10_000)  # forgiven
