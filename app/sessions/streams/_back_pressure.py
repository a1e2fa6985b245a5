"""BackPressure: stops reading a session's process while its client does not read."""

from collections import Counter
from collections.abc import Callable, Iterable

from app.protocol.commands import Call, Listen
from app.sessions.streams.streams import EventStream

UNREAD_S = 1.0  # how long a stream whose reader takes nothing may hold up the session's other streams
LOOK_S = 0.5  # what one look at it counts at most: while this node stands still no reader can take anything


class BackPressure:
    """Of one session. `hold_up` stops reading the process, or goes on; `every_call` yields the calls in flight."""

    __slots__ = ("_every_call", "_full", "_hold_up", "_unread")

    def __init__(self, hold_up: Callable[[bool], None], every_call: Callable[[], Iterable[Call]]) -> None:
        self._hold_up, self._every_call = hold_up, every_call
        self._full = 0
        # Of full streams: `taken`, how long nothing was taken, and when that was looked at.
        self._unread: dict[EventStream, tuple[int, float, float]] = {}

    @property
    def is_on(self) -> bool:
        """Whether the process is not read."""
        return self._full > 0

    def change(self, full: bool) -> None:
        """A stream has become full, or has room again. The process is read while none is full."""
        self._full += 1 if full else -1
        self._hold_up(self._full > 0)

    def relieve(self, listen: EventStream, now: float) -> bool:
        """Stops a stream whose reader takes nothing from holding up the process, and with it the session's others.

        A call's stream falls behind: when its reader goes on, it gets from the log what it has missed.

        Returns:
            Whether to detach the reader of the listen stream, which then keeps a bounded number of messages.
        """
        if not self._full and not self._unread:
            return False
        own = Counter(listen if call.stream is Listen.STREAM else call.stream.stream for call in self._every_call())
        before, self._unread = self._unread, {}
        is_listener_stuck = False
        for stream in {listen, *own}:
            if stream is None or not stream.is_full:
                continue
            has_others = own.total() > own[stream] or (stream is not listen and listen.attached)
            taken, unread_s, looked_at = before.get(stream, (-1, 0.0, now))
            unread_s += min(now - looked_at, LOOK_S)
            if stream.taken != taken or not has_others:
                self._unread[stream] = stream.taken, 0.0, now
            elif unread_s <= UNREAD_S:
                self._unread[stream] = taken, unread_s, now
            elif stream is not listen:
                stream.fall_behind()
            else:
                is_listener_stuck = True
        return is_listener_stuck
