"""Fence: notices that this node stood still for so long that another may own its sessions by now. Pure."""

import sys
import time
from collections.abc import Callable
from functools import partial

GAP_S = 3.0  # a lease runs 5 s from the last beat, and beats are up to a second apart

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
