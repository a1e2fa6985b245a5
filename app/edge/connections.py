"""Connections: those that a node has, how many there may be, and how long one may keep us waiting.

Where another one does not fit, the one that has done nothing for the longest goes, of those that nobody has vouched for
with a credential. So strangers push out strangers, and never a client that was let in. And strangers wait for each
other: what they send is parsed, and their requests are started, a few at a time.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from app.edge.refusals import ADDRESS_LIMIT, CONNECTION_LIMIT, DESCRIPTORS_SHORT, MADE_ROOM, Refusal
from app.http.client_address import TrustedProxies, is_loopback, limited_address

NO_LIMIT = 1 << 30
MAX_NODES = 1_000
TURNS_PER_ROUND = 2
PIECE_BYTES = 16 << 10  # read of a stranger, and parsed of anybody, in one go
SWEEP_S = 1.0
# So many are closed where there is no room: more than one per newcomer, and not a look through all for each of them.
LEAST_ROOM, ROOM_PART = 2, 64
LEAST_RESERVE, MOST_RESERVE = 32, 1_024  # descriptors


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`descriptors`: connections get no number as high as this; what is above is for backends, Redis, the database."""

    connections: int = NO_LIMIT
    per_address: int = NO_LIMIT
    descriptors: int = NO_LIMIT
    head_s: float = 10.0  # from the connection, or from the first byte of a later head
    idle_s: float = 30.0
    body_s: float = 33.0  # the application answers after 30 s, if it still reads
    stalled_s: float = 33.0  # nothing taken of an answer; the streams end themselves after 30 s
    closing_s: float = 5.0  # the same, when nothing more is to come
    left_alone_s: float = 10.0  # about so long until one is closed that has sent too much at once
    lingering_s: float = 1.0  # for a client to read why it was refused


def descriptors_for_connections(limit: int) -> int:
    """A quarter of what the process may open is not for connections, within bounds."""
    return limit - max(LEAST_RESERVE, min(MOST_RESERVE, limit // 4))


def free_descriptor() -> int:
    """The lowest that is free, which is the next one."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NO_LIMIT
    os.close(number)
    return number


class Connection(Protocol):
    """What is asked of one (`EdgeProtocol`)."""

    deadline: float  # when `look` is due
    since: float  # when it was made, or answered last

    @property
    def is_dispensable(self) -> bool:
        """Whether nobody who was let in misses it."""

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the client to take what was written."""

    def look(self) -> None:
        """Ends it, if its time is over."""

    def give_up(self, refusal: Refusal) -> None:
        """Ends it at once."""

    def end_with_answer(self) -> None:
        """The node leaves: see `Connections.leave_with_answers`."""


class Connections:
    """Used from the event loop's thread only."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        proxies: TrustedProxies | None = None,
        *,
        on_refused: Callable[[str, str, str], None] = lambda reason, client, request: None,
        clock: Callable[[], float] = time.monotonic,
        free_descriptor: Callable[[], int] = lambda: 0,
    ) -> None:
        """`on_refused` hears of each connection that was refused, or ended for what its client did: why, whose, and the
        X-Request-Id of the answer where there is one. `free_descriptor` is the number that whatever is opened next
        would get."""
        self.limits, self.proxies = limits or ConnectionLimits(), proxies or TrustedProxies()
        self.on_refused = on_refused
        self._clock, self._looked_at, self._free_descriptor = clock, clock(), free_descriptor
        self._most = self.limits.connections  # less for a moment where descriptors run short
        self.now = 0.0  # the time that the event loop has run; it stands still while that does
        self._open: dict[Connection, str | None] = {}  # and the address each counts for
        self._of_address: dict[str, int] = {}
        self._nodes: dict[str, None] = {}
        self.read_into = memoryview(bytearray(PIECE_BYTES))
        self._in_line = OrderedDict[Callable[[], None], None]()  # of each connection at most a request and a piece
        self._gives_turns = False  # the event loop has been asked to
        self.node_leaves = False

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Connections [{len(self._open)} open, {len(self._of_address)} addresses]>"

    def admit(self, connection: Connection, address: str, descriptor: int) -> Refusal | None:
        """Counts a connection until `leave`; or why there is no place for it."""
        counted = self.counted_as(address)
        if counted is not None and not self.take(counted):
            return ADDRESS_LIMIT
        refusal = self._is_full(descriptor)
        if refusal is not None and not self._make_room():
            self.give_back(counted)
            return refusal
        self._open[connection] = counted
        return None

    def leave(self, connection: Connection) -> None:
        """It is gone. Nothing happens if it was never admitted."""
        self.give_back(self._open.pop(connection, None))

    def trust_node(self, connection: Connection, address: str) -> None:
        """Another node of ours has proved itself on this connection: those from its address are not counted."""
        if len(self._nodes) >= MAX_NODES:
            del self._nodes[next(iter(self._nodes))]
        self._nodes[address] = None
        if connection in self._open:
            self.give_back(self._open[connection])
            self._open[connection] = None

    def leave_with_answers(self) -> None:
        """A node that is about to stop sends its clients away one by one, before it has to cut connections: what it
        answers on `/t/` from now on ends the connection, and says so."""
        self.node_leaves = True
        for connection in self._open:
            connection.end_with_answer()

    # --- whose turn it is

    def take_turns(self, turn: Callable[[], None]) -> None:
        """Starts the request of a stranger, or parses what he sent, when it is its turn. Those of clients who were let
        in need not wait for it: in each round of the event loop they come before the few turns that others have."""
        self._in_line[turn] = None
        if not self._gives_turns:
            self._give_turns_soon()

    def leave_line(self, turn: Callable[[], None]) -> None:
        """Whoever has left has no turn. Nothing happens if it does not stand in line."""
        self._in_line.pop(turn, None)

    def _give_turns_soon(self) -> None:
        self._gives_turns = bool(self._in_line)
        if self._gives_turns:
            asyncio.get_running_loop().call_soon(self._give_turns)

    def _give_turns(self) -> None:
        try:
            for turn in list(islice(self._in_line, TURNS_PER_ROUND)):
                del self._in_line[turn]
                turn()
        finally:  # one that fails does not hold up the others
            self._give_turns_soon()

    # --- per address

    def counted_as(self, address: str) -> str | None:
        """What a limit per address counts; None for those it does not: this machine, our proxies, our nodes."""
        if is_loopback(address) or address in self.proxies or address in self._nodes:
            return None
        return limited_address(address)

    def take(self, counted: str) -> bool:
        """One more connection, or request through a proxy, of this address; False if it has as many as it may."""
        number = self._of_address.get(counted, 0)
        if number >= self.limits.per_address:
            return False
        self._of_address[counted] = number + 1
        return True

    def give_back(self, counted: str | None) -> None:
        """The reverse of `take`."""
        if counted is None:
            return
        number = self._of_address[counted] - 1
        if number:
            self._of_address[counted] = number
        else:
            del self._of_address[counted]

    # --- time

    def sweep(self) -> None:
        """Looks at those whose time is over. The node calls it every SWEEP_S: one clock for all, and no timers."""
        read = self._clock()
        # What arrived while the loop stood still has not been read yet, and must not be late for it.
        self.now += min(read - self._looked_at, 2 * SWEEP_S)
        self._looked_at = read
        now = self.now
        for connection in [each for each in self._open if each.deadline <= now or each.is_stuck]:
            connection.look()

        if self._free_descriptor() < self.limits.descriptors:
            self._most = self.limits.connections
        else:
            self._make_room()

    def _is_full(self, descriptor: int) -> Refusal | None:
        if descriptor >= self.limits.descriptors:
            # Descriptors are given from the lowest, so all below are taken. Those that others give back now are filled
            # without another sign: so what there is in this moment is what there may be, until the next sweep.
            self._most = min(self._most, len(self._open))
            return DESCRIPTORS_SHORT
        if len(self._open) >= self._most:
            return CONNECTION_LIMIT if self._most == self.limits.connections else DESCRIPTORS_SHORT
        return None

    def _make_room(self) -> bool:
        """Ends those that have done nothing for the longest; False if there is none that may be."""
        dispensable = [each for each in self._open if each.is_dispensable]
        number = max(LEAST_ROOM, len(self._open) // ROOM_PART)
        for connection in nsmallest(number, dispensable, key=lambda each: each.since):
            connection.give_up(MADE_ROOM)
        return bool(dispensable)
