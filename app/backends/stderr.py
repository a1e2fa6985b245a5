"""The last lines of a backend's stderr, bounded in every direction. Does no reading of its own."""

RING_BYTES = 64 << 10
LINE_BYTES = 8 << 10

# Whatever could move a terminal's cursor, forge a log line or turn the reading direction.
_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNSAFE} | {0x09: "\\t"}


class StderrRing:
    """Keeps the last 64 KiB that were fed.

    Feeding costs a copy and no search: a backend may write without end. Lines are cut, shortened to
    8 KiB and escaped when they are read out.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes what the backend wrote; the oldest bytes make room."""
        if len(data) >= RING_BYTES:
            self._bytes[:] = data[-RING_BYTES:]
            return
        self._bytes += data
        if len(self._bytes) > 2 * RING_BYTES:  # seldom, so that the copying is paid once per 64 KiB
            del self._bytes[:-RING_BYTES]

    @property
    def line_count(self) -> int:
        """How many lines are kept, blank ones included; counting costs microseconds."""
        return self._bytes.count(b"\n", max(0, len(self._bytes) - RING_BYTES))

    def last_lines(self, count: int = 20) -> list[str]:
        """The last lines that are not blank, oldest first, safe to log and to show."""
        lines = [line for line in bytes(self._bytes[-RING_BYTES:]).splitlines() if line.strip()]
        return [_printable(line) for line in lines[-count:]] if count > 0 else []


def _printable(line: bytes) -> str:
    text = line[:LINE_BYTES].decode(errors="backslashreplace").translate(_ESCAPES)
    return text + " [...]" if len(line) > LINE_BYTES else text
