"""Connections: all client connections of a node, their limits and deadlines.

When a new one does not fit, the unauthenticated ones that have been idle for longest are closed; an authenticated one
never is. What unauthenticated clients send is parsed, and their requests are started, a few at a time.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from app.http.client_address import TrustedProxies, is_loopback, limited_address
from app.http.edge._refusals import ADDRESS_LIMIT, CONNECTION_LIMIT, DESCRIPTORS_SHORT, MADE_ROOM, Refusal
from app.limits.descriptors import NO_LIMIT, for_connections

MAX_NODES = 1_000
TURNS_PER_ROUND = 2
PIECE_BYTES = 16 << 10  # read of an unauthenticated client, and parsed of any client, in one go
SWEEP_S = 1.0
# How many are closed to make room: several at once, so that not every new connection searches through all others.
LEAST_ROOM, ROOM_PART = 2, 64
FRESH_S = 0.1  # so long after it was made, the first request of a connection is on its way
LEAST_RESERVE, MOST_RESERVE = 32, 1_024  # descriptors


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`descriptors`: where a connection gets one from this number on, idle ones of unauthenticated clients are closed.
    `last_descriptor`: none gets one from this number on."""

    connections: int = NO_LIMIT
    per_address: int = NO_LIMIT
    descriptors: int = NO_LIMIT
    last_descriptor: int = NO_LIMIT
    handshake_s: float = 10.0  # from the connection, where the gateway serves TLS
    head_s: float = 10.0  # from the connection or its handshake, or from the first byte of a later head
    idle_s: float = 30.0
    body_s: float = 33.0  # the application itself answers 408 after 30 s
    stalled_s: float = 33.0  # the client reads nothing of an answer; streams end themselves after 30 s
    closing_s: float = 5.0  # the same, of a connection that is being closed
    left_alone_s: float = 10.0  # about so long a flooding connection stays open, unread
    lingering_s: float = 1.0  # for the client to read a refusal

    @property
    def fresh_descriptor(self) -> int:
        """Below it a connection gets one beside others that were just made, instead of the place of one of them."""
        return (self.descriptors + self.last_descriptor) // 2


def descriptors_for_connections(limit: int) -> tuple[int, int]:
    """`descriptors` and `last_descriptor` where the process may open so many. Unauthenticated clients leave a quarter,
    with bounds, to sessions."""
    last = for_connections(limit)
    return min(last, limit - max(LEAST_RESERVE, min(MOST_RESERVE, limit // 4))), last


class Connection(Protocol):
    """The part of an `EdgeProtocol`, or of a `Handshake`, that is used here."""

    deadline: float  # when `look` is due
    since: float  # when it was made, or answered last

    @property
    def is_kept(self) -> bool: ...
    @property
    def is_dispensable(self) -> bool: ...
    @property
    def has_unread(self) -> bool: ...
    @property
    def is_stuck(self) -> bool: ...
    def look(self) -> None: ...
    def give_up(self, refusal: Refusal) -> None: ...
    def end_with_answer(self) -> None: ...


class Connections:
    """Not thread-safe: for the event loop's thread."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        proxies: TrustedProxies | None = None,
        *,
        on_refused: Callable[[str, str, str], None] = lambda reason, client, request: None,
        clock: Callable[[], float] = time.monotonic,
        free_descriptor: Callable[[], int] = lambda: 0,
    ) -> None:
        """`on_refused` is called for each connection that is refused, or closed for what its client did: with the
        reason, the client's address and the X-Request-Id of the answer ("" if there is none)."""
        self.limits, self.proxies = limits or ConnectionLimits(), proxies or TrustedProxies()
        self.on_refused = on_refused
        self._clock, self._looked_at, self._free_descriptor = clock, clock(), free_descriptor
        self._most = self.limits.connections  # less until the next sweep when descriptors run short
        self.now = 0.0  # seconds that the event loop has run; does not advance while it is blocked
        # With the address that each counts for, and when it was made.
        self._open: dict[Connection, tuple[str | None, float]] = {}
        self._of_address: dict[str, int] = {}
        self._nodes: dict[str, None] = {}
        self.read_into = memoryview(bytearray(PIECE_BYTES))
        self._in_line = OrderedDict[Callable[[], None], None]()  # per connection at most a request and a piece
        self._gives_turns = False  # whether _give_turns is scheduled
        self.node_leaves = False

    def __len__(self) -> int:
        return len(self._open)

    def admit(
        self, connection: Connection, address: str, descriptor: int, after: Connection | None = None
    ) -> Refusal | None:
        """Counts a connection until `leave`; returns why it is refused, if it is. `after`: its handshake, which was
        counted, and whose place it takes."""
        made_at = self._clock()
        if after is not None:
            self._open[connection] = self._open.pop(after)[0], made_at
            return None
        counted = self.counted_as(address)
        if counted is not None and not self.take(counted):
            return ADDRESS_LIMIT
        refusal = self._is_full(descriptor)
        if refusal is not None and not (
            self._make_room(made_at - FRESH_S, descriptor)
            or self._fits(refusal, descriptor, self.limits.fresh_descriptor)
            or self._make_room(made_at, descriptor)
            or self._fits(refusal, descriptor, self.limits.last_descriptor)
        ):
            self.give_back(counted)
            return refusal
        self._open[connection] = counted, made_at
        return None

    def leave(self, connection: Connection) -> None:
        """The connection is closed. Does nothing if it was not admitted."""
        self.give_back(self._open.pop(connection, (None, 0.0))[0])

    def trust_node(self, connection: Connection, address: str) -> None:
        """Another node has authenticated on this connection: connections from its address are no longer counted."""
        if len(self._nodes) >= MAX_NODES:
            del self._nodes[next(iter(self._nodes))]
        self._nodes[address] = None
        if connection in self._open:
            counted, made_at = self._open[connection]
            self.give_back(counted)
            self._open[connection] = None, made_at

    def leave_with_answers(self) -> None:
        """Before this node stops: from now on each answer on `/t/` closes its connection, with `Connection: close`."""
        self.node_leaves = True
        for connection in self._open:
            connection.end_with_answer()

    @property
    def has_kept(self) -> bool:
        """Whether a client may still send a request on a connection that is idle."""
        return any(connection.is_kept for connection in self._open)

    def lent(self) -> int:
        """How many descriptors of sessions fresh connections have. They give them back when they are fresh no more, so
        sessions need not be refused for their sake."""
        beyond = min(self._free_descriptor(), self.limits.fresh_descriptor) - self.limits.descriptors
        if beyond <= 0:
            return 0
        return min(beyond, sum(each.is_dispensable for each in self._open))

    # --- turns of unauthenticated clients

    def take_turns(self, turn: Callable[[], None]) -> None:
        """Queues a callback that starts or parses a request of an unauthenticated client: TURNS_PER_ROUND of them run
        in each round of the event loop, so that authenticated clients need not wait for them."""
        self._in_line[turn] = None
        if not self._gives_turns:
            self._give_turns_soon()

    def leave_line(self, turn: Callable[[], None]) -> None:
        """Removes the callback from the queue, if it is there."""
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
        finally:  # one that fails must not stop the others
            self._give_turns_soon()

    # --- per address

    def counted_as(self, address: str) -> str | None:
        """The key for the limit per address; None if it does not apply: this machine, trusted proxies, our nodes."""
        if is_loopback(address) or address in self.proxies or address in self._nodes:
            return None
        return limited_address(address)

    def take(self, counted: str) -> bool:
        """Counts a connection, or a request through a proxy, for this address; False at its limit."""
        number = self._of_address.get(counted, 0)
        if number >= self.limits.per_address:
            return False
        self._of_address[counted] = number + 1
        return True

    def give_back(self, counted: str | None) -> None:
        """Undoes `take`."""
        if counted is None:
            return
        self._of_address[counted] -= 1
        if not self._of_address[counted]:
            del self._of_address[counted]

    # --- time

    def sweep(self) -> None:
        """Checks connections past their deadline. Called every SWEEP_S, instead of a timer for each connection."""
        read = self._clock()
        # What arrived while the loop was blocked has not been read yet, and must not count as late.
        self.now += min(read - self._looked_at, 2 * SWEEP_S)
        self._looked_at = read
        now = self.now
        for connection in [each for each in self._open if each.deadline <= now or each.is_stuck]:
            connection.look()

        free = self._free_descriptor()
        if free < self.limits.descriptors:
            self._most = self.limits.connections
        else:
            self._make_room(read - FRESH_S, free)

    def _is_full(self, descriptor: int) -> Refusal | None:
        if len(self._open) >= self.limits.connections:
            return CONNECTION_LIMIT
        if descriptor >= self.limits.descriptors:
            # The lowest free descriptor is given first, so all below are taken. Freed ones below would be reused
            # without reaching this number again: so the present count is the limit until the next sweep.
            self._most = min(self._most, len(self._open))
            return DESCRIPTORS_SHORT
        return DESCRIPTORS_SHORT if len(self._open) >= self._most else None

    def _fits(self, refusal: Refusal, descriptor: int, limit: int) -> bool:
        """Whether a connection for which nobody makes room gets one of the descriptors that sessions leave to it."""
        return refusal is DESCRIPTORS_SHORT and descriptor < limit

    def _make_room(self, made_by: float, descriptor: int) -> bool:
        """Closes the dispensable connections made by then that have been idle for longest; False if there is none. All
        go that have got descriptors of sessions while they were fresh."""
        dispensable = [each for each, (_, made_at) in self._open.items() if made_at <= made_by and each.is_dispensable]
        beyond = min(descriptor + 1, self.limits.fresh_descriptor) - self.limits.descriptors
        number = max(LEAST_ROOM, len(self._open) // ROOM_PART, beyond)
        longest = nsmallest(2 * number, dispensable, key=lambda each: each.since)
        room = [each for each in longest if not each.has_unread][:number]  # else its request has come, and is read next
        for connection in room:
            connection.give_up(MADE_ROOM)
        return bool(room)
