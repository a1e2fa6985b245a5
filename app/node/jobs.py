"""keep_running: a job of the node, started again where it fails."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import anyio
from prometheus_client import Counter

PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 120.0  # after so long a failure is the first again
MOST_FAILURES = 5

Job = Callable[[], Awaitable[object]]

log = logging.getLogger(__name__)


async def keep_running(name: str, job: Job, failures: Counter, *, is_vital: bool = False) -> None:
    """Runs a job until it ends or is cancelled. Where it fails it is started again, after pauses that get longer; the
    node serves on meanwhile. `job` is called anew each time, and goes on from what its object knows.

    Raises:
        Exception: that of a vital job which has failed MOST_FAILURES times in a row: without it a node must not serve.
    """
    in_a_row = 0
    while True:
        began = time.monotonic()
        try:
            await _uncancelled(job)
            return
        except Exception:
            in_a_row = 1 if time.monotonic() - began > STEADY_S else in_a_row + 1
            failures.labels(name).inc()
            if is_vital and in_a_row >= MOST_FAILURES:
                log.critical("The node cannot run without its job %r, which failed %d times; ending", name, in_a_row)
                raise
            pause_s = PAUSE_S if is_vital else pause_after(in_a_row)
            log.exception(
                "The node's job %r failed; it is started again in %.0f s. Please report this: it is a bug",
                name,
                pause_s,
            )
        await anyio.sleep(pause_s)


async def _uncancelled(job: Job) -> None:
    """Whoever waits for something that another one has cancelled is not cancelled; all jobs would end with this one,
    without a word."""
    try:
        await job()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what it waited for was cancelled") from error


def pause_after(in_a_row: int) -> float:
    """Seconds until the next start of a job that has failed so often."""
    return float(min(PAUSE_S * 2 ** min(in_a_row - 1, 16), LONGEST_PAUSE_S))
