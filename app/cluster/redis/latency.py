"""Latency: how long Redis takes to answer, looked at every few seconds."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from app.errors import RoutesUnavailable

LOOK_EVERY_S = 5.0
SLOW_S = 0.1  # a call that opens a session asks a few times
LOOKS = 3  # all of which must have been slow


class Latency:
    """`run` is a task of the node. `ask` sends a command that does nothing; it may raise RoutesUnavailable, which
    others notice."""

    def __init__(self, ask: Callable[[], Awaitable[Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._took = deque[float](maxlen=LOOKS)

    async def run(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Measures once."""
        began = self._clock()
        try:
            await self._ask()
        except RoutesUnavailable:
            self._took.clear()
        else:
            self._took.append(self._clock() - began)

    @property
    def slow_s(self) -> float | None:
        """How long it takes, if that is too long."""
        is_slow = len(self._took) == LOOKS and min(self._took) >= SLOW_S
        return self._took[-1] if is_slow else None
