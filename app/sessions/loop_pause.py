"""After a standstill other nodes may own this node's sessions. StandstillDetector notices it, HeldLines keeps what
processes say meanwhile, StandstillGuard verifies which sessions are still this node's."""

import logging
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sized
from functools import partial

import anyio

from app.errors import OwnershipUnknown, RoutesUnavailable

GAP_S = 3.0  # a lease runs 5 s from the last heartbeat, and heartbeats are up to a second apart
PROOFS = 3  # attempts of a node that stands still again while it verifies; then it goes on with what it knows

log = logging.getLogger(__name__)

since_boot: Callable[[], float]  # in seconds, with the time that the machine was suspended; `time.monotonic` is without
if sys.platform == "linux":
    since_boot = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:
    since_boot = time.monotonic


class StandstillDetector:
    """Notices that `tick` was not called for more than GAP_S: the node stood still. One per node.

    `clock` must go on while the machine is suspended, as leases do in Redis. A virtual machine that is paused from
    outside has no such clock: there the next heartbeat finds that the lease has expired.
    """

    __slots__ = ("_clock", "ticked_at")

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self.ticked_at = clock()

    def is_detected(self) -> bool:
        """Whether nothing may be accepted or delivered until `resolved` is called."""
        return self._clock() - self.ticked_at > GAP_S

    def tick(self) -> bool:
        """The node runs. Returns False after a standstill: then it must first verify what it owns."""
        now = self._clock()
        if now - self.ticked_at > GAP_S:
            return False
        self.ticked_at = now
        return True

    def has_stood_still(self) -> bool:
        """Whether the node did since this was called last. For who has nothing to verify, and a detector of its own."""
        has = not self.tick()
        if has:
            self.resolved(self._clock())
        return has

    def now(self) -> float:
        """The time by the detector's clock."""
        return self._clock()

    def resolved(self, asked_at: float) -> None:
        """The store was asked at that time what the node owns. If that is more than GAP_S ago, the answer may be out of
        date and nothing is resolved."""
        self.ticked_at = asked_at


class HeldLines:
    """The output of one session's process after a standstill, until it is known that the session is still ours.

    `pressure` is called with True to stop reading the process, and with False to go on.
    """

    __slots__ = ("_lines", "_pressure")

    def __init__(self, pressure: Callable[[bool], None]) -> None:
        self._pressure = pressure
        self._lines: list[bytes] | None = None

    def add(self, line: bytes) -> None:
        if self._lines is None:
            self._lines = []
            self._pressure(True)
        self._lines.append(line)

    def take(self) -> list[bytes]:
        """What there is, oldest first; the process is read again."""
        lines, self._lines = self._lines, None
        if lines is None:
            return []
        self._pressure(False)
        return lines


class StandstillGuard:
    """After a standstill: verifies which sessions this node still owns, and lets those go on.

    `prove_routes` asks the store about every route and closes the sessions that are not ours any more; its argument is
    when the gap began, by the detector's clock. `deliver_held` lets all others go on. `doubt` is called before: what
    was permitted may not be any more.
    """

    def __init__(
        self,
        standstill: StandstillDetector,
        routes: Sized,
        prove_routes: Callable[[float], Awaitable[None]],
        deliver_held: Callable[[], None],
        doubt: Callable[[], None] = lambda: None,
    ) -> None:
        self.standstill = standstill
        self._routes, self._prove_routes, self._deliver_held = routes, prove_routes, deliver_held
        self._doubt = doubt
        self._proving = anyio.Lock()
        self._failed_proofs = 0
        self._said_of = -math.inf  # when that standstill began

    async def prove(self) -> None:
        """Ends the sessions that are not ours any more, and lets the rest go on.

        If the store does not answer, the node goes on as before. If its lease ended in the gap as well
        (OwnershipUnknown), another node may own its sessions, and nothing is served until the store answers
        (docs/decisions/several-nodes.md).
        """
        failures = self._failed_proofs
        async with self._proving:
            if not self.standstill.is_detected() or self._failed_proofs != failures:
                return  # another task has asked meanwhile
            try:
                await self._prove()
            except OwnershipUnknown:
                self._failed_proofs += 1
                log.warning("This node's lease ended during the standstill: nothing is served until Redis answers")
                return
            self._deliver_held()

    async def _prove(self) -> None:
        for attempt in range(PROOFS):
            self._say(attempt)
            self._doubt()
            asked_at = self.standstill.now()
            try:
                await self._prove_routes(self.standstill.ticked_at)
            except OwnershipUnknown:
                raise
            except RoutesUnavailable:
                log.warning(
                    "Could not verify which sessions this node owns: Redis does not answer; serving all of them"
                )
            self.standstill.resolved(asked_at)
            if not self.standstill.is_detected():
                return
        self.standstill.resolved(self.standstill.now())

    def _say(self, attempt: int) -> None:
        """Once for each standstill: what comes later is time in which the store was waited for."""
        seconds, since = self.standstill.now() - self.standstill.ticked_at, self.standstill.ticked_at
        if attempt:
            log.warning("Verifying the ownership of sessions took %.1f s, too long to rely on it: once more", seconds)
        elif since != self._said_of:
            log.warning(
                "The event loop was stopped for %.1f s; verifying the ownership of %d sessions before they are served",
                seconds,
                len(self._routes),
            )
        self._said_of = since
