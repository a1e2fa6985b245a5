"""LineBuffer: bytes in, whole lines out, with a limit."""

from app.protocol.tolerant import BYTE_ORDER_MARK

DEFAULT_LIMIT_BYTES = 16 << 20
END_BYTES = 4096  # kept of either end of a line over the limit


class LineBuffer:
    """A line longer than `limit_bytes` is not kept. `overlong` gets two entries for it: (first 4 KiB, b"") when it
    exceeds the limit, and (first 4 KiB, last 4 KiB) at its end. `discarded_bytes` is its length so far, or 0."""

    __slots__ = ("_beginning", "_end", "_limit", "_partial", "discarded_bytes", "overlong")

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._partial = bytearray()  # an incomplete line
        self.discarded_bytes = 0
        self._beginning = self._end = b""  # of the overlong line
        self.overlong: list[tuple[bytes, bytes]] = []

    @property
    def beginning(self) -> bytes:
        """The first 4 KiB of the incomplete line, if there is one."""
        return self._beginning if self.discarded_bytes else bytes(self._partial[:END_BYTES])

    def take_overlong(self) -> list[tuple[bytes, bytes]]:
        overlong, self.overlong = self.overlong, []
        return overlong

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without LF or CR LF; blank ones are skipped."""
        if self._partial or self.discarded_bytes:
            return self._continue(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if len(data) > self._limit:
            lines = [line for line in lines if self._fits(line)]
        if rest:
            self._begin(rest)
        return _clean(lines, data)

    def _continue(self, data: bytes) -> list[bytes]:
        """Searches only the new bytes: a long line in many pieces takes linear time."""
        end = data.find(b"\n")
        if end < 0:
            self._begin(data)
            return []
        if self.discarded_bytes:
            self.discarded_bytes = 0
            self.overlong.append((self._beginning, (self._end + data[:end])[-END_BYTES:]))
            return self.feed(data[end + 1 :])
        self._partial += data[:end]
        line = bytes(self._partial)
        self._partial = bytearray()  # clear() would keep the memory of a large line
        first = _clean([line], line) if self._fits(line) else []
        return first + self.feed(data[end + 1 :])

    def _begin(self, data: bytes) -> None:
        """Keeps an incomplete line, or only its ends if it is too long."""
        if self.discarded_bytes:
            self.discarded_bytes += len(data)
            self._end = (self._end + data[-END_BYTES:])[-END_BYTES:]
        elif len(self._partial) + len(data) <= self._limit:
            self._partial += data
        else:
            self.discarded_bytes = len(self._partial) + len(data)
            self._beginning = bytes(self._partial[:END_BYTES] + data[:END_BYTES])[:END_BYTES]
            self._end = bytes(self._partial[-END_BYTES:] + data[-END_BYTES:])[-END_BYTES:]
            self.overlong.append((self._beginning, b""))
            self._partial = bytearray()

    def _fits(self, line: bytes) -> bool:
        if len(line) <= self._limit:
            return True
        self.overlong += [(line[:END_BYTES], b""), (line[:END_BYTES], line[-END_BYTES:])]
        return False


def _clean(lines: list[bytes], data: bytes) -> list[bytes]:
    if b"\r" in data:
        lines = [line[:-1] if line.endswith(b"\r") else line for line in lines]
    # A mark that some programs on Windows write is ignored (RFC 8259 §8.1). Comparing a byte costs less than a call.
    return [
        line if line[0] != BYTE_ORDER_MARK[0] else line.removeprefix(BYTE_ORDER_MARK)
        for line in lines
        if line and not line.isspace()
    ]
