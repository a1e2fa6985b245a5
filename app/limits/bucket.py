"""TokenBucket: so many per second on average, so many at once. Pure: the clock is passed in."""

MAX_DEBT_S = 10.0  # how long a level that somebody forged can hold a tenant up


class TokenBucket:
    """Starts full. `take` costs a subtraction and a comparison, so it may stand on the message path.

    Where several nodes share a limit, each spends from a bucket of its own; what all have spent, and so how much there
    really is, is counted elsewhere, and adopted here now and then. In between the nodes together may spend more than
    there is: the level falls below zero, and is made up for.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate", "spent")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens, self._at = self.burst, now
        self.spent = 0  # and not told to anybody yet

    def take(self, now: float) -> float:
        """Takes one token; returns 0.0, or how many seconds until there is one, and then takes none."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if tokens >= 1.0:
            self._tokens = tokens - 1.0
            self.spent += 1
            return 0.0
        self._tokens = tokens
        return (1.0 - tokens) / self.rate

    def wait_for(self, tokens: int, now: float) -> float:
        """0.0 where there are so many, else in how many seconds there will be; takes none."""
        there = min(self.burst, self._tokens + (now - self._at) * self.rate)
        return 0.0 if there >= tokens else (tokens - there) / self.rate

    def tell(self) -> int:
        """What was spent since the last time."""
        spent, self.spent = self.spent, 0
        return spent

    def adopt(self, level: float, now: float) -> None:
        """There was so much left of it, over all nodes, when what `tell` returned last was taken off.

        What has been spent here since then is taken off too.
        """
        self._tokens = min(self.burst, max(level, -self.rate * MAX_DEBT_S)) - self.spent
        self._at = now

    def is_full(self, now: float) -> bool:
        """Whether a new one would be no different."""
        return self._tokens + (now - self._at) * self.rate >= self.burst

    def configure(self, rate: float, burst: float) -> None:
        """New limits for what comes from now on; what was spent stays spent."""
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens = min(self._tokens, self.burst)
