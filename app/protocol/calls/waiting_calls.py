"""WaitingCalls: the calls of one session that wait because as many run as may."""

import msgspec

from app.errors import QuotaExceeded
from app.protocol.commands import Call

MIN_WAITING = 8  # calls that may wait, even if fewer may run
MAX_WAITING_BYTES = 4 << 20  # of the lines of waiting calls; a single one may be longer
LINE_OVERHEAD = 64  # a line for the backend may be longer than the client's message


class WaitingCall(msgspec.Struct, gc=True):
    call: Call
    line: bytes
    is_own: bool


class WaitingCalls:
    """At most `max_running` calls run; `reserved` of these places are kept for the gateway's own calls."""

    __slots__ = ("_bytes", "_running", "calls", "max_running", "max_waiting", "reserved")

    def __init__(self, running: dict[bytes, Call], max_running: int) -> None:
        self.calls: dict[bytes, WaitingCall] = {}  # by our id, oldest first
        self._running = running  # the Exchange's
        self.max_running, self.max_waiting = max_running, max(max_running, MIN_WAITING)
        self.reserved = 0
        self._bytes = 0

    def reserve(self, places: int, min_waiting: int) -> None:
        """Keeps places for the gateway's own calls, and lets at least `min_waiting` calls wait."""
        self.reserved, self.max_waiting = places, max(self.max_waiting, min_waiting)

    def require_room(self, calls: int, size: int) -> None:
        """Raises QuotaExceeded unless so many calls, of `size` bytes together, could all run or wait."""
        would_wait = len(self._running) + len(self.calls) + calls - self.max_running
        if would_wait > 0:
            self._require_places(would_wait, size + calls * LINE_OVERHEAD, is_one=calls == 1)

    def _require_places(self, would_wait: int, size: int, *, is_one: bool) -> None:
        is_alone = is_one and not self.calls
        if would_wait > self.max_waiting or (self._bytes + size > MAX_WAITING_BYTES and not is_alone):
            places = f"{self.max_running} calls with its backend, {self.max_waiting} waiting, with 4 MiB"
            in_flight = len(self._running) + len(self.calls)
            raise QuotaExceeded("calls_per_session", f"a session has at most {places}; this one has {in_flight}")

    def add(self, call: Call, line: bytes, *, is_own: bool) -> None:
        """Raises QuotaExceeded if no more calls may wait."""
        self._require_places(len(self.calls) + 1, len(line), is_one=True)
        self.calls[call.gateway_id] = WaitingCall(call, line, is_own)
        self._bytes += len(line)

    def next(self) -> tuple[Call, bytes] | None:
        """Takes out the call that has waited longest, with its line, if it may run now."""
        if not self.calls or len(self._running) >= self.max_running:
            return None
        is_for_all = len(self._running) < self.max_running - self.reserved
        first = next((gateway_id for gateway_id, each in self.calls.items() if is_for_all or each.is_own), None)
        return None if first is None else self.take(first)

    def take(self, gateway_id: bytes) -> tuple[Call, bytes]:
        """Removes this call, and returns it with its line."""
        waiting = self.calls.pop(gateway_id)
        self._bytes -= len(waiting.line)
        return waiting.call, waiting.line

    def clear(self) -> None:
        self.calls.clear()
        self._bytes = 0
