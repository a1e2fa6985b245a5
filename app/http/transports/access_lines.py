"""AccessLines: the log of ACCESS_LOG=all, one line per request. Seen: what a line says of the answer."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import BinaryIO

import msgspec
from starlette.types import Message, Scope, Send

from app.errors import GatewayError
from app.http.scope import LEFT
from app.telemetry.logs import stderr
from app.text.redaction import without_credentials
from app.text.terminal.output import Output

MAX_DETAIL = 1024  # characters of an error message in a line

# What JSON leaves unescaped: other control characters, line separators, and changes of the direction of text.
_steering = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_SAME = {"logger": "access", "message": "request"}


class AccessLine(msgspec.Struct, omit_defaults=True, gc=False):
    """The fields of a line; empty ones are left out. The first two come from `AccessLines.stamp`."""

    time: str
    level: msgspec.Raw  # with the other fields that are the same in every line, as text
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
    """Collects lines for stderr and writes them every FLUSH_S, at FLUSH_BYTES, and when its owner closes it."""

    FLUSH_S, FLUSH_BYTES = 0.1, 64 << 10

    def __init__(self, of_every_line: Mapping[str, object], stream: BinaryIO | None = None) -> None:
        self._output = stderr if stream is None else Output(stream)
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        same = self._encoder.encode({**_SAME, **of_every_line})
        self._level = msgspec.Raw(b'"info",%b' % same[1:-1])
        self._second, self._date, self._millisecond, self._time = -1, "", -1, ""
        self._text = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def stamp(self) -> tuple[str, msgspec.Raw]:
        """The first two fields of a line that is written now."""
        millisecond = int(time.time() * 1000)
        if millisecond != self._millisecond:
            self._tick(millisecond)
        return self._time, self._level

    def write(self, line: AccessLine, more: Mapping[str, object] | None = None) -> None:
        """Adds a line, with `more` fields. Non-ASCII stays UTF-8; what steers a terminal or ends a line is escaped."""
        text = self._text
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
        """Writes what was collected. More may follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._text = self._text, bytearray()
        if text:
            self._output.write(_harmless(bytes(text)))


class Seen:
    """What went out as the answer of one request; its `send` takes the place of the request's."""

    __slots__ = ("_began_at", "_is_complete", "_scope", "_send", "bytes_out", "detail", "facts", "reason", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._began_at = time.monotonic()
        self._scope, self._send = scope, send
        self.status, self.bytes_out, self._is_complete = 0, 0, False
        self.reason = self.detail = ""  # of the error that was answered
        self.facts: Mapping[str, object] = {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._send(message)
            return
        await self._send(message)
        if LEFT in self._scope:
            return
        if self._scope["method"] != "HEAD":
            self.bytes_out += len(message.get("body", b""))
        self._is_complete = not message.get("more_body")

    def sent(self, status: int, size: int) -> None:
        """The whole answer was written without `send`."""
        self.status, self.bytes_out, self._is_complete = status, size, True

    def told(self, error: GatewayError) -> None:
        """Keeps what a line says of an error. Its traceback would keep the request until the garbage is collected."""
        self.reason, self.detail, self.facts = error.reason, str(error)[:MAX_DETAIL], error.facts

    def ms(self) -> float:
        """Since the request began, to a tenth."""
        return int((time.monotonic() - self._began_at) * 10_000) / 10

    def outcome(self) -> str:
        """In one word, where there was no error of ours and none of the backend."""
        return "left" if not self._is_complete else "ok" if self.status < 400 else "refused"


def _harmless(lines: bytes) -> bytes:
    text = lines.decode()
    if "tlk_" in text or b"bearer" in lines.lower():  # each in the type where the search is faster
        text = without_credentials(text)
        lines = text.encode()
    if not text.isascii() or "\x7f" in text:
        lines = _steering.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
    return lines
