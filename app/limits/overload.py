"""Overload: load shedding while the event loop is late, or memory or file descriptors run out.

New sessions are refused first, calls last. One task measures; admitting something only looks at one attribute.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio

from app.errors import LimitReached, Overloaded
from app.limits._machine import Machine, Use
from app.limits.descriptors import for_sessions
from app.telemetry.metrics import Metrics

LEAST_S = 1.0  # Retry-After has whole seconds only
MOST_S = 30.0  # clients do not wait longer
FIRST_RATE = 20.0  # sessions per second, until the real rate is known
LEAST_RATE = 2.0
SMOOTHING = 0.3  # weight of the last measurement


class RetryAfter:
    """Spreads refused clients at the rate at which sessions were opened lately. It reserves nothing: a client that
    comes back is admitted if there is room then."""

    __slots__ = ("_chance", "_last_at", "_opened", "rate")

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._last_at = 0.0  # when the last refused client is to come back
        self._opened = 0
        self.rate = FIRST_RATE

    def session_opened(self) -> None:
        self._opened += 1

    def measure(self, seconds: float) -> None:
        """Updates the rate, so many seconds after the last update. An interval in which no session was opened does not
        count: nobody asked, or all were refused."""
        if self._opened:
            self.rate += SMOOTHING * (self._opened / seconds - self.rate)
            self.rate = max(LEAST_RATE, self.rate)
        self._opened = 0

    def next_s(self, now: float) -> float:
        """After how many seconds the client that is refused now should come back."""
        self._last_at = max(self._last_at, now + LEAST_S) + 1 / self.rate
        wait = self._last_at - now
        if wait <= MOST_S:
            return wait
        self._last_at = now + MOST_S  # from here on clients come back in random order
        return MOST_S * (1 + self._chance()) / 2


TICK_S = 0.1
LOOK_EVERY = 5  # ticks between two looks at memory and descriptors
LAG_SMOOTHING = 0.2
# A single standstill, however long, stays below the mark: StandstillDetector deals with those.
LONGEST_LAG = 0.96 / LAG_SMOOTHING
CALLS_LAG = 3  # calls are refused at so many times the lag for new sessions
RELAX = 0.95  # of a mark: below that for HOLD_S, and the mark is no longer exceeded
HOLD_S = 2.0
CALL_RETRY_S = 2.0

SESSIONS, CALLS = 1, 2  # levels

MarkName = Literal["loop_lag", "memory", "descriptors"]
What = Literal["session", "call"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Marks:
    """The measures from which on new sessions, and calls, are refused."""

    lag_s: float = 1.0
    sessions_share: float = 0.85  # of memory; of descriptors too, unless too few would be left for connections
    calls_share: float = 0.95


class Passed(NamedTuple):
    """A mark that is exceeded, in words and numbers: seconds of lag, percent of memory or of descriptors."""

    mark: MarkName
    words: str
    allowed: float = 0.0
    used: float = 0.0


class Level:
    """The level of one measure: at SESSIONS new sessions are refused, at CALLS calls too. It rises at once, and falls
    when the measure has been below RELAX of the mark for HOLD_S. Pure."""

    __slots__ = ("_calm_since", "level", "marks")

    def __init__(self, sessions_at: float, calls_at: float) -> None:
        self.marks = (sessions_at, max(sessions_at, calls_at))
        self._calm_since: float | None = None
        self.level = 0

    def move(self, sessions_at: float, calls_at: float) -> None:
        """The marks are others from now on."""
        self.marks = (sessions_at, max(sessions_at, calls_at))

    def look(self, measure: float, now: float) -> int:
        """The level after this measurement."""
        passed = sum(measure >= mark for mark in self.marks)
        near = min(self.level, sum(measure > mark * RELAX for mark in self.marks))
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
        due: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`due`: what `due_to_clients` says now."""
        self._metrics, self._marks, self._machine, self._clock = metrics, marks, machine or Machine(), clock
        self._count_due, self._due = due, 0
        shares = marks.sessions_share, marks.calls_share
        self._levels: dict[MarkName, Level] = {
            "loop_lag": Level(marks.lag_s, marks.lag_s * CALLS_LAG),
            "memory": Level(*shares),
            "descriptors": Level(*shares),
        }
        self.memory = self.descriptors = Use(0, 0)
        self.lag_s = 0.0
        self.retry_after = RetryAfter(chance)
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
                self.retry_after.measure(LOOK_EVERY * TICK_S)
            self.decide(now)

    def woke(self, late_s: float) -> None:
        """The event loop has woken the task so late."""
        late_s = min(max(0.0, late_s), self._marks.lag_s * LONGEST_LAG)
        self.lag_s += LAG_SMOOTHING * (late_s - self.lag_s)

    def look_at_machine(self) -> None:
        """Measures memory and descriptors, and updates the gauges."""
        metrics = self._metrics
        self.memory, self.descriptors = self._machine.memory(), self._machine.descriptors()
        if limit := self.descriptors.limit:
            sessions_at = for_sessions(limit, self._marks.sessions_share) / limit
            self._levels["descriptors"].move(sessions_at, self._marks.calls_share)
            self._due = self._count_due()
        metrics.loop_lag_seconds.set(self.lag_s)
        metrics.memory_used_bytes.set(self.memory.used)
        metrics.memory_limit_bytes.set(self.memory.limit)
        metrics.descriptors_used.set(self.descriptors.used)
        metrics.descriptors_limit.set(self.descriptors.limit)

    def decide(self, now: float) -> None:
        """Updates what is refused."""
        measures: dict[MarkName, float] = {
            "loop_lag": self.lag_s,
            "memory": self.memory.share,
            "descriptors": Use(self.descriptors.used + self._due, self.descriptors.limit).share,
        }
        passed = {mark: self._levels[mark].look(measure, now) for mark, measure in measures.items()}
        sessions, calls = self._first(passed, SESSIONS), self._first(passed, CALLS)
        _tell("new sessions", self.sessions, sessions)
        _tell("calls", self.calls, calls)
        self.sessions, self.calls = sessions, calls

    def _first(self, passed: dict[MarkName, int], level: int) -> Passed | None:
        return next((self._passed(mark, level) for mark, its in passed.items() if its >= level), None)

    def _passed(self, mark: MarkName, level: int) -> Passed:
        marks = self._marks
        if mark == "loop_lag":
            words = f"the event loop is {self.lag_s:.1f} s late"
            return Passed(mark, words, marks.lag_s * (CALLS_LAG if level == CALLS else 1), round(self.lag_s, 3))
        share = self._levels[mark].marks[level - 1]
        if mark == "memory":
            use, words = self.memory, f"{self.memory.share:.0%} of memory is used"
        else:
            use = self.descriptors
            words = f"{use.used} of {use.limit} file descriptors are used"
            if self._due > 0 and level == SESSIONS:
                use, words = Use(use.used + self._due, use.limit), f"{words}, and {self._due} are kept for connections"
        return Passed(mark, words, round(share * 100, 1), round(use.share * 100, 1))

    # --- admitting

    def require_room_for_session(self) -> None:
        """Raises Overloaded while new sessions are refused."""
        if self.sessions is not None:
            raise self.refusal("session", self.sessions)

    def refusal(self, what: What, passed: Passed) -> Overloaded:
        """Counts a refusal, and says when to try again."""
        self._metrics.shed.labels(what, passed.mark).inc()
        is_session = what == "session"
        setting = "SHED_LAG_S" if passed.mark == "loop_lag" else f"SHED_{what.upper()}S_PERCENT"
        error = Overloaded(f"This node takes no {'new sessions' if is_session else 'calls'} now: {passed.words}")
        error.again_after(self.retry_after_s() if is_session else CALL_RETRY_S)
        return error.at(LimitReached.of_node(passed.mark, setting, passed.allowed, passed.used))

    def retry_after_s(self) -> float:
        """Seconds after which a client should retry whose session was refused for lack of room."""
        return self.retry_after.next_s(self._clock())

    @property
    def problem(self) -> str | None:
        """What is refused and why, for the operator."""
        if self.sessions is None:
            return None
        what = "new sessions are refused" if self.calls is None else "new sessions and calls are refused"
        return f"{what}: {(self.calls or self.sessions).words}"


def _tell(what: str, before: Passed | None, now: Passed | None) -> None:
    if now is not None and before is None:
        log.warning("Refusing %s: %s", what, now.words)
    elif now is None and before is not None:
        log.warning("Accepting %s again", what)
