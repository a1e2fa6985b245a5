"""The last lines of a backend's stderr, bounded in every direction. Does no reading of its own."""

from collections.abc import Iterable

from app.logs import without_credentials

RING_BYTES = 64 << 10
LINE_BYTES = 8 << 10
MASKED_FROM = 6  # bytes: a shorter value of the environment (`1`, `true`) is no secret, and stands in many words
MASK = b"***"

# Whatever could move a terminal's cursor, forge a log line or turn the reading direction.
_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNSAFE} | {0x09: "\\t"}


class StderrRing:
    """Keeps the last 64 KiB that were fed.

    Feeding costs a copy and no search: a backend may write without end. Lines are cut, shortened to
    8 KiB and escaped when they are read out; what is `secret` is masked then, and so is what reads like a credential.
    """

    __slots__ = ("_bytes", "_is_cut", "_secrets")

    def __init__(self, secret: Iterable[str] = ()) -> None:
        self._bytes, self._is_cut = bytearray(), False
        values = {value.encode("utf-8", "surrogateescape") for value in secret}
        # The longest first: a value may be a part of another one.
        self._secrets = sorted((value for value in values if len(value) >= MASKED_FROM), key=len, reverse=True)

    def feed(self, data: bytes) -> None:
        """Takes what the backend wrote; the oldest bytes make room."""
        if len(data) >= RING_BYTES:
            self._bytes[:], self._is_cut = data[-RING_BYTES:], True
            return
        self._bytes += data
        if len(self._bytes) > 2 * RING_BYTES:  # seldom, so that the copying is paid once per 64 KiB
            del self._bytes[:-RING_BYTES]
            self._is_cut = True

    @property
    def line_count(self) -> int:
        """How many lines are kept, blank ones included; counting costs microseconds."""
        return self._bytes.count(b"\n", max(0, len(self._bytes) - RING_BYTES))

    def last_lines(self, count: int = 20) -> list[str]:
        """The last lines that are not blank, oldest first, safe to log and to show."""
        if count <= 0:
            return []
        kept = bytes(self._bytes[-RING_BYTES:])
        if self._is_cut or len(self._bytes) > RING_BYTES:
            kept = self._without_half(kept)
        for secret in self._secrets:
            kept = kept.replace(secret, MASK)
        lines = [line for line in kept.splitlines() if line.strip()]
        return [without_credentials(_printable(line)) for line in lines[-count:]]

    def _without_half(self, kept: bytes) -> bytes:
        """Without the end of a secret whose beginning is no longer there, and of the line that it stood in."""
        for secret in self._secrets:
            half = next((at for at in range(1, len(secret)) if kept.startswith(secret[at:])), None)
            if half is not None:
                kept = MASK + kept[len(secret) - half :]
                break
        _, _, rest = kept.partition(b"\n")
        return rest if rest.strip() else kept


def _printable(line: bytes) -> str:
    text = line[:LINE_BYTES].decode(errors="backslashreplace").translate(_ESCAPES)
    return text + " [...]" if len(line) > LINE_BYTES else text
