"""SingleFlight: of several requests that need the same record at once, one asks the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

from app.errors import StorageUnavailable

_K = TypeVar("_K")


class _Queue:
    """The tasks that wait for one key."""

    __slots__ = ("_failures", "_lock", "interested")

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self.interested = self._failures = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.interested += 1
        failures = self._failures
        try:
            async with self._lock:
                if self._failures != failures:
                    raise StorageUnavailable
                try:
                    yield
                except StorageUnavailable:
                    self._failures += 1
                    raise
        finally:
            self.interested -= 1


class SingleFlight(Generic[_K]):
    """One turn at a time for each key. After waiting for its turn, a task looks first whether the answer is known."""

    def __init__(self) -> None:
        self._queues: dict[_K, _Queue] = {}

    @asynccontextmanager
    async def turn(self, key: _K) -> AsyncIterator[None]:
        """Waits until no other task asks for this key.

        Raises:
            StorageUnavailable: another task has asked meanwhile and got no answer. Otherwise the tasks would time out
                one after the other.
        """
        queue = self._queues.setdefault(key, _Queue())
        try:
            async with queue.turn():
                yield
        finally:
            if not queue.interested:
                del self._queues[key]

    def __len__(self) -> int:
        return len(self._queues)
