"""How often everything is counted: seldom where it takes long, each time where it does not."""

from types import SimpleNamespace
from typing import Any

from app.cluster.node_status._census import GOOD_FOR, MAX_NAMED, NOBODY, Census


def session(number: int, process: str | None = "p1", calls: tuple[int, int] = (0, 0)) -> Any:
    return SimpleNamespace(
        public_id=f"s{number:04}",
        exchange=SimpleNamespace(in_flight=calls[0]),
        calls=SimpleNamespace(begun=calls[1]),
        connection=SimpleNamespace(process=process),
    )


class Clock:
    """Moves on by `step` with each look at it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_sessions_and_calls_are_counted_by_process():
    census = Census([session(1, calls=(1, 5)), session(2, calls=(2, 7)), session(3, None, (0, 1))])
    census.count()
    assert census.of_processes["p1"].calls == (3, 12)
    assert census.of_processes["p1"].named == ["s0001", "s0002"]
    assert list(census.of_processes) == ["p1"]
    assert census.of_processes.get("p2", NOBODY).calls == (0, 0)


def test_of_many_sessions_some_are_named_and_all_are_counted():
    census = Census([session(number) for number in range(MAX_NAMED + 50)])
    census.count()
    counted = census.of_processes["p1"]
    assert (len(counted.named), counted.sessions) == (MAX_NAMED, MAX_NAMED + 50)
    assert NOBODY.named == []


def test_a_count_that_took_long_is_good_for_a_hundred_times_as_long():
    clock, sessions = Clock(0.01), [session(1)]
    census = Census(sessions, clock)
    census.count()  # took 0.01 s
    sessions.append(session(2))
    census.count()
    assert census.of_processes["p1"].sessions == 1
    clock.now += 0.01 * GOOD_FOR
    census.count()
    assert census.of_processes["p1"].sessions == 2


def test_what_takes_no_time_is_counted_each_time():
    sessions = [session(1)]
    census = Census(sessions, Clock(0.0))
    census.count()
    sessions.append(session(2))
    census.count()
    assert census.of_processes["p1"].sessions == 2
