"""LookingTime: how much of the event loop's time may be spent on masking, so that nobody else waits for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional

SHARE_OF_INSPECTION, SHARE_OF_NODE = 0.05, 0.1  # of the time that passes
SAVED_S = 0.2  # what an inspection that has seen nothing for a while may spend at once; a node twice that


class LookingTime:
    """Grows by a share of the time that passes, up to `saved_s`. What is used for one message may exceed it, which the
    next ones make up for. What is used of it is used of `within` too, and `charge` is told."""

    def __init__(
        self,
        share: float = SHARE_OF_INSPECTION,
        saved_s: float = SAVED_S,
        *,
        within: Optional["LookingTime"] = None,
        charge: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._saved_s, self._within, self._charge = share, saved_s, within, charge
        self._clock = clock
        self._left, self._at = saved_s, clock()

    def is_left(self) -> bool:
        now = self._clock()
        self._left = min(self._saved_s, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left > 0 and (self._within is None or self._within.is_left())

    @contextmanager
    def using(self) -> Iterator[None]:
        """Counts what the processor does within this block: that others have it meanwhile is not its fault."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.use(time.thread_time() - began)

    def use(self, seconds: float) -> None:
        self._left -= seconds
        self._charge(seconds)
        if self._within is not None:
            self._within.use(seconds)


def of_node() -> LookingTime:
    """That of all inspections of a node together."""
    return LookingTime(SHARE_OF_NODE, 2 * SAVED_S)
