"""Draining: whose session ends when, with and without another node to hand it to."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.errors import RoutesUnavailable
from app.sessions import _draining as module
from app.sessions._draining import SILENT_PER_TICK, STREAMS_PER_S, TICK_S, Draining, lot, streams_per_tick


class _Listen:
    def __init__(self, attached: bool) -> None:
        self.attached = attached


class _Exchange:
    def __init__(self, calls: int) -> None:
        self.calls = list(range(calls))
        self.has_questions = False


class FakeSession:
    """What Draining looks at."""

    def __init__(self, sessions: "FakeSessions", calls: int = 0, *, attached: bool = False) -> None:
        self.streams, self.exchange = SimpleNamespace(listen=_Listen(attached)), _Exchange(calls)
        self._sessions = sessions
        self.id, self.closed_at = "s1", 0.0

    def close(self, reason: str, error: Exception | None = None) -> None:
        if not self.closed_at:
            self.closed_at = vars(module)["time"].monotonic()  # that of the test, where it has one
            self._sessions.left.remove(self)


class FakeSessions:
    """A registry that only counts."""

    def __init__(self, *calls: int, attached: bool = False) -> None:
        self.left = [FakeSession(self, each, attached=attached) for each in calls]
        self.hidden = set[FakeSession]()

    def hide(self, session: FakeSession) -> None:
        self.hidden.add(session)

    def show(self, session: FakeSession) -> None:
        self.hidden.discard(session)

    def __iter__(self) -> Iterator[FakeSession]:
        return iter(list(self.left))

    def calls_in_flight(self) -> int:
        return sum(len(session.exchange.calls) for session in self.left)


class Clock:
    """For `time` and `anyio` there: it moves on when somebody sleeps, and at no other time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.create_task_group = anyio.create_task_group

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("time", "anyio"):
        monkeypatch.setattr(module, name, clock)
    return clock


def draining(sessions, seconds, hand_over=None):  # without types: the fakes are no sessions
    return Draining(sessions, seconds, hand_over)


async def test_without_calls_it_is_over_at_once():
    sessions = FakeSessions(0, 0, 0)
    with anyio.fail_after(10):
        assert await draining(sessions, 30).run() == 0
    assert not sessions.left


async def test_a_call_that_begins_in_the_turn_in_which_its_session_is_chosen_is_waited_for(monkeypatch):
    """The turn of the event loop between the choice and its task reads what has arrived: the call was cut off."""
    sessions, handed = FakeSessions(0), []
    (only,) = sessions.left

    async def give_away(session: FakeSession) -> None:
        handed.append(list(session.exchange.calls))
        session.close("handed_over")

    drain = draining(sessions, 30, give_away)
    choose = drain._next

    def chosen(now: float) -> Any:
        sessions_now = choose(now)
        only.exchange.calls.append(1)
        monkeypatch.setattr(drain, "_next", choose)
        return sessions_now

    monkeypatch.setattr(drain, "_next", chosen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain.run)
        await anyio.wait_all_tasks_blocked()
        assert not handed
        only.exchange.calls.clear()
        with anyio.fail_after(10):
            while sessions.left:
                await anyio.sleep(0.001)
    assert handed == [[]]


async def test_without_another_node_no_session_ends_while_any_has_a_call():
    sessions = FakeSessions(0, 1)
    idle, busy = sessions.left
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draining(sessions, 30).run)
        await anyio.wait_all_tasks_blocked()
        assert sessions.left == [idle, busy]
        busy.exchange.calls.clear()
        with anyio.fail_after(10):
            while sessions.left:
                await anyio.sleep(0.001)


async def test_without_another_node_the_idle_end_after_half_of_the_time_and_the_rest_is_cut_off(clock):
    sessions = FakeSessions(0, 2)
    idle, busy = sessions.left
    assert await draining(sessions, 0.4).run() == 2
    assert 0.2 <= idle.closed_at < 0.4 <= busy.closed_at
    assert not sessions.left


@pytest.mark.parametrize("hand_over", [None, "another node"])
async def test_in_the_second_half_no_session_takes_a_new_call_but_one_that_is_being_asked(clock, hand_over):
    sessions = FakeSessions(1, 1)
    busy, asked = sessions.left
    asked.exchange.has_questions = True

    async def give_away(_: FakeSession) -> None:
        raise AssertionError  # both have a call

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draining(sessions, 2.0, hand_over and give_away).run)
        with anyio.fail_after(20):
            while not sessions.hidden:
                await anyio.lowlevel.checkpoint()
        assert 1.0 <= clock.now < 1.0 + 3 * TICK_S
        assert sessions.hidden == {busy}
        tasks.cancel_scope.cancel()


async def test_one_that_is_asked_something_later_is_found_until_that_is_answered(clock):
    sessions = FakeSessions(1)
    (busy,) = sessions.left

    async def becomes(hidden: set[FakeSession]) -> None:
        with anyio.fail_after(20):
            while sessions.hidden != hidden:
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draining(sessions, 30.0).run)
        await becomes({busy})
        busy.exchange.has_questions = True
        await becomes(set())
        busy.exchange.has_questions = False
        await becomes({busy})
        tasks.cancel_scope.cancel()


async def test_with_another_node_each_goes_as_soon_as_it_has_no_call_and_is_closed_afterwards():
    sessions = FakeSessions(0, 1)
    idle, busy = sessions.left
    handed_over = []

    async def hand_over(session: FakeSession) -> None:
        assert not session.closed_at
        assert not session.exchange.calls
        handed_over.append(session)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(draining(sessions, 30, hand_over).run)
        with anyio.fail_after(10):
            while not idle.closed_at:
                await anyio.sleep(0.001)
        assert handed_over == [idle]
        busy.exchange.calls.clear()
        with anyio.fail_after(10):
            while not busy.closed_at:
                await anyio.sleep(0.001)
    assert handed_over == [idle, busy]


async def test_a_hand_over_that_fails_or_hangs_keeps_no_session_from_ending(monkeypatch):
    monkeypatch.setattr("app.sessions._draining.LAST_HAND_OVERS_S", 0.1)
    sessions = FakeSessions(0, 0)
    first, _ = sessions.left

    async def hand_over(session: FakeSession) -> None:
        if session is first:
            raise RoutesUnavailable
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        assert await draining(sessions, 0.2, hand_over).run() == 0
    assert not sessions.left


async def test_a_drain_that_is_cancelled_leaves_no_task_behind():
    sessions = FakeSessions(1)

    async def hand_over(_: FakeSession) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(0.1):
        await draining(sessions, 30, hand_over).run()
    assert [task for task in anyio.get_running_tasks() if "draining" in repr(task.coro)] == []


@pytest.mark.parametrize(
    ("streams", "left_s", "seconds"),
    [(10, 30.0, 0.1), (1_000, 30.0, 10.0), (10_000, 30.0, 15.0), (100, 0.0, 0.05)],
)
def test_streams_end_a_hundred_a_second_or_within_half_of_the_time(streams, left_s, seconds):
    ticks = streams / streams_per_tick(streams, left_s)
    assert ticks * TICK_S <= seconds + TICK_S
    assert streams_per_tick(streams, left_s) >= STREAMS_PER_S * TICK_S


def test_a_lot_has_so_many_with_a_stream_and_some_without():
    sessions: Any = [*FakeSessions(*[0] * 500), *FakeSessions(*[0] * 9, attached=True)]
    chosen = lot(sessions, 4)
    assert [session.streams.listen.attached for session in chosen].count(True) == 4
    assert len(chosen) == 4 + SILENT_PER_TICK
