"""How long something takes, without the time in which a busy machine let nobody run."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import psutil

from tests.integration.gateway import Gateway

PERIOD_S = 0.02


class Stopwatch:
    """Runs from its making on."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes, self._late_s, self._waited_s = processes, 0.0, 0.0
        self._began_at, self._waited_before = time.monotonic(), waited_for_a_processor(processes)

    @property
    def seconds(self) -> float:
        """Without those that the processes waited for a processor, and those that this event loop was woken late."""
        self._note_waits()
        return time.monotonic() - self._began_at - self._waited_s - self._late_s

    async def look(self) -> None:
        while True:
            due_at = time.monotonic() + PERIOD_S
            await anyio.sleep(PERIOD_S)
            self._late_s += max(0.0, time.monotonic() - due_at)
            self._note_waits()

    def _note_waits(self) -> None:
        # One that has ended does not tell any more how long it had waited.
        waited_s = waited_for_a_processor(self._processes) - self._waited_before
        self._waited_s = max(self._waited_s, waited_s)


def stopwatch(*gateways: Gateway) -> AbstractAsyncContextManager[Stopwatch]:
    """Of something that these gateways and their spawners do."""
    return stopwatch_of([psutil.Process(gateway.pid) for gateway in gateways])


@asynccontextmanager
async def stopwatch_of(parents: Sequence[psutil.Process]) -> AsyncIterator[Stopwatch]:
    """Of something that these and their children do; what is done meanwhile should leave the event loop free."""
    watch = Stopwatch([each for parent in parents for each in (parent, *parent.children())])
    looking = asyncio.create_task(watch.look())  # in a task group errors of tests would become groups
    try:
        yield watch
    finally:
        looking.cancel()


def waited_for_a_processor(processes: Sequence[psutil.Process]) -> float:
    """Seconds in which their main threads could have run, and others did (proc(5): schedstat)."""
    found = (Path(f"/proc/{each.pid}/task/{each.pid}/schedstat") for each in processes)
    return sum(int(each.read_text().split()[1]) for each in found if each.exists()) / 1e9
