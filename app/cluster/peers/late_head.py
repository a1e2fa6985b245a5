"""Late heads: how a node tells another that it is still working on an answer whose head it does not know yet. Pure.

A call may take minutes, and until it is answered its status is unknown. After LATE_S the node sends a head of its own,
then BREATH as often as an event stream has its keep-alive comments, and at last the true head as a line before the
body. So a silent connection is known to be dead.
"""

from collections.abc import Iterable

import msgspec

LATE_HEAD = b"trunkline-late-head"  # the header that announces it
LATE_S = 5.0
BREATH = b"\n"
MAX_LINE_BYTES = 64 << 10

RawHeaders = list[tuple[bytes, bytes]]


def encode_late_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return msgspec.json.encode((status, pairs)) + BREATH


class LateHead:
    """Reads the line. `status` and `headers` are set once `feed` has not returned None."""

    __slots__ = ("_line", "headers", "status")

    def __init__(self) -> None:
        self._line = b""
        self.status = 0
        self.headers: RawHeaders = []

    def feed(self, chunk: bytes) -> bytes | None:
        """The beginning of the body, which may be empty; None until the line is complete. Raises ValueError."""
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
