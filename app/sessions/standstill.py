"""A node that stands still for so long that another may own its sessions by now: Fence notices it, HeldLines keeps what
processes say meanwhile, StandstillGuard finds out what is still this node's."""

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sized
from functools import partial
from typing import Protocol

import anyio

from app.errors import OwnershipUnknown, RoutesUnavailable

GAP_S = 3.0  # a lease runs 5 s from the last beat, and beats are up to a second apart
PROOFS = 3  # for a node that stands still again while it proves; then it goes on with what it knows

log = logging.getLogger(__name__)

since_boot: Callable[[], float]  # in seconds, of which `time.monotonic` leaves out those that a suspended machine slept
if sys.platform == "linux":
    since_boot = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    since_boot = time.monotonic


class Fence:
    """Shared by all sessions of a node. Open while `tick` is called at least every GAP_S.

    `clock` must go on while the machine is suspended, as leases do in Redis. A virtual machine that is paused from
    outside has no such clock: there the next beat finds the lease gone.
    """

    __slots__ = ("_clock", "ticked_at")

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self.ticked_at = clock()

    def is_closed(self) -> bool:
        """Whether nothing may be accepted or delivered before `open`."""
        return self._clock() - self.ticked_at > GAP_S

    def tick(self) -> bool:
        """The node runs; False where it has stood still, and must prove first what it owns."""
        now = self._clock()
        if now - self.ticked_at > GAP_S:
            return False
        self.ticked_at = now
        return True

    def now(self) -> float:
        """The time by the fence's clock."""
        return self._clock()

    def open(self, asked_at: float) -> None:
        """What the node owns has been proved, or cannot be, by who began to ask then. It stays closed if that is a gap
        ago: what was true then may be out of date."""
        self.ticked_at = asked_at


class HeldLines:
    """What one session's process has said behind a closed fence, until it is known that the session is still ours.

    `pressure` hears that no more is to be read meanwhile.
    """

    __slots__ = ("_lines", "_pressure")

    def __init__(self, pressure: Callable[[bool], None]) -> None:
        self._pressure = pressure
        self._lines: list[bytes] | None = None

    def add(self, line: bytes) -> None:
        """Keeps a line."""
        if self._lines is None:
            self._lines = []
            self._pressure(True)
        self._lines.append(line)

    def take(self) -> list[bytes]:
        """What there is, oldest first; reading goes on."""
        lines, self._lines = self._lines, None
        if lines is None:
            return []
        self._pressure(False)
        return lines


class Guarded(Protocol):
    """A session, as the guard sees it."""

    def deliver_held(self) -> None:
        """It is still ours: what its process has said goes its way."""

    def close(self, reason: str) -> None:
        """Ends it."""


class StandstillGuard:
    """Opens the fence once it is known what this node still owns. `prove_routes` asks for every route, from when the
    gap began, by the fence's clock; it tells the sessions that are not ours any more."""

    def __init__(
        self,
        fence: Fence,
        sessions: Iterable[Guarded],
        routes: Sized,
        prove_routes: Callable[[float], Awaitable[None]],
    ) -> None:
        self.fence = fence
        self._sessions, self._routes, self._prove_routes = sessions, routes, prove_routes
        self._proving = anyio.Lock()
        self._failed_proofs = 0

    async def prove(self) -> None:
        """After a gap: asks for every route whether it is still ours, ends what is not, and opens the fence.

        With the store out of reach, for as long as `prove_routes` tries, the node goes on. Not if its lease ended in
        the gap (OwnershipUnknown): then another node may have what this one has, and the fence stays closed until the
        store answers (docs/decisions.md).
        """
        failures = self._failed_proofs
        async with self._proving:
            if not self.fence.is_closed() or self._failed_proofs != failures:
                return  # somebody else has asked meanwhile
            try:
                await self._prove()
            except OwnershipUnknown:
                self._failed_proofs += 1
                log.warning("this node's lease ended while it stood still: nothing is served until Redis answers")
                return
            for session in self._sessions:
                _deliver_held(session)

    async def _prove(self) -> None:
        for _ in range(PROOFS):
            log.warning("the node stood still; it proves what it owns: %d routes", len(self._routes))
            asked_at = self.fence.now()
            try:
                await self._prove_routes(self.fence.ticked_at)
            except OwnershipUnknown:
                raise
            except RoutesUnavailable:
                log.warning("what this node owns could not be proved: the route store does not answer")
            self.fence.open(asked_at)
            if not self.fence.is_closed():
                return
        self.fence.open(self.fence.now())


def _deliver_held(session: Guarded) -> None:
    try:
        session.deliver_held()
    except Exception:
        log.exception("what a session's process has said could not be delivered")
        session.close("internal_error")
