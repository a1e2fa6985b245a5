"""LineBuffer: bytes in, whole lines out, with a limit. Pure."""

DEFAULT_LIMIT_BYTES = 16 << 20
END_BYTES = 4096  # that are kept of either end of a line over the limit


class LineBuffer:
    """Cuts a stream of bytes into lines.

    A line longer than `limit_bytes` is not kept. `overlong`, which the owner empties, gets an entry once it has grown
    over the limit, its first 4 KiB and nothing, and one when it has ended, its first and its last 4 KiB.
    `discarded_bytes` is the length that the overlong line streaming by has reached, 0 if there is none.
    """

    __slots__ = ("_beginning", "_end", "_limit", "_partial", "discarded_bytes", "overlong")

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._partial = bytearray()  # the beginning of a line whose end has not come yet
        self.discarded_bytes = 0
        self._beginning = self._end = b""  # of the overlong line streaming by
        self.overlong: list[tuple[bytes, bytes]] = []

    def __repr__(self) -> str:
        return f"<LineBuffer [{len(self._partial)} pending, {self.discarded_bytes} discarded]>"

    @property
    def beginning(self) -> bytes:
        """What there is of a line whose end has not come yet, up to 4 KiB of it; empty where there is none."""
        return self._beginning if self.discarded_bytes else bytes(self._partial[:END_BYTES])

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends (LF or CR LF); blank ones are left out."""
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
        """Only the new bytes are searched, or a long line in many pieces would take quadratic time."""
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
        self._partial = bytearray()  # not clear(): a list of large lines must not hold their memory
        first = _clean([line], line) if self._fits(line) else []
        return first + self.feed(data[end + 1 :])

    def _begin(self, data: bytes) -> None:
        """Keeps what is not a whole line yet, or only counts it if it has become too long."""
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
    return [line for line in lines if line and not line.isspace()]
