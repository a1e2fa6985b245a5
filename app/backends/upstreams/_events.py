"""EventReader: bytes of an event stream in, events out, with a limit in bytes. Reconnecting: when a stream that has
ended is asked for again. Pure: chance is passed in."""

import re
from collections.abc import Callable
from typing import NamedTuple

FIRST_S = 0.5
MAX_S = 30.0
JITTER = 0.25
MAX_RETRY_S = 60.0  # a server that names a longer time is asked after this one
MAX_SILENT = 5  # of a call's stream: attempts in a row without an event
MAX_ID_BYTES = 1024  # of an event; a longer one cannot be resumed from
_CONTROLS = re.compile(rb"[\x00-\x1f\x7f]")  # an id is given back in a header
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event has more bytes than the limit. The reader is of no use any more."""


class ServerEvent(NamedTuple):
    """One event. `kind` is `message` unless the server says otherwise."""

    kind: bytes
    data: bytes


class EventReader:
    """Reads one stream, in any pieces. Events without data are left out.

    `count`: of events so far. `last_id`: of the last event that had one, whether it had data or not; `retry_ms`: when
    the server wants to be asked again.
    """

    def __init__(self, limit_bytes: int, last_id: bytes = b"", retry_ms: int = -1) -> None:
        self._limit = limit_bytes
        self.last_id, self.retry_ms = last_id, retry_ms
        self.count = 0
        self._next_id = last_id
        self._partial: list[bytes] = []  # of a line
        self._kind, self._data = b"", list[bytes]()
        self._kept_bytes = 0  # of the event, in whole lines
        self._size = 0  # with the line that is not whole yet
        self._begins, self._after_cr = True, False

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that this completes.

        Raises:
            EventTooLarge: the one after them has too many bytes.
        """
        *lines, rest = self._unified(data).split(b"\n")
        found = list[ServerEvent]()
        for end in lines:
            line = self._whole(end)
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                found.append(event)
                self.count += 1
        if rest:
            self._partial.append(rest)
            self._size += len(rest)
            self._require_room()
        return found

    def _whole(self, end: bytes) -> bytes:
        line = b"".join([*self._partial, end]) if self._partial else end
        self._partial.clear()
        if self._begins:
            self._begins = False
            return line.removeprefix(_BYTE_ORDER_MARK)
        return line

    def _unified(self, data: bytes) -> bytes:
        """With LF as the only end of a line. CR LF may be cut in the middle."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._kept_bytes += len(value) + 1
        elif name == b"event":
            self._kind = value[:MAX_ID_BYTES]
        elif name == b"id" and len(value) <= MAX_ID_BYTES and not _CONTROLS.search(value):
            self._next_id = value
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry_ms = int(value)
        self._size = self._kept_bytes
        self._require_room()

    def _require_room(self) -> None:
        if self._size > self._limit:
            raise EventTooLarge

    def _dispatch(self) -> ServerEvent | None:
        kind, data = self._kind or b"message", b"\n".join(self._data)
        self._kind, self._data, self._kept_bytes, self._size = b"", [], 0, 0
        self.last_id = self._next_id
        return ServerEvent(kind, data) if data else None


class Reconnecting:
    """The attempts for one stream: each waits twice as long as the one before, until events come again.

    Args:
        chance: returns a random number in [0, 1).
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self.silent = 0  # attempts since the last event

    def heard(self) -> None:
        """An event came."""
        self.silent = 0

    def delay_s(self, retry_ms: int) -> float:
        """How long to wait before the next attempt. `retry_ms`: what the server has asked for; -1 if nothing."""
        self.silent += 1
        if retry_ms >= 0 and self.silent == 1:
            return min(retry_ms / 1000, MAX_RETRY_S)
        delay: float = min(MAX_S, FIRST_S * 2 ** min(self.silent - 1, 16))
        return max(delay * (1 + JITTER * (2 * self._chance() - 1)), min(max(retry_ms, 0) / 1000, MAX_RETRY_S))

    @property
    def is_hopeless(self) -> bool:
        """Whether a call waits for nothing."""
        return self.silent >= MAX_SILENT
