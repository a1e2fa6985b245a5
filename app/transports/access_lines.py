"""AccessLines: what ACCESS_LOG=all writes, a line for each request, collected and written many at once."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import BinaryIO

import msgspec

from app.logs import Output, stderr, without_credentials

NOT_YET = msgspec.Raw()

# Beside what JSON escapes: the other control characters, ends of lines, and what turns the direction of reading.
_steering = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_SAME = {"logger": "access", "message": "request"}


class AccessLine(msgspec.Struct, omit_defaults=True, gc=False):
    """What a line says of one request; what is empty is left out. AccessLines sets the first two."""

    time: str
    level: msgspec.Raw  # and behind it, as text, whatever else is the same in every line
    request: str
    trace: str
    http: str
    status: int
    ms: float
    bytes_in: int
    bytes_out: int
    outcome: str = ""
    endpoint: str = ""
    tenant: str = ""
    backend: str = ""
    session: str = ""
    principal: str = ""
    method: str = ""
    tool: str = ""  # or the prompt
    batch: int = 0
    sent_to: str = ""
    detail: str = ""


class AccessLines:
    """Lines on stderr that are many: collected for FLUSH_S, then written together, and at the end by `close`.

    Bounded at FLUSH_BYTES: what is more is written in the same moment. The owner closes it.
    """

    FLUSH_S, FLUSH_BYTES = 0.1, 64 << 10

    def __init__(self, of_every_line: Mapping[str, object], stream: BinaryIO | None = None) -> None:
        self._output = stderr if stream is None else Output(stream)
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        same = self._encoder.encode({**_SAME, **of_every_line})
        self._level = msgspec.Raw(b'"info",%b' % same[1:-1])
        self._second, self._date, self._millisecond, self._time = -1, "", -1, ""
        self._text = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def write(self, line: AccessLine, more: Mapping[str, object] | None = None) -> None:
        """One line, with what else there is to say. Non-ASCII stays as it is, in UTF-8; what steers a terminal or ends
        a line leaves escaped."""
        millisecond = int(time.time() * 1000)
        if millisecond != self._millisecond:
            self._tick(millisecond)
        line.time, line.level, text = self._time, self._level, self._text
        self._encoder.encode_into(line, text, -1)
        if more:
            text[-1:] = b",%b}" % self._encoder.encode(dict(more))[1:-1]
        text += b"\n"
        if len(text) >= self.FLUSH_BYTES:
            self.close()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.FLUSH_S, self.close)

    def _tick(self, millisecond: int) -> None:
        self._millisecond, second = millisecond, millisecond // 1000
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        self._time = f"{self._date}.{millisecond % 1000:03d}Z"

    def close(self) -> None:
        """Writes what there is. More may come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._text = self._text, bytearray()
        if text:
            self._output.write(_harmless(bytes(text)))


def _harmless(lines: bytes) -> bytes:
    text = lines.decode()
    if "tlk_" in text or b"bearer" in lines.lower():  # each as what is searched in less time
        text = without_credentials(text)
        lines = text.encode()
    if not text.isascii() or "\x7f" in text:
        lines = _steering.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
    return lines
