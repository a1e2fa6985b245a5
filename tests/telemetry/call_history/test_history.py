"""What is kept of calls: bounded for each tenant and for all."""

import sys

import pytest

from app.telemetry.call_history.history import CallHistory, Origin, fair_share


def origin(tenant: str, session: str = "0123456789ab") -> Origin:
    return Origin((tenant, "echo"), (tenant, "key", "AAAAAAAA"), session, ("client", "1"))


def note(history: CallHistory, of: Origin, tool: str = "echo", count: int = 1) -> None:
    for _ in range(count):
        history.note(of, "tools/call", tool, "ok", 0.001, 10, 20, None)


def test_each_tenant_keeps_so_many_the_newest():
    history = CallHistory(3, 1 << 20)
    for number in range(5):
        note(history, origin("acme"), str(number))
    note(history, origin("zenith"))
    assert [each.tool for each in history.of("acme")] == ["4", "3", "2"]
    assert len(list(history.of("zenith"))) == 1
    assert list(history.of("unknown")) == []


def test_those_of_all_tenants_are_the_newest_of_each_and_not_too_many(monkeypatch):
    times = iter(range(100))
    history = CallHistory(3, 1 << 20, lambda: float(next(times)))
    for number in range(4):
        note(history, origin("acme"), f"a{number}")
        note(history, origin("zenith"), f"z{number}")
    assert [each.tool for each in history.of(None)] == ["z3", "a3", "z2", "a2", "z1", "a1"]
    monkeypatch.setattr("app.telemetry.call_history.history.MOST_OF_ALL", 2)
    assert [each.tool for each in history.of(None)] == ["z3", "a3"]
    assert list(CallHistory(3, 1 << 20).of(None)) == []


def test_zero_keeps_nothing():
    history = CallHistory(0, 1 << 20)
    note(history, origin("acme"), count=5)
    assert (len(history), history.bytes) == (0, 0)


def test_who_has_the_most_makes_room_for_all():
    history = CallHistory(10_000, 100_000)
    quiet, busy = origin("quiet"), origin("busy")
    note(history, quiet, count=5)
    note(history, busy, count=5_000)
    assert len(list(history.of("quiet"))) == 5
    assert 0 < len(list(history.of("busy"))) < 500
    assert history.bytes <= 100_000


def test_what_is_counted_is_about_what_is_taken():
    """The count may be above, not far below."""
    history = CallHistory(1_000, 1 << 30)
    of = origin("acme")
    note(history, of, "x" * 100, 1_000)
    taken = sum(sys.getsizeof(each) + sys.getsizeof(each.tool) for each in history.of("acme"))
    assert taken <= history.bytes


def test_a_session_is_counted_once_and_until_its_last_call_is_gone():
    history = CallHistory(2, 1 << 20)
    first = origin("acme", "a" * 12)
    note(history, first, count=2)
    two = history.bytes
    note(history, first)
    assert history.bytes == two
    note(history, origin("acme", "b" * 12), count=2)
    assert history.bytes == two


def test_a_tenant_that_is_gone_is_forgotten():
    history = CallHistory(10, 1 << 20)
    note(history, origin("acme"), count=3)
    history.forget("acme")
    history.forget("acme")
    assert (list(history.of("acme")), history.bytes) == ([], 0)


@pytest.mark.parametrize(
    ("sizes", "room", "share"), [([10, 10], 100, 100), ([10, 100], 60, 50), ([50, 50, 50], 90, 30), ([], 5, 5)]
)
def test_the_share_that_is_fair(sizes: list[int], room: int, share: int):
    assert fair_share(sizes, room) == share
