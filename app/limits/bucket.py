"""TokenBucket: so many per second on average, so many at once. Pure: the clock is passed in."""


class TokenBucket:
    """Starts full. `take` costs a subtraction and a comparison, so it may stand on the message path."""

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens, self._at = self.burst, now

    def take(self, now: float) -> float:
        """Takes one token; returns 0.0, or how many seconds until there is one, and then takes none."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if tokens >= 1.0:
            self._tokens = tokens - 1.0
            return 0.0
        self._tokens = tokens
        return (1.0 - tokens) / self.rate

    def configure(self, rate: float, burst: float) -> None:
        """New limits for what comes from now on; what was spent stays spent."""
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens = min(self._tokens, self.burst)
