"""PeerLine: who waits for a connection to one node, first come, first served.

Nobody in it is refused because somebody else's connection is late: on a busy machine one always is. Who waits hears
that the node is gone when nothing has been heard of it at all, and that it is busy when their own patience has ended.
Both are counted in turns of this process's event loop, as in `app.patience`, with one timer for the whole line.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from app.errors import NodeUnavailable
from app.peers.connection import Deadlines, PeerConnection, PeerUnreachable

TURNS = 10  # of the event loop until silence counts


class PeerLine:
    """`keep` takes a connection back that was given to somebody who has left."""

    def __init__(self, limit: int, deadlines: Deadlines, keep: Callable[[PeerConnection], object]) -> None:
        silence_s = deadlines.connect_s + deadlines.greet_s
        self._limit, self._keep = limit, keep
        self._turn_s, self._patience_turns = silence_s / TURNS, max(TURNS, round(deadlines.head_s / silence_s * TURNS))
        self._waiting = deque[tuple[int, asyncio.Future[PeerConnection | None]]]()  # since which turn
        self._turn = self._heard_at = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> PeerConnection | None:
        """A connection that comes free; None where it is the caller's turn to open one.

        Raises:
            PeerUnreachable: nothing was heard of the node; or what `fail` was given.
            NodeUnavailable: too many wait already, or it took too long.
        """
        if len(self._waiting) >= self._limit:
            raise NodeUnavailable("as many requests as may be wait for a connection to that node")
        loop = asyncio.get_running_loop()
        if self._timer is None:  # nobody has listened until now
            self._heard_at = self._turn
            self._timer = loop.call_later(self._turn_s, self._on_turn)
        turn: asyncio.Future[PeerConnection | None] = loop.create_future()
        self._waiting.append((self._turn, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # it was given something: the next
                connection = turn.result()
                self.hand(None) if connection is None else self._keep(connection)
            raise

    def hand(self, connection: PeerConnection | None) -> bool:
        """Gives the connection, or the turn to open one, to whoever is first; False where nobody waits."""
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return True
        return False

    def heard(self) -> None:
        """The node has answered something: it lives."""
        self._heard_at = self._turn

    def fail(self, error: NodeUnavailable) -> None:
        """All who wait hear this."""
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
