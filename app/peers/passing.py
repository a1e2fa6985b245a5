"""Passing: the requests that other nodes answer through this one. A node that stops drains them like its own calls.

Each passage says what it is. Decides when it has to end; how an answer ends cleanly, the passage knows.
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
STREAMS_PER_S = 100  # as in `sessions.draining`: whoever's stream has ended comes back, elsewhere
LAST_ENDS_S = 2.0  # for what was told to end to do so, and for its client to take it


class Kind(Enum):
    """What waits at the other end."""

    CALL = "call"  # an answer, in JSON or on a stream of its own
    LISTENING = "listening"  # a stream without an end, which the client opens again elsewhere
    SESSION = "session"  # the stream of HTTP+SSE, whose end is the end of a session


class Passage(Protocol):
    """One of them."""

    kind: Kind

    def end(self) -> None:
        """An event stream ends behind its last whole event, and its client is told to come back; else nothing."""

    def cut(self) -> None:
        """Whoever waits is told that the outcome is not known."""


class Passing:
    """What is under way."""

    def __init__(self) -> None:
        self._under_way = dict[Passage, None]()
        self._waiting = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._under_way) + self._waiting

    def __iter__(self) -> Iterator[Passage]:
        return iter(list(self._under_way))

    def begin(self, passage: Passage) -> None:
        """It counts until it is `over`.

        Raises:
            ShuttingDown: this node passes nothing on any more.
        """
        self._require_open()
        self._under_way[passage] = None

    def over(self, passage: Passage) -> None:
        """Nobody waits for it here any more."""
        self._under_way.pop(passage, None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a request that has been sent nowhere yet waits for a node to send it to.

        Raises:
            ShuttingDown: as `begin`.
        """
        self._require_open()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def end_streams(self, seconds: float) -> None:
        """Ends those that have no end, some at a time, within half of the time; those of sessions last. Until it is
        cancelled: others may come."""
        half_at, told = time.monotonic() + seconds / 2, set[Passage]()
        while True:
            is_late = time.monotonic() >= half_at
            left = [each for each in self if each not in told and _is_due(each, is_late=is_late)]
            left_s = max(half_at - time.monotonic(), TICK_S)
            per_tick = math.ceil(TICK_S * max(STREAMS_PER_S, len(left) / left_s))
            for passage in left[: len(left) if is_late else per_tick]:
                told.add(passage)
                passage.end()
            told.intersection_update(self._under_way)
            await anyio.sleep(TICK_S)

    async def finish(self, seconds: float) -> int:
        """Returns when nothing is under way, or the time is over and what was left has ended; how many calls were cut
        off."""
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
        """For so long what has come since is passed on as well. Then what is left ends, and nothing begins or waits."""
        await anyio.sleep(seconds)
        self._is_closed = True
        for passage in self:
            passage.end()
            passage.cut()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ShuttingDown

    async def _is_done(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            while len(self):  # noqa: ASYNC110 - no request pays for an event that only a drain needs
                await anyio.sleep(TICK_S)
        return not len(self)

    def __repr__(self) -> str:
        return f"<Passing [{len(self)} under way]>"


def _is_due(passage: Passage, *, is_late: bool) -> bool:
    return passage.kind is Kind.LISTENING or (is_late and passage.kind is Kind.SESSION)
