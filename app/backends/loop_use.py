"""LoopUse: how much of the time the event loop has something to do."""

import time
from collections.abc import Callable
from pathlib import Path

BUSY_SHARE = 0.5  # of the time: from here on whatever else wants a processor delays what the loop answers
WINDOW_S = 0.15  # the shortest time that is measured; asked sooner, the answer is the last one


def _wanted_s(schedstat: Path = Path("/proc/thread-self/schedstat")) -> float:
    """Seconds in which this thread ran, or could have and waited for a processor."""
    try:
        ran, waited, _ = schedstat.read_text().split()
    except (OSError, ValueError):  # a kernel that does not count the waits
        return time.thread_time()
    return (int(ran) + int(waited)) / 1e9


class LoopUse:
    """For the event loop's thread."""

    def __init__(self, wanted_s: Callable[[], float] = _wanted_s, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted_s, self._clock = wanted_s, clock
        self._at, self._wanted = clock(), wanted_s()
        self._is_busy = False

    def is_busy(self) -> bool:
        """Whether the loop ran, or waited for a processor, for most of the time since this was asked before."""
        now = self._clock()
        if now - self._at >= WINDOW_S:
            wanted = self._wanted_s()
            self._is_busy = wanted - self._wanted >= BUSY_SHARE * (now - self._at)
            self._at, self._wanted = now, wanted
        return self._is_busy
