"""Overload: sessions are refused first and calls last, above stated marks, and not in turns."""

import time

import anyio
import anyio.lowlevel
import pytest

from app.errors import Overloaded
from app.limits._machine import Machine, Use
from app.limits.overload import CALLS_LAG, HOLD_S, Level, Marks, Overload
from app.telemetry.metrics import Metrics


class FakeMachine(Machine):
    """As full as the test wants."""

    def __init__(self) -> None:
        self.used = {"memory": 10, "descriptors": 10}

    def memory(self) -> Use:
        return Use(self.used["memory"], 100)

    def descriptors(self) -> Use:
        return Use(self.used["descriptors"], 100)


class Rig:
    """An Overload whose seconds pass when the test says so."""

    def __init__(self) -> None:
        self.now, self.machine, self.metrics = 100.0, FakeMachine(), Metrics("test")
        self.overload = Overload(self.metrics, Marks(lag_s=1.0), machine=self.machine, clock=lambda: self.now)

    def after(self, seconds: float, *, late_s: float = 0.0) -> tuple[str | None, str | None]:
        """What is refused after so many seconds of ticks that are so late."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1 + late_s
            self.overload.woke(late_s)
            self.overload.look_at_machine()
            self.overload.decide(self.now)
        sessions, calls = self.overload.sessions, self.overload.calls
        return sessions and sessions.mark, calls and calls.mark

    def shed(self, what: str, mark: str) -> float:
        value = self.metrics.registry.get_sample_value("trunkline_shed_total", {"what": what, "mark": mark})
        return value or 0.0


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("mark", ["memory", "descriptors"])
def test_new_sessions_are_refused_first_and_calls_last(rig: Rig, mark: str) -> None:
    rig.machine.used[mark] = 84
    assert rig.after(1) == (None, None)
    rig.machine.used[mark] = 85
    assert rig.after(0.1) == (mark, None)
    rig.machine.used[mark] = 95
    assert rig.after(0.1) == (mark, mark)
    rig.machine.used[mark] = 84  # calls are accepted again, sessions not yet
    assert rig.after(HOLD_S + 0.2) == (mark, None)
    rig.machine.used[mark] = 70
    assert rig.after(HOLD_S + 0.2) == (None, None)


def test_a_measure_that_plays_about_its_mark_changes_nothing(rig: Rig) -> None:
    for used in (86, 84, 82, 85, 81, 83) * 5:
        rig.machine.used["memory"] = used
        assert rig.after(HOLD_S * 0.6) == ("memory", None)


def test_a_level_falls_only_after_a_time_of_rest() -> None:
    level = Level(10.0, 20.0)
    assert [level.look(measure, 0.0) for measure in (9.9, 10.0, 25.0)] == [0, 1, 2]
    assert level.look(1.0, 1.0) == 2
    assert level.look(19.9, 1.0 + HOLD_S) == 2  # too near: the rest begins anew
    assert level.look(1.0, 10.0) == 2
    assert level.look(1.0, 10.0 + HOLD_S) == 0


def test_an_event_loop_that_is_late_for_long_refuses_sessions_and_later_calls(rig: Rig) -> None:
    assert rig.after(20, late_s=0.9) == (None, None)
    assert rig.after(20, late_s=1.5) == ("loop_lag", None)
    assert rig.after(40, late_s=CALLS_LAG * 1.2) == ("loop_lag", "loop_lag")
    assert "the event loop is 3." in (rig.overload.problem or "")
    assert rig.after(HOLD_S + 3) == (None, None)
    assert rig.overload.problem is None


@pytest.mark.parametrize("seconds", [1.5, 10.0, 3600.0])
def test_one_standstill_refuses_nobody(rig: Rig, seconds: float) -> None:
    rig.after(1)
    assert rig.after(0.1, late_s=seconds) == (None, None)
    assert rig.after(5) == (None, None)


def test_what_is_refused_is_counted_and_told_when_to_come_back(rig: Rig) -> None:
    rig.overload.require_room_for_session()
    rig.machine.used["memory"] = 97
    rig.after(0.1)
    waits = []
    for _ in range(40):
        with pytest.raises(Overloaded) as caught:
            rig.overload.require_room_for_session()
        waits.append(caught.value.retry_after_s or 0.0)
    assert waits[0] >= 1
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(3, rel=0.1)  # forty, at twenty a second
    assert rig.overload.calls is not None
    assert rig.overload.refusal("call", rig.overload.calls).retry_after_s
    assert (rig.shed("session", "memory"), rig.shed("call", "memory")) == (40, 1)
    assert rig.overload.problem == "new sessions and calls are refused: 97% of memory is used"


async def test_the_ticker_notices_a_loop_that_is_kept_from_turning() -> None:
    overload = Overload(Metrics("test"), Marks(lag_s=0.05))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(overload.run)
        with anyio.fail_after(20):
            while overload.sessions is None:
                time.sleep(0.2)
                await anyio.lowlevel.checkpoint()
        assert overload.sessions.mark == "loop_lag"
        tasks.cancel_scope.cancel()
