"""When the pool plans: after something has happened, and at given times."""

import asyncio
import math
from collections.abc import Callable


class PlanTimer:
    """Calls `make_plan` from the event loop, never from inside the call that asks for it."""

    def __init__(self, make_plan: Callable[[], None], clock: Callable[[], float]) -> None:
        self._make_plan, self._clock = make_plan, clock
        self._handle: asyncio.Handle | None = None
        self._due_at = math.inf  # when it is due; uvloop's handle cannot say that if this is at once
        self._is_due = False
        self._is_closed = False

    def soon(self) -> None:
        """Plans once in the next turn of the loop, however often this is called."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def at(self, when: float) -> None:
        """Plans at this time of the clock. There is one timer, for the earliest; each plan sets it anew."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, when - self._clock()) + 0.001
        if self._due_at <= due:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._due_at = loop.call_at(due, self._on_timer), due

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _on_timer(self) -> None:
        self._handle, self._due_at = None, math.inf
        self.soon()

    def _run(self) -> None:
        self._is_due = False
        if not self._is_closed:
            self._make_plan()
