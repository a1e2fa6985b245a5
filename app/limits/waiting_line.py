"""WaitingLine: tells those who are refused when to come back, so that they do not all come at once. Pure."""

import random
from collections.abc import Callable

LEAST_S = 1.0  # Retry-After knows whole seconds only
MOST_S = 30.0  # who is told more goes away, or asks an administrator
FIRST_PACE = 20.0  # sessions a second, until it is known how many it are
LEAST_PACE = 2.0
SMOOTHING = 0.3  # the part of the last second in what counts as the pace


class WaitingLine:
    """Places are given one after the other, at the pace at which sessions have been opened lately. Nobody's place is
    kept: who comes back is let in if there is room then."""

    __slots__ = ("_chance", "_last_place", "_opened", "pace")

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._last_place = 0.0
        self._opened = 0
        self.pace = FIRST_PACE

    def opened(self) -> None:
        """One more session is open."""
        self._opened += 1

    def measure(self, seconds: float) -> None:
        """So long after the last time. A time without sessions says nothing: nobody asked, or all were refused."""
        if self._opened:
            self.pace += SMOOTHING * (self._opened / seconds - self.pace)
            self.pace = max(LEAST_PACE, self.pace)
        self._opened = 0

    def place(self, now: float) -> float:
        """In how many seconds it is the turn of who is refused now."""
        self._last_place = max(self._last_place, now + LEAST_S) + 1 / self.pace
        wait = self._last_place - now
        if wait <= MOST_S:
            return wait
        self._last_place = now + MOST_S  # the line is longer than anybody waits: those at its end come in any order
        return MOST_S * (1 + self._chance()) / 2
