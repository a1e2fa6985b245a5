"""Late heads: how a node that does not know the head of its answer yet lets the other know that it works on it. Pure.

A call may take minutes, and until it is answered its status is not known. So that silence can mean that the connection
is dead, the node that answers begins after LATE_S with a head of its own, says BREATH as often as an event stream says
its keep-alive comment, and sends the true head as a line in front of the body.
"""

from collections.abc import Iterable

import msgspec

LATE_HEAD = b"trunkline-late-head"  # the header that says so
LATE_S = 5.0
BREATH = b"\n"
MAX_LINE_BYTES = 64 << 10

RawHeaders = list[tuple[bytes, bytes]]


def encode_late_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The line that stands for a head."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return msgspec.json.encode((status, pairs)) + BREATH


class LateHead:
    """Finds the line in what comes. `status` and `headers` are there once `feed` has returned something."""

    __slots__ = ("_line", "headers", "status")

    def __init__(self) -> None:
        self._line = b""
        self.status = 0
        self.headers: RawHeaders = []

    def feed(self, chunk: bytes) -> bytes | None:
        """The beginning of the body, which may be empty; None while there is no head.

        Raises:
            ValueError: this is no head.
        """
        line = self._line + chunk if self._line else chunk.lstrip(BREATH)
        head, end, body = line.partition(BREATH)
        if not end:
            self._line = line
            if len(line) > MAX_LINE_BYTES:
                raise ValueError("a head without an end")
            return None
        self.status, pairs = msgspec.json.decode(head, type=tuple[int, list[tuple[str, str]]])
        self.headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        return body
