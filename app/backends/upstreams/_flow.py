"""Flow: when an upstream session's answers are read. Not while its session is held up, and not faster than a flood may
come."""

import asyncio
import time
from collections.abc import Callable

from app.concurrency.loop_share import UNLIMITED, LoopShare
from app.protocol.framing import spared_bytes

FLOOD_BURST_BYTES, FLOOD_BYTES_PER_S = 16 << 20, 4 << 20  # besides answers, as of a process
SMALL_BYTES = 64 << 10  # answers up to this size count like other messages
LEAST_BYTES = 256  # that a message counts, unless it is dropped unread
LEAST_PIECE_BYTES, LEAST_LINE_BYTES = 128, 32  # that a piece of an answer counts, and each line of a stream


class Flow:
    """Asked before each read (`turn`)."""

    def __init__(self, share: LoopShare | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = share or LoopShare(UNLIMITED, "")
        self._clock = clock
        self._open = asyncio.Event()
        self._open.set()
        self._level, self._at = float(FLOOD_BURST_BYTES), clock()

    def pause(self) -> None:
        """Nothing is read from now on. Idempotent."""
        self._open.clear()

    def resume(self) -> None:
        """Undoes `pause`. Idempotent."""
        self._open.set()

    def came(self, size: int) -> None:
        """A message of so many bytes."""
        self._take(max(size, LEAST_BYTES))

    def dropped(self, size: int) -> None:
        """A message that was not read."""
        self._take(size - spared_bytes(size))

    def read(self, size: int, lines: int = 0) -> None:
        """A piece of so many bytes, with so many lines of a stream: what it counts besides the messages in it."""
        least = max(LEAST_PIECE_BYTES, LEAST_LINE_BYTES * lines)
        if size < least:
            self._take(least - size)

    def _take(self, size: int) -> None:
        self._refill()
        self._level -= size

    def asked_for(self, size: int) -> None:
        """So many bytes were an answer."""
        self._refill()
        if size > SMALL_BYTES:
            self._level = min(FLOOD_BURST_BYTES, self._level + size)

    async def turn(self) -> None:
        """Returns when more may be read."""
        while True:
            await self._open.wait()
            self._refill()
            if self._level > 0:
                return await self.share.turn()
            await asyncio.sleep(min(1.0, (1 - self._level) / FLOOD_BYTES_PER_S))

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(FLOOD_BURST_BYTES, self._level + (now - self._at) * FLOOD_BYTES_PER_S)
        self._at = now
