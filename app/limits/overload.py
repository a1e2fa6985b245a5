"""Overload: what this node refuses on purpose while its event loop is late, or memory or descriptors run out.

New sessions go first, calls last. One ticker measures; whoever admits something compares one attribute.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio

from app.errors import Overloaded
from app.limits.machine import Machine, Use
from app.limits.waiting_line import WaitingLine
from app.metrics import Metrics
from app.reached import Reached

TICK_S = 0.1
LOOK_EVERY = 5  # ticks between two looks at memory and descriptors
LAG_SMOOTHING = 0.2
# A single standstill, however long, stays below the mark: what follows it is quick again, and the fence is for that.
LONGEST_LAG = 0.96 / LAG_SMOOTHING
CALLS_LAG = 3  # times as late as for new sessions
RELAX = 0.95  # of a mark; it must be below that for HOLD_S before it counts as passed
HOLD_S = 2.0
CALL_RETRY_S = 2.0

SESSIONS, CALLS = 1, 2  # levels

MarkName = Literal["loop_lag", "memory", "descriptors"]
What = Literal["session", "call"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Marks:
    """From where on new sessions are refused, and calls."""

    lag_s: float = 1.0
    sessions_share: float = 0.85  # of memory and of descriptors
    calls_share: float = 0.95


class Passed(NamedTuple):
    """A mark that is passed, in words and in numbers: seconds of lag, percent of memory or of descriptors."""

    mark: MarkName
    words: str
    allowed: float = 0.0
    used: float = 0.0


class Level:
    """How far one measure is: 0 is well, from 1 on new sessions are refused, from 2 on calls as well. Rises at once,
    and falls when the measure has been well below the mark for HOLD_S. Pure."""

    __slots__ = ("_calm_since", "_marks", "level")

    def __init__(self, sessions_at: float, calls_at: float) -> None:
        self._marks = (sessions_at, max(sessions_at, calls_at))
        self._calm_since: float | None = None
        self.level = 0

    def look(self, measure: float, now: float) -> int:
        """The level, with this measure."""
        passed = sum(measure >= mark for mark in self._marks)
        near = min(self.level, sum(measure > mark * RELAX for mark in self._marks))
        if passed >= self.level or near == self.level:
            self.level, self._calm_since = max(passed, self.level), None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= HOLD_S:
            self.level, self._calm_since = near, None
        return self.level


class Overload:
    """`sessions` and `calls` say why new ones are refused, while they are; None otherwise."""

    def __init__(
        self,
        metrics: Metrics,
        marks: Marks = Marks(),
        *,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._metrics, self._marks, self._machine, self._clock = metrics, marks, machine or Machine(), clock
        shares = marks.sessions_share, marks.calls_share
        self._levels: dict[MarkName, Level] = {
            "loop_lag": Level(marks.lag_s, marks.lag_s * CALLS_LAG),
            "memory": Level(*shares),
            "descriptors": Level(*shares),
        }
        self._chance = chance
        self.memory = self.descriptors = Use(0, 0)
        self.lag_s = 0.0
        self.line = WaitingLine(chance)
        self.sessions: Passed | None = None
        self.calls: Passed | None = None

    async def run(self) -> None:
        """Measures until it is cancelled."""
        tick = 0
        while True:
            slept_at = self._clock()
            await anyio.sleep(TICK_S)
            now = self._clock()
            self.woke(now - slept_at - TICK_S)
            tick += 1
            if tick % LOOK_EVERY == 0:
                self.look_at_machine()
                self.line.measure(LOOK_EVERY * TICK_S)
            self.decide(now)

    def woke(self, late_s: float) -> None:
        """The event loop came to us so late."""
        late_s = min(max(0.0, late_s), self._marks.lag_s * LONGEST_LAG)
        self.lag_s += LAG_SMOOTHING * (late_s - self.lag_s)

    def look_at_machine(self) -> None:
        """Reads how much memory and how many descriptors there are."""
        metrics = self._metrics
        self.memory, self.descriptors = self._machine.memory(), self._machine.descriptors()
        metrics.loop_lag_seconds.set(self.lag_s)
        metrics.memory_used_bytes.set(self.memory.used)
        metrics.memory_limit_bytes.set(self.memory.limit)
        metrics.descriptors_used.set(self.descriptors.used)
        metrics.descriptors_limit.set(self.descriptors.limit)

    def decide(self, now: float) -> None:
        """What is refused from now on."""
        measures: dict[MarkName, float] = {
            "loop_lag": self.lag_s,
            "memory": self.memory.share,
            "descriptors": self.descriptors.share,
        }
        passed = {mark: self._levels[mark].look(measure, now) for mark, measure in measures.items()}
        sessions, calls = self._first(passed, SESSIONS), self._first(passed, CALLS)
        _tell("new sessions", self.sessions, sessions)
        _tell("calls", self.calls, calls)
        self.sessions, self.calls = sessions, calls

    def _first(self, passed: dict[MarkName, int], level: int) -> Passed | None:
        return next((self._passed(mark, level) for mark, its in passed.items() if its >= level), None)

    def _passed(self, mark: MarkName, level: int) -> Passed:
        marks, words = self._marks, self._words(mark)
        if mark == "loop_lag":
            return Passed(mark, words, marks.lag_s * (CALLS_LAG if level == CALLS else 1), round(self.lag_s, 3))
        used = (self.memory if mark == "memory" else self.descriptors).share
        share = marks.calls_share if level == CALLS else marks.sessions_share
        return Passed(mark, words, round(share * 100, 1), round(used * 100, 1))

    def _words(self, mark: MarkName) -> str:
        if mark == "loop_lag":
            return f"the event loop is {self.lag_s:.1f} s late"
        if mark == "memory":
            return f"{self.memory.share:.0%} of memory is used"
        return f"{self.descriptors.used} of {self.descriptors.limit} file descriptors are used"

    # --- admitting

    def require_room_for_session(self) -> None:
        """Raises Overloaded while new sessions are refused."""
        if self.sessions is not None:
            raise self.refusal("session", self.sessions)

    def refusal(self, what: What, passed: Passed) -> Overloaded:
        """Counts it, and says when to come back."""
        self._metrics.shed.labels(what, passed.mark).inc()
        is_session = what == "session"
        setting = "SHED_LAG_S" if passed.mark == "loop_lag" else f"SHED_{what.upper()}S_PERCENT"
        error = Overloaded(
            f"This node takes no {'new sessions' if is_session else 'calls'} now: {passed.words}",
            retry_after_s=self.come_back_after_s() if is_session else CALL_RETRY_S,
        )
        return error.at(Reached.of_node(passed.mark, setting, passed.allowed, passed.used))

    def come_back_after_s(self) -> float:
        """When a client should try again whose session could not be opened, for whatever want of room."""
        return self.line.place(self._clock())

    @property
    def problem(self) -> str | None:
        """What an operator should know."""
        if self.sessions is None:
            return None
        what = "new sessions are refused" if self.calls is None else "new sessions and calls are refused"
        return f"{what}: {(self.calls or self.sessions).words}"

    def __repr__(self) -> str:
        return f"<Overload {self.problem or 'none'} [{self.lag_s:.2f} s late]>"


def _tell(what: str, before: Passed | None, now: Passed | None) -> None:
    if now is not None and before is None:
        log.warning("Refusing %s: %s", what, now.words)
    elif now is None and before is not None:
        log.warning("Accepting %s again", what)
