"""Who gets the last descriptors."""

import pytest

from app.limits._machine import Machine, Use
from app.limits.descriptors import NO_LIMIT, ProcessRoom, for_connections, for_sessions


class FakeMachine(Machine):
    def __init__(self, used: int, limit: int) -> None:
        self.use = Use(used, limit)

    def descriptors(self) -> Use:
        return self.use


@pytest.mark.parametrize("limit", [64, 100, 128, 256, 512, 1024, 4096, 65_536, 1 << 20])
@pytest.mark.parametrize("share", [0.5, 0.85, 1.0])
def test_sessions_leave_some_to_connections_and_those_leave_some_to_the_node(limit: int, share: float) -> None:
    assert for_sessions(limit, share) <= limit * share
    assert for_sessions(limit, share) + 7 <= for_connections(limit) <= limit * 0.95


def test_from_100_on_it_is_the_share_that_counts() -> None:
    for limit in (100, 128, 256, 1024, 65_536):
        assert for_sessions(limit, 0.85) == limit * 0.85
    assert for_sessions(64, 0.85) == 50


def test_processes_start_while_there_are_descriptors_for_them_and_their_clients() -> None:
    machine, now, free, due = FakeMachine(50, 100), [0.0], [50], [0]
    room = ProcessRoom(0.8, machine, clock=lambda: now[0], free_descriptor=lambda: free[0], due=lambda used: due[0])
    assert room.left(10, 0, 0) == 6
    assert room.left(14, 4, 0) == 2
    free[0] = 71  # since it was counted
    assert room.left(10, 0, 0) == 2
    due[0] = 20
    assert room.left(10, 0, 0) == 0
    machine.use, free[0], due[0] = Use(60, 100), 3, 0  # there are holes
    now[0] += 0.1
    assert room.left(10, 0, 0) == 4
    assert room.left(19, 9, 0) == 0
    free[0] = NO_LIMIT
    assert room.left(10, 0, 0) == 0


def test_processes_that_were_started_since_the_descriptors_were_counted_count() -> None:
    now = [0.0]
    room = ProcessRoom(0.8, FakeMachine(50, 100), clock=lambda: now[0], free_descriptor=lambda: 7)  # there are holes
    assert [room.left(0, 0, 0), room.left(3, 0, 0), room.left(6, 4, 0), room.left(6, 0, 0)] == [6, 3, 0, 0]
    now[0] += 0.1
    assert room.left(6, 0, 0) == 6


def test_where_the_limit_is_not_known_there_is_room() -> None:
    assert ProcessRoom(0.85, FakeMachine(0, 0)).left(8, 8, 0) == NO_LIMIT
