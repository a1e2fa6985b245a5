"""What was heard already: changes that come on two ways, notices that come twice, notices that are missing. Pure."""

from collections import deque
from enum import Enum

from app.routing.notice import Notice

MAX_REMEMBERED = 10_000
MAX_SENDERS = 1000


class Way(Enum):
    """How a node learns of a change; the value is for how many seconds the other way is waited for."""

    NOTICE = 60.0  # a sender gives up sooner
    TRAIL = 3600.0  # what is written there comes as soon as the database answers


class Once:
    """Each change takes effect once, though it comes as a notice and in the audit trail, in either order.

    What came on one way is owed by the other. Where one of them stays away something may take effect twice; nothing
    is left out. The clock is passed in.
    """

    def __init__(self) -> None:
        self._owed: dict[tuple[Way, Notice], deque[float]] = {}

    def owe(self, way: Way, notice: Notice, now: float) -> None:
        """It has taken effect, and will come on this way too."""
        if len(self._owed) >= MAX_REMEMBERED:
            self._forget_some(now)
        self._owed.setdefault((way, notice), deque(maxlen=MAX_REMEMBERED)).append(now + way.value)

    def is_repeated(self, way: Way, notice: Notice, now: float) -> bool:
        """Whether this is what was owed; then it is no longer."""
        owed = self._owed.pop((way, notice), None)
        if owed is None:
            return False
        while owed and owed[0] <= now:
            owed.popleft()
        if not owed:
            return False
        owed.popleft()
        if owed:
            self._owed[way, notice] = owed
        return True

    def forget(self, way: Way) -> None:
        """Nothing that was owed on this way is waited for any more."""
        self._owed = {key: owed for key, owed in self._owed.items() if key[0] is not way}

    def _forget_some(self, now: float) -> None:
        """What never came; and the oldest half, if that is not enough."""
        kept = {key: owed for key, owed in self._owed.items() if owed[-1] > now}
        if len(kept) >= MAX_REMEMBERED:
            kept = dict(list(kept.items())[len(kept) // 2 :])
        self._owed = kept

    def __repr__(self) -> str:
        return f"<Once [{len(self._owed)} owed]>"


class Numbers:
    """Each sender numbers its notices."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def step(self, sender: str, number: int) -> int:
        """How far this one is from the last: 1 is the next, less was there before, more means that some are missing.

        Of a sender that was not heard before, any is the next.
        """
        last = self._last.pop(sender, number - 1)
        if len(self._last) >= MAX_SENDERS:
            del self._last[next(iter(self._last))]
        self._last[sender] = max(last, number)
        return number - last
