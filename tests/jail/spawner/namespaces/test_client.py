"""Rooms: a maker that does not work, and its successor."""

import os
import signal
from collections.abc import Iterator

import pytest

from app.jail.spawner.namespaces import client as module
from app.jail.spawner.namespaces.client import Rooms
from app.jail.spawner.namespaces.orders import RoomOrder

NOBODY = 2**22 + 1  # no process has this pid


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    rooms = Rooms()
    yield rooms
    rooms.close()


def ordered(rooms: Rooms) -> int:
    """The pid of the maker that a room is ordered from, for a fork that is not there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    with rooms.order(RoomOrder(id="ab", pid=NOBODY, room={}, joins=[]), [nothing, nothing]):
        os.close(nothing)
        return rooms.pid


def reaped(pid: int) -> int:
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def test_a_maker_that_does_not_read_its_orders_is_replaced(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READS_WITHIN_S", 0.0)
    first = ordered(rooms)
    os.kill(first, signal.SIGSTOP)
    os.waitpid(first, os.WUNTRACED)
    ordered(rooms)
    rooms.missed()
    assert reaped(first) == signal.SIGKILL
    assert ordered(rooms) != first
    os.kill(rooms.pid, signal.SIGKILL)
    reaped(rooms.pid)


def test_one_that_has_read_them_is_not_to_blame(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READS_WITHIN_S", 0.0)
    first = ordered(rooms)
    while module._unread_bytes(rooms._maker):  # type: ignore[arg-type]
        os.sched_yield()
    rooms.missed()
    assert rooms.pid == first
    os.kill(first, signal.SIGKILL)
    reaped(first)


def test_one_that_has_had_no_time_to_read_them_is_not_either(rooms: Rooms) -> None:
    first = ordered(rooms)
    os.kill(first, signal.SIGSTOP)
    ordered(rooms)
    rooms.missed()
    assert rooms.pid == first
    os.kill(first, signal.SIGKILL)
    reaped(first)
