"""SingleFlight: of many that want to know the same thing at once, one asks the store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from app.errors import StorageUnavailable

_K = TypeVar("_K")


@dataclass(slots=True, eq=False)
class _Queue:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    interested: int = 0
    failures: int = 0


class SingleFlight(Generic[_K]):
    """Turns by key. Who has waited for its turn looks first whether the answer is known by now."""

    def __init__(self) -> None:
        self._queues: dict[_K, _Queue] = {}

    @asynccontextmanager
    async def turn(self, key: _K) -> AsyncIterator[None]:
        """Waits until nobody else asks for this key.

        Raises:
            StorageUnavailable: the store was asked meanwhile and could not answer. If each who waits found that out for
                itself, one after the other, the last would wait for as many time-outs as there are before it.
        """
        queue = self._queues.setdefault(key, _Queue())
        queue.interested += 1
        failures = queue.failures
        try:
            async with queue.lock:
                if queue.failures != failures:
                    raise StorageUnavailable
                try:
                    yield
                except StorageUnavailable:
                    queue.failures += 1
                    raise
        finally:
            queue.interested -= 1
            if not queue.interested:
                del self._queues[key]

    def __len__(self) -> int:
        return len(self._queues)
