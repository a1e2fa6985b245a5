"""PeerLine: requests that wait for a connection to one node, first come, first served.

A request is not refused because another one's connection is late: on a busy machine one always is. It fails with
PeerUnreachable when nothing at all was heard of the node, and with NodeUnavailable when it has waited too long itself.
Both are counted in turns of the event loop, as in `app.concurrency.loop_timeout`, with one timer for the whole line.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from app.cluster.peers._connection import Deadlines, PeerConnection, PeerUnreachable
from app.errors import NodeUnavailable

TURNS = 10  # of the event loop without an answer until the node counts as gone


class PeerLine:
    """`keep` takes back a connection that was given to a request that was cancelled."""

    def __init__(self, limit: int, deadlines: Deadlines, keep: Callable[[PeerConnection], object]) -> None:
        silence_s = deadlines.connect_s + deadlines.greet_s
        self._limit, self._keep = limit, keep
        self._turn_s, self._patience_turns = silence_s / TURNS, max(TURNS, round(deadlines.head_s / silence_s * TURNS))
        self._waiting = deque[tuple[int, asyncio.Future[PeerConnection | None]]]()  # since which turn
        self._turn = self._heard_at = 0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> PeerConnection | None:
        """A connection that came free; None if it is the caller's turn to open one. Raises PeerUnreachable or
        NodeUnavailable, as above and from `fail`, and NodeUnavailable if too many wait."""
        if len(self._waiting) >= self._limit:
            raise NodeUnavailable("too many requests wait for a connection to that node")
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._heard_at = self._turn
            self._timer = loop.call_later(self._turn_s, self._on_turn)
        turn: asyncio.Future[PeerConnection | None] = loop.create_future()
        self._waiting.append((self._turn, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # pass it on to the next
                connection = turn.result()
                self.hand(None) if connection is None else self._keep(connection)
            raise

    def hand(self, connection: PeerConnection | None) -> bool:
        """Gives the connection, or the turn to open one, to the first in line; False if there is none."""
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return True
        return False

    def heard(self) -> None:
        """The node has answered something, so it is alive."""
        self._heard_at = self._turn

    def fail(self, error: NodeUnavailable) -> None:
        """Fails all requests in line."""
        waiting, self._waiting = self._waiting, deque()
        for _, turn in waiting:
            if not turn.done():
                turn.set_exception(error)

    def _on_turn(self) -> None:
        self._turn += 1
        if self._turn - self._heard_at >= TURNS:
            self.fail(PeerUnreachable())
        late = NodeUnavailable("that node is busy: no connection to it came free in time")
        while self._waiting and self._turn - self._waiting[0][0] >= self._patience_turns:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(late)
        self._timer = asyncio.get_running_loop().call_later(self._turn_s, self._on_turn) if self._waiting else None
