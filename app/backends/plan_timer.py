"""When the pool makes a plan: after something has happened, and at times that were named."""

import asyncio
from collections.abc import Callable


class PlanTimer:
    """Calls `make_plan` from the event loop, never from inside the call that asks for it."""

    def __init__(self, make_plan: Callable[[], None], clock: Callable[[], float]) -> None:
        self._make_plan, self._clock = make_plan, clock
        self._handle: asyncio.TimerHandle | None = None
        self._is_due = False
        self._is_closed = False

    def soon(self) -> None:
        """Once per turn of the loop, however much has happened in it."""
        if not self._is_due and not self._is_closed:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def at(self, when: float) -> None:
        """One timer for everything; one that rings too early only sets itself again."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, when - self._clock()) + 0.001
        if self._handle is not None:
            if self._handle.when() <= due:
                return
            self._handle.cancel()
        self._handle = loop.call_at(due, self._on_timer)

    def close(self) -> None:
        """No plan is made any more."""
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _on_timer(self) -> None:
        self._handle = None
        self.soon()

    def _run(self) -> None:
        self._is_due = False
        if not self._is_closed:
            self._make_plan()
