"""Tallies: calls and refusals of tenants, counted until somebody looks."""

from app.limits.tenant_limits import BOUNDS, MAX_REASONS, OTHERS, Tallies, Tally


def test_what_was_counted_is_taken_once():
    tally = Tally()
    for seconds, error in ((0.010, ""), (0.010, "timeout"), (0.5, "")):
        tally.done(seconds, error)
    tally.refused("quota_exceeded")
    buckets, errors = tally.take()
    assert sorted(buckets.values()) == [1, 2]
    assert errors == {"timeout": 1, "quota_exceeded": 1}
    assert tally.take() == ({}, {})


def test_the_shortest_and_the_longest_call_have_a_bucket():
    tally = Tally()
    tally.done(0.0, "")
    tally.done(10.0**6, "")
    assert tally.take().buckets == {0: 1, len(BOUNDS): 1}


def test_reasons_are_bounded():
    tally = Tally()
    for number in range(MAX_REASONS + 10):
        tally.refused(f"reason-{number}")
    errors = tally.take().errors
    assert len(errors) == MAX_REASONS
    assert sum(errors.values()) == MAX_REASONS + 10


def test_tenants_beyond_the_limit_share_a_tally():
    tallies = Tallies(most=2)
    one, two, three, four = (tallies.of(name) for name in ("one", "two", "three", "four"))
    assert one is tallies.of("one")
    assert one is not two
    assert three is four is tallies.of(OTHERS)
    assert not tallies.has("three")


def test_a_forgotten_tenant_makes_room_and_the_shared_tally_stays():
    tallies = Tallies(most=1)
    tallies.of("one")
    tallies.forget("one")
    tallies.forget(OTHERS)
    assert tallies.of("two") is not tallies.of(OTHERS)
    assert [name for name, _ in tallies] == [OTHERS, "two"]
