"""Rotation: each has its turn, as few as possible at a time. Pure."""

import pytest

from app.cluster.routing._session_counts import TURN_BEATS, Rotation


def names(count: int, prefix: str = "n") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (60, 1), (61, 2), (200, 4), (30_000, 500)])
def test_a_turn_takes_as_long_as_it_may_and_says_each_once(count: int, size: int) -> None:
    rotation, all_of_them = Rotation(TURN_BEATS), names(count)
    said: list[str] = []
    beats = 0
    while len(said) < count:
        lot = rotation.next(all_of_them, 500)
        assert 1 <= len(lot) <= size
        said += lot
        beats += 1
    assert (said, beats <= TURN_BEATS) == (all_of_them, True)
    assert rotation.next(all_of_them, 500) == all_of_them[:size]


def test_what_is_more_than_may_be_said_takes_longer() -> None:
    rotation = Rotation(1)
    assert [len(rotation.next(names(1200), 500)) for _ in range(4)] == [500, 500, 200, 500]


def test_who_may_say_nothing_misses_nothing() -> None:
    rotation = Rotation(2)
    assert [rotation.next(names(4), most) for most in (0, 2, 0, 2)] == [[], ["n0", "n1"], [], ["n2", "n3"]]


def test_what_comes_and_goes_keeps_nobody_from_its_turn() -> None:
    """However much goes in front of the others."""
    rotation, stay = Rotation(10), names(100)
    goes = names(100, "gone")
    said: set[str] = set()
    for beat in range(20):
        said.update(rotation.next([*goes[beat * 5 :], *stay, *names(beat, "new")], 500))
    assert set(stay) <= said


def test_nothing_has_no_turn() -> None:
    assert Rotation(TURN_BEATS).next((), 500) == []
