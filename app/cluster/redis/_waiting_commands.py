"""WaitingCommands: commands to Redis that have no answer yet. Redis answers in the order of the commands.

Each caller has a deadline of its own; when Redis sends nothing at all, the owner is told. Both are counted in turns of
the event loop, `TURN_S` each, and not in wall-clock time: while this process waits for the CPU it cannot read answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.errors import RoutesUnavailable

TURN_S = 0.025
DEADLINE_S = 0.25  # a healthy Redis answers in a millisecond
MAX_WAITING = 20_000  # commands without an answer; more are refused


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long Redis may take, in seconds of an event loop that is not late itself.

    After `silence_s` without any answer the connection is closed, and commands fail at once until Redis answers.
    """

    command_s: float = DEADLINE_S
    silence_s: float = 0.5


USUAL_DEADLINES = Deadlines()


@dataclass(slots=True, eq=False)
class _Lot:
    """The commands of one call, and the answers so far."""

    packed: bytes
    size: int
    answered: asyncio.Future[list[Any]]
    asked_at: int  # turn of the event loop
    replies: list[Any] = field(default_factory=list)

    def is_waited_for(self) -> bool:
        return not self.answered.done()


class WaitingCommands:
    """Outlives connections. `refusal` makes the error for callers from a reason; `on_silence` is called when nothing
    has come for `Deadlines.silence_s` although somebody waits."""

    def __init__(
        self, deadlines: Deadlines, refusal: Callable[[str], RoutesUnavailable], on_silence: Callable[[], None]
    ) -> None:
        self._refusal, self._on_silence = refusal, on_silence
        self._unsent: deque[_Lot] = deque()
        self._sent: deque[_Lot] = deque()
        self._impatient: deque[_Lot] = deque()  # of both, those with the usual deadline
        self._command_turns = round(deadlines.command_s / TURN_S)
        self._silence_turns = round(deadlines.silence_s / TURN_S)
        self._turn = self._heard_at = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()

    def are_too_many(self) -> bool:
        return len(self._unsent) + len(self._sent) >= MAX_WAITING

    def add(self, packed: bytes, size: int, *, is_patient: bool) -> asyncio.Future[list[Any]]:
        """Queues `size` packed commands; the future gets their answers. A patient caller has a deadline of its own."""
        loop = asyncio.get_running_loop()
        lot = _Lot(packed, size, loop.create_future(), self._turn)
        if self._ticker is None:  # nothing was expected until now
            self._heard_at = self._turn
            self._ticker = loop.call_later(TURN_S, self._on_turn)
        self._unsent.append(lot)
        self._wake.set()
        if not is_patient:
            self._impatient.append(lot)
        return lot.answered

    # --- the connection

    async def wait_for_unsent(self) -> None:
        self._wake.clear()
        if not self._unsent:
            await self._wake.wait()

    def take_unsent(self) -> list[bytes]:
        """What to send now, without calls that were given up; it counts as sent."""
        lots = [lot for lot in self._unsent if lot.is_waited_for()]
        self._unsent.clear()
        self._sent.extend(lots)
        return [lot.packed for lot in lots]

    def answer(self, reply: Any) -> None:
        """Gives the reply to the oldest call, which may have been given up."""
        self._heard_at = self._turn
        lot = self._sent[0]
        lot.replies.append(reply)
        if len(lot.replies) == lot.size:
            self._sent.popleft()
            if lot.is_waited_for():
                lot.answered.set_result(lot.replies)

    def note_sign_of_life(self) -> None:
        """Redis has answered something that was not asked through this object."""
        self._heard_at = self._turn

    # --- time

    def _on_turn(self) -> None:
        self._turn += 1
        while self._impatient and self._is_over(self._impatient[0]):
            self._impatient.popleft()
        if self._turn - self._heard_at >= self._silence_turns:
            self._heard_at = self._turn
            self._on_silence()
        is_awaited = self._unsent or self._sent
        self._ticker = asyncio.get_running_loop().call_later(TURN_S, self._on_turn) if is_awaited else None

    def _is_over(self, lot: _Lot) -> bool:
        """Whether the call has ended, or ends now at its deadline; its answer is still read, if it comes."""
        if not lot.is_waited_for():
            return True
        if self._turn - lot.asked_at < self._command_turns:
            return False
        lot.answered.set_exception(self._refusal("timeout"))
        return True

    def stop(self) -> None:
        """Stops the timer."""
        if self._ticker is not None:
            self._ticker.cancel()

    # --- the end of a connection

    def refuse_all(self, reason: str) -> None:
        """Fails all calls. They stay in the queue: an answer that still comes belongs to the first one sent."""
        self._refuse(self._sent, reason)
        self._refuse(self._unsent, reason)

    def fail_sent(self) -> None:
        """Their connection is lost."""
        self._refuse(self._sent, "connection")
        self._sent.clear()

    def fail_unsent(self) -> None:
        """No connection could be made."""
        self._refuse(self._unsent, "connection")
        self._unsent.clear()

    def _refuse(self, lots: deque[_Lot], reason: str) -> None:
        for lot in lots:
            if lot.is_waited_for():
                lot.answered.set_exception(self._refusal(reason))
