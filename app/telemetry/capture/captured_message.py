"""InspectedMessage: one message of an inspected session, as it passed one side of the gateway. Numbers: those of the
messages of one inspection."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

Side = Literal["client", "backend"]
Direction = Literal["to_server", "to_client"]
Kind = Literal["request", "notification", "result", "error", "invalid"]

MAX_BEGUN_S_AGO = 2.0  # as long as a node may take to answer
FIXED_BYTES = 400  # of one that is kept, besides its texts


class InspectedMessage(msgspec.Struct, gc=False):
    """`number` counts within the inspection. `pair` is the same message on the other side of the gateway, `answers` the
    request that it answers, both by number; 0 where there is none. Nothing of it is interpreted: `method`, `tool` and
    `id` are what client and server wrote, cut."""

    number: int
    at: float  # Unix time
    side: Side
    direction: Direction
    kind: Kind
    method: str
    id: str  # the JSON-RPC id on this side, as JSON
    tool: str
    member: str  # of a toolset, by its backend's name
    size: int  # bytes on this side
    pair: int = 0
    answers: int = 0
    took_ms: float | None = None  # of an answer
    payload: str | None = None
    is_cut: bool = False  # there was more of the payload, or all of it was too much
    secrets: int = 0  # places of the payload that are masked
    session: str = ""

    def keep_payload(self, payload: str | None, is_cut: bool, secrets: int) -> None:
        self.payload, self.is_cut, self.secrets = payload, is_cut, secrets

    def found_pair(self, number: int) -> None:
        self.pair = number

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes, about."""
        payload = 0 if self.payload is None else len(self.payload) * (1 if self.payload.isascii() else 4)
        return FIXED_BYTES + len(self.method) + len(self.id) + len(self.tool) + payload


class Place(NamedTuple):
    """Of one node among those that have parts of the same inspection, and how long ago that was begun: the requests to
    open the parts take a while. The clocks of two nodes may differ, which shifts their messages against each other and
    harms nothing else."""

    number: int
    among: int
    begun_s_ago: float = 0.0


class Numbers:
    """1, 2, 3 …; where other nodes have parts too, by the time that has passed: so the numbers of all nodes are in the
    order of their messages, and no two are the same."""

    def __init__(self, place: Place | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._began = clock() - (0.0 if place is None else min(max(place.begun_s_ago, 0.0), MAX_BEGUN_S_AGO))
        self.last = 0

    def next(self) -> int:
        """The number of the next message."""
        if self._place is None:
            self.last += 1
        else:
            number, among = self._place[:2]
            self.last = max(self._moment(), self.last // among + 1) * among + number
        return self.last

    def bound(self) -> int | None:
        """No later message has a lower number; None where nobody needs to know."""
        return None if self._place is None else self._moment() * self._place.among

    def _moment(self) -> int:
        return 1 + int((self._clock() - self._began) * 1_000_000)
