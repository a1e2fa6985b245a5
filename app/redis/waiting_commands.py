"""WaitingCommands: what callers have asked Redis and have no answer to yet. Answers come in the order of the commands.

Who waits gives up one by one; when nothing at all comes, the owner hears of it. Both are counted in turns of the
event loop, which are `TURN_S` long unless this process is late itself: while it waits for the processor it could not
have seen an answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.errors import RoutesUnavailable

TURN_S = 0.025
DEADLINE_S = 0.25  # a healthy Redis answers in a millisecond; a request that waits for it must not be held up
SILENCE_S = 0.5  # requests that may wait longer than that are refused within a second all the same
MAX_WAITING = 20_000  # commands without an answer; above it they are refused


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long Redis may take, in seconds of an event loop that turns quickly.

    When nothing at all has come for `silence_s`, the connection is given up, and nobody waits any more until there is
    an answer.
    """

    command_s: float = DEADLINE_S
    silence_s: float = SILENCE_S


USUAL_DEADLINES = Deadlines()


@dataclass(slots=True, eq=False)
class _Lot:
    """Commands that one caller has sent together, and their answers so far."""

    packed: bytes
    size: int
    answered: asyncio.Future[list[Any]]
    asked_at: int  # which turn of the event loop it was
    replies: list[Any] = field(default_factory=list)

    def is_waited_for(self) -> bool:
        return not self.answered.done()


class WaitingCommands:
    """Those of one owner, over all its connections. `refusal` makes what a caller gets instead of an answer, by its
    reason; `on_silence` is called when nothing has come for `Deadlines.silence_s` although somebody waits."""

    def __init__(
        self, deadlines: Deadlines, refusal: Callable[[str], RoutesUnavailable], on_silence: Callable[[], None]
    ) -> None:
        self._refusal, self._on_silence = refusal, on_silence
        self._unsent: deque[_Lot] = deque()
        self._sent: deque[_Lot] = deque()
        self._impatient: deque[_Lot] = deque()  # those of both with the usual deadline
        self._command_turns = round(deadlines.command_s / TURN_S)
        self._silence_turns = round(deadlines.silence_s / TURN_S)
        self._turn = self._heard_at = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()

    def are_too_many(self) -> bool:
        """Whether no more can be taken."""
        return len(self._unsent) + len(self._sent) >= MAX_WAITING

    def add(self, packed: bytes, size: int, *, is_patient: bool) -> asyncio.Future[list[Any]]:
        """One caller's commands, `size` of them; their answers. Who is patient gives up by himself."""
        loop = asyncio.get_running_loop()
        lot = _Lot(packed, size, loop.create_future(), self._turn)
        if self._ticker is None:  # nothing was awaited, so that nothing could be heard
            self._heard_at = self._turn
            self._ticker = loop.call_later(TURN_S, self._on_turn)
        self._unsent.append(lot)
        self._wake.set()
        if not is_patient:
            self._impatient.append(lot)
        return lot.answered

    # --- the connection

    async def wait_for_unsent(self) -> None:
        """Returns when there is something to send."""
        self._wake.clear()
        if not self._unsent:
            await self._wake.wait()

    def take_unsent(self) -> list[bytes]:
        """What is to be sent now, as far as anybody waits for it; it counts as sent."""
        lots = [lot for lot in self._unsent if lot.is_waited_for()]
        self._unsent.clear()
        self._sent.extend(lots)
        return [lot.packed for lot in lots]

    def answer(self, reply: Any) -> None:
        """Gives it to who has asked first; nobody may be there any more to take it."""
        self._heard_at = self._turn
        lot = self._sent[0]
        lot.replies.append(reply)
        if len(lot.replies) == lot.size:
            self._sent.popleft()
            if lot.is_waited_for():
                lot.answered.set_result(lot.replies)

    def note_sign_of_life(self) -> None:
        """Something was heard that nobody here has asked for."""
        self._heard_at = self._turn

    # --- time

    def _on_turn(self) -> None:
        """One more turn of the event loop in which answers could be read."""
        self._turn += 1
        while self._impatient and self._is_over(self._impatient[0]):
            self._impatient.popleft()
        if self._turn - self._heard_at >= self._silence_turns:
            self._heard_at = self._turn
            self._on_silence()
        is_awaited = self._unsent or self._sent
        self._ticker = asyncio.get_running_loop().call_later(TURN_S, self._on_turn) if is_awaited else None

    def _is_over(self, lot: _Lot) -> bool:
        """Whether its caller waits no longer; its answer, if there will be one, is read all the same."""
        if not lot.is_waited_for():
            return True
        if self._turn - lot.asked_at < self._command_turns:
            return False
        lot.answered.set_exception(self._refusal("timeout"))
        return True

    def stop(self) -> None:
        """Counts no turns any more."""
        if self._ticker is not None:
            self._ticker.cancel()

    # --- the end of a connection

    def refuse_all(self, reason: str) -> None:
        """Nobody waits any more. They stay: an answer that comes in this moment is that of the first that was sent."""
        self._refuse(self._sent, reason)
        self._refuse(self._unsent, reason)

    def fail_sent(self) -> None:
        """The connection is lost on which they were sent."""
        self._refuse(self._sent, "connection")
        self._sent.clear()

    def fail_unsent(self) -> None:
        """There will be no connection soon enough for them."""
        self._refuse(self._unsent, "connection")
        self._unsent.clear()

    def _refuse(self, lots: deque[_Lot], reason: str) -> None:
        for lot in lots:
            if lot.is_waited_for():
                lot.answered.set_exception(self._refusal(reason))

    def __repr__(self) -> str:
        return f"[{len(self._unsent)} unsent, {len(self._sent)} sent]"
