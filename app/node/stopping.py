"""StopProgress: what a terminal shows while a node, or several, stop."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Self

from app.text.terminal.progress import FIRST_S, Line

RENEWED_S = 1.0


class StopProgress:
    """A line that is renewed every second on the event loop, from `begin` on until this context manager is left."""

    def __init__(self, words: Callable[[], str], line: Line | None = None) -> None:
        self._words, self._line = words, Line() if line is None else line
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._line.clear()

    @property
    def is_possible(self) -> bool:
        return self._line.is_possible

    def begin(self) -> None:
        """It has been told to stop; only the first time counts."""
        if self._line.is_possible and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FIRST_S, self._show)

    def _show(self) -> None:
        self._line.show(self._words())
        self._timer = asyncio.get_running_loop().call_later(RENEWED_S, self._show)


def drain_words(who: str, calls: int, ends_at: float) -> str:
    """What is left of a drain that ends at this time of the monotonic clock."""
    left_s = math.ceil(ends_at - time.monotonic())
    if left_s <= 0:
        return f"{who}: connections and processes end"
    number = "1 call" if calls == 1 else f"{calls or 'no'} calls"
    return f"{who}: {number} in flight, at most {left_s} s left; Ctrl-C again stops at once"
