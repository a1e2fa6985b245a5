"""When a backend that dies early may be started again. Pure: clock and chance are passed in."""

from collections.abc import Callable

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
JITTER = 0.25
OPENING_DEATHS = 5
# How many processes of a backend may be started for callers at once before its first handshake has succeeded:
# a burst of callers in front of a broken command must not become a burst of crashes.
UNPROVEN_STARTS = 8


class Breaker:
    """Counts the early deaths of one backend: processes that ended before a handshake succeeded.

    After each, the next start waits twice as long as before. Five in a row open the breaker, however long they take:
    callers are refused instead of waiting. When the delay is over, one trial is let through. A successful handshake
    resets everything.

    Args:
        chance: returns a random number in [0, 1).
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self.is_open = False  # callers are refused
        self.limits_starts = True  # until a handshake has succeeded, and since the last process died early
        self._chance = chance
        self._in_a_row = 0
        self._retry_at = 0.0

    def allowance(self, now: float, *, unproven: int, warm: int) -> int:
        """How many more processes may be started, while it `limits_starts`.

        Three cases: 1. no handshake was tried yet: a few; 2. one failed and the delay runs: none; 3. the delay is over:
        one, if no other process is on trial or warm.

        Args:
            unproven: leased processes whose handshake has neither succeeded nor failed.
            warm: processes that wait for a session.
        """
        if not self._in_a_row:
            return max(0, UNPROVEN_STARTS - unproven)
        if now < self._retry_at:
            return 0
        return 0 if unproven or warm else 1

    @property
    def is_failing(self) -> bool:
        """The last process died early."""
        return self._in_a_row > 0

    def retry_after_s(self, now: float) -> float:
        """How long until a trial is let through."""
        return max(0.0, self._retry_at - now)

    def died_early(self, now: float) -> bool:
        """Counts one early death; returns whether it opened the breaker."""
        self.limits_starts = True
        # Processes that were being started when the first one died say nothing new about how long to wait.
        if self._in_a_row == 0 or now >= self._retry_at or self._in_a_row < OPENING_DEATHS:
            self._in_a_row += 1
            delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** min(self._in_a_row - 1, 16))
            self._retry_at = now + delay_s * (1 + JITTER * (2 * self._chance() - 1))
        was_open, self.is_open = self.is_open, self._in_a_row >= OPENING_DEATHS
        return self.is_open and not was_open

    def succeeded(self) -> bool:
        """A handshake succeeded; returns whether that closed the breaker."""
        was_open = self.is_open
        self.limits_starts, self.is_open = False, False
        self._in_a_row = 0
        return was_open
