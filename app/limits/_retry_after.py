"""RetryAfter: spreads the retries of refused clients over time. Pure."""

import random
from collections.abc import Callable

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
