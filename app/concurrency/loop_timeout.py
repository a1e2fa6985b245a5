"""loop_timeout: a timeout that counts only the time in which this process could have seen an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEPS = 10


@asynccontextmanager
async def loop_timeout(seconds: float) -> AsyncIterator[None]:
    """Raises TimeoutError after so many seconds in which the event loop was running.

    They are counted in steps, at most one in an iteration of the loop: time in which this process waits for the CPU, or
    is busy with something else, is not counted against the other side.
    """
    async with asyncio.timeout(None) as scope:
        steps = _Steps(scope, seconds / STEPS)
        try:
            yield
        finally:
            steps.timer.cancel()


class _Steps:
    """Ends the scope after STEPS waits of this length or longer."""

    def __init__(self, scope: asyncio.Timeout, length_s: float) -> None:
        self._loop, self._scope, self._length_s, self._left = asyncio.get_running_loop(), scope, length_s, STEPS
        self.timer = self._loop.call_later(length_s, self._step)

    def _step(self) -> None:
        self._left -= 1
        if self._left:
            self.timer = self._loop.call_later(self._length_s, self._step)
        else:
            self._scope.reschedule(self._loop.time())
