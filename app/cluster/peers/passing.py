"""Passing: the requests that this node forwards to others. A node that stops drains them like its own calls.

It decides when each has to end; the passage knows how to end its answer cleanly.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

import anyio

from app.errors import ShuttingDown

TICK_S = 0.05
STREAMS_PER_S = 100  # as in `sessions.draining`: clients whose streams end reconnect elsewhere
LAST_ENDS_S = 2.0  # for passages to end, and for clients to read the end


class Kind(Enum):
    CALL = "call"  # an answer, in JSON or on a stream of its own
    LISTENING = "listening"  # a stream without an end, which the client opens again elsewhere
    SESSION = "session"  # the stream of HTTP+SSE, whose end is the end of a session


class Passage(Protocol):
    """A forwarded request."""

    kind: Kind

    def end(self) -> None:
        """Ends an event stream after its last whole event, and tells the client to reconnect; no effect on others."""

    def cut(self) -> None:
        """Tells the client that the outcome is unknown."""


class Passing:
    """The forwarded requests under way."""

    def __init__(self) -> None:
        self._under_way = dict[Passage, None]()
        self._waiting = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._under_way) + self._waiting

    def __iter__(self) -> Iterator[Passage]:
        return iter(list(self._under_way))

    def begin(self, passage: Passage) -> None:
        """Adds a passage until it is `over`. Raises ShuttingDown."""
        self.require_open()
        self._under_way[passage] = None

    def require_open(self) -> None:
        """Raises ShuttingDown once the drain is over: nothing more is forwarded."""
        if self._is_closed:
            raise ShuttingDown

    def over(self, passage: Passage) -> None:
        self._under_way.pop(passage, None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around all tries to find the node for a request, so that no drain ends between two of them.

        Raises ShuttingDown."""
        self.require_open()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def end_streams(self, seconds: float) -> None:
        """Ends streams gradually, those of HTTP+SSE sessions after half of the time. Runs until cancelled, because
        others may begin."""
        half_at, told = time.monotonic() + seconds / 2, set[Passage]()
        while True:
            is_late = time.monotonic() >= half_at
            due = {Kind.LISTENING, Kind.SESSION} if is_late else {Kind.LISTENING}
            left = [each for each in self if each not in told and each.kind in due]
            left_s = max(half_at - time.monotonic(), TICK_S)
            per_tick = math.ceil(TICK_S * max(STREAMS_PER_S, len(left) / left_s))
            for passage in left[: len(left) if is_late else per_tick]:
                told.add(passage)
                passage.end()
            told.intersection_update(self._under_way)
            await anyio.sleep(TICK_S)

    async def finish(self, seconds: float) -> int:
        """Waits until nothing is under way; after the time cuts off what is left. Returns how many calls were cut."""
        if await self._is_done(seconds):
            return 0
        calls = [each for each in self if each.kind is Kind.CALL]
        for passage in self:
            passage.end()
        await self._is_done(min(LAST_ENDS_S, seconds or LAST_ENDS_S))
        for passage in self:
            passage.cut()
        await self._is_done(LAST_ENDS_S)
        return len(calls)

    async def close(self, seconds: float) -> None:
        """Forwards new requests for so long. Then ends what is left, and refuses all others."""
        await anyio.sleep(seconds)
        self._is_closed = True
        for passage in self:
            passage.end()
            passage.cut()

    async def _is_done(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            while len(self):  # noqa: ASYNC110 - no request pays for an event that only a drain needs
                await anyio.sleep(TICK_S)
        return not len(self)
