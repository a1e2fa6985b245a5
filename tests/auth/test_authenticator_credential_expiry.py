"""CredentialExpiry: whom a revocation may concern that came during a wait, and what ends when a credential expires."""

from app.auth import authenticator
from app.auth.authenticator import CredentialExpiry
from app.domain import Principal

ALICE = Principal("acme", "key", "alice", frozenset())
BOB = Principal("acme", "key", "bob", frozenset())


class Clocks:
    def __init__(self) -> None:
        self.now = 1000.0

    def watch(self) -> CredentialExpiry:
        return CredentialExpiry(lambda: self.now, lambda: self.now)


def until(expires_at: float | None) -> Principal:
    return Principal("acme", "key", "carol", frozenset(), expires_at)


def test_a_revocation_concerns_whom_it_means_and_who_was_let_in_before_it():
    watch = Clocks().watch()
    before = watch.count
    watch.revoked(lambda each: each == ALICE)
    after = watch.count
    watch.revoked(lambda each: each == BOB)
    assert [watch.may_concern(each, before) for each in (ALICE, BOB)] == [True, True]
    assert [watch.may_concern(each, after) for each in (ALICE, BOB)] == [False, True]
    assert not watch.may_concern(BOB, watch.count)


def test_what_is_not_remembered_may_concern_everybody(monkeypatch):
    monkeypatch.setattr(authenticator, "MAX_KEPT", 3)
    watch = Clocks().watch()
    for _ in range(4):
        watch.revoked(lambda each: each == ALICE)
    assert watch.may_concern(BOB, 0)
    assert not watch.may_concern(BOB, 1)


def test_it_knows_how_many_there_were_some_time_ago():
    clocks = Clocks()
    watch = clocks.watch()
    for _ in range(3):
        watch.revoked(lambda each: True)
        clocks.now += 10
    assert [watch.count_before(seconds) for seconds in (5, 10, 25, 100)] == [3, 2, 1, 0]


def test_what_is_open_ends_once_when_its_credential_expires_and_not_after_it_was_closed():
    clocks, ended = Clocks(), list[str]()
    watch = clocks.watch()
    with (
        watch.hold(until(1010), lambda: ended.append("first")),
        watch.hold(until(1020), lambda: ended.append("second")),
        watch.hold(until(None), lambda: ended.append("never")),
    ):
        with watch.hold(until(1015), lambda: ended.append("closed")):
            watch.sweep()
            assert ended == []
        clocks.now = 1010
        assert (watch.has_expired(until(1010)), watch.has_expired(until(1011))) == (True, False)
        watch.sweep()
        watch.sweep()
        assert ended == ["first"]
        clocks.now = 1020
        watch.sweep()
        assert ended == ["first", "second"]
    assert not watch._holds


def test_what_was_over_when_it_opened_ends_with_the_next_sweep():
    ended = list[str]()
    watch = Clocks().watch()
    with watch.hold(until(900), lambda: ended.append("late")):
        watch.sweep()
    assert ended == ["late"]


def test_an_end_that_fails_keeps_no_other_from_ending():
    clocks, ended = Clocks(), list[str]()
    watch = clocks.watch()

    def fail() -> None:
        raise RuntimeError("no")

    with watch.hold(until(1001), fail), watch.hold(until(1001), lambda: ended.append("other")):
        clocks.now = 1001
        watch.sweep()
    assert ended == ["other"]
