"""What an upstream's answer means, by its status and type: which body it has, or which error it is. Pure."""

from collections.abc import Iterable
from enum import Enum

from app.errors import BackendBusy, BackendError, InvalidResponse, UpstreamFailed, UpstreamRefused
from app.protocol.headers import EVENTS, is_json

MAX_RETRY_AFTER_S = 60.0
_MAX_SHOWN = 80
_NO_TRANSPORT = frozenset({400, 404, 405, 406, 415, 501})


class Body(Enum):
    """What is to be read of an answer."""

    JSON = "json"
    EVENTS = "events"
    NOTHING = "nothing"  # accepted, or no type that means anything here


class Answer:
    """The head of an answer: its status and the headers that matter."""

    __slots__ = ("encoding", "length", "retry_after", "session_ids", "status", "type")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.type = self.encoding = self.retry_after = b""
        self.length = -1
        self.session_ids = list[bytes]()
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-type":
                self.type = value
            elif lower == b"content-encoding":
                self.encoding = value
            elif lower == b"content-length" and value.isdigit():
                self.length = int(value[:18])
            elif lower == b"retry-after":
                self.retry_after = value
            elif lower == b"mcp-session-id":
                self.session_ids.append(value)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def body(self) -> Body:
        """An answer with another Content-Encoding than was asked for cannot be read."""
        if self.encoding.strip().lower() not in (b"", b"identity"):
            return Body.NOTHING
        if is_json(self.type[:200]):
            return Body.JSON
        return Body.EVENTS if self.type.split(b";", 1)[0].strip().lower() == EVENTS.encode() else Body.NOTHING

    @property
    def shown_type(self) -> str:
        text = self.type[:_MAX_SHOWN].decode("latin-1")
        return (text if text.isascii() and text.isprintable() else "") or "no type"

    @property
    def may_be_older(self) -> bool:
        """Whether a server that answers so to the first POST may be one of HTTP+SSE (2024-11-05)."""
        return self.status in _NO_TRANSPORT

    @property
    def retry_after_s(self) -> float:
        text = self.retry_after.strip()
        seconds = float(text[:9]) if text.isdigit() else 1.0
        return min(max(seconds, 1.0), MAX_RETRY_AFTER_S)


def failure(answer: Answer, host: str) -> BackendError:
    """The error for who has made a request that was answered so."""
    status = answer.status
    if status in (401, 403):
        return UpstreamRefused(
            f"{host} answered HTTP {status}: it does not accept the `headers` of this backend",
            hint="An administrator can give the backend other `headers`.",
        )
    if status == 429:
        return BackendBusy(f"{host} answered HTTP 429: it takes no more requests for now").again_after(
            answer.retry_after_s
        )
    if 300 <= status < 400:
        return InvalidResponse(f"{host} answered HTTP {status}: redirects are not followed")
    if answer.is_good:
        words = "with a Content-Encoding that was not asked for" if answer.encoding else f"with {answer.shown_type}"
        return InvalidResponse(f"{host} answered {words}, which is neither JSON nor an event stream")
    failed = UpstreamFailed(f"{host} answered HTTP {status}")
    return failed.after_sending() if status >= 500 else failed
