"""Lately: what was refused in the last minutes."""

from app.errors import LimitReached
from app.limits.lately import KEPT_S, MAX_KEPT, Happened, Lately, Refusals, RefusedTo


def test_events_are_counted_by_key_and_forgotten_when_they_are_over():
    now = [100.0]
    lately = Lately[str](lambda: now[0])
    for at in (100.0, 110.0, 120.0):
        now[0] = at
        lately.note("a")
    lately.note("b")
    assert dict(lately) == {"a": Happened(100.0, 120.0, 3), "b": Happened(120.0, 120.0)}
    now[0] = 120.5 + KEPT_S
    assert dict(lately) == {}
    lately.note("a")
    assert dict(lately) == {"a": Happened(now[0], now[0])}


def test_the_one_that_happened_longest_ago_goes_first():
    lately = Lately[int](lambda: 0.0)
    for number in range(MAX_KEPT):
        lately.note(number)
    lately.note(0)
    lately.note(MAX_KEPT)
    kept = dict(lately)
    assert len(kept) == MAX_KEPT
    assert 1 not in kept
    assert kept[0].times == 2


def test_a_refusal_names_the_limit_and_the_principal():
    refusals, reached = Refusals(lambda: 5.0), LimitReached.of_tenant("sessions", "acme", 3, 3)
    refusals.limited("acme", "key K1", reached)
    assert dict(refusals.limits) == {RefusedTo("acme", "sessions", "tenant", "key K1"): Happened(5.0, 5.0, 1, reached)}
