"""TokenBucket: a rate limit with bursts. Pure: the clock is passed in."""

MAX_DEBT_S = 10.0  # how long a forged level can block a tenant


class TokenBucket:
    """Starts full. `take` costs a subtraction and a comparison, so it may be on the message path.

    Where several nodes share a limit, each spends from a bucket of its own, and adopts the common level now and then.
    In between they may together spend more than there is: the level then falls below zero, until it has refilled.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate", "spent")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens, self._at = self.burst, now
        self.spent = 0  # since the last `tell`

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
        """How many seconds until there are so many tokens, 0.0 if there are; takes none."""
        there = self.level(now)
        return 0.0 if there >= tokens else (tokens - there) / self.rate

    def level(self, now: float) -> float:
        """How many tokens there are."""
        return min(self.burst, self._tokens + (now - self._at) * self.rate)

    def tell(self) -> int:
        """How many tokens were spent since the last call."""
        spent, self.spent = self.spent, 0
        return spent

    def adopt(self, level: float, now: float) -> None:
        """Takes over the common level, from which the result of the last `tell` is subtracted already; tokens spent
        here since then are subtracted now."""
        self._tokens = min(self.burst, max(level, -self.rate * MAX_DEBT_S)) - self.spent
        self._at = now

    def is_full(self, now: float) -> bool:
        """Whether it is as good as a new bucket."""
        return self._tokens + (now - self._at) * self.rate >= self.burst

    def configure(self, rate: float, burst: float) -> None:
        """Changes rate and burst; spent tokens stay spent."""
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens = min(self._tokens, self.burst)
