"""What an upstream's answer means, by its status and type: which body it has, where it redirects to, or which error it
is. Pure."""

from collections.abc import Iterable
from enum import Enum
from urllib.parse import urljoin, urlsplit

from app.auth.outbound_urls import MAX_URL, OutboundUrl, UrlRefused, parse_url
from app.errors import BackendBusy, BackendError, InvalidResponse, UpstreamFailed, UpstreamRefused
from app.protocol.headers import EVENTS, is_json
from app.protocol.jsonrpc import ABSENT, Response, members_of, string_of

MAX_RETRY_AFTER_S = 60.0
_MAX_SHOWN, _MAX_SHOWN_URL, _MAX_SHOWN_WORDS = 80, 200, 200
_NO_TRANSPORT = frozenset({400, 404, 405, 406, 415, 501})


class Body(Enum):
    """What is to be read of an answer."""

    JSON = "json"
    EVENTS = "events"
    NOTHING = "nothing"  # accepted, or no type that means anything here


class Answer:
    """The head of an answer: its status and the headers that matter."""

    __slots__ = ("encoding", "length", "locations", "retry_after", "session_ids", "status", "type")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.type = self.encoding = self.retry_after = b""
        self.length = -1
        self.session_ids, self.locations = list[bytes](), list[bytes]()
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
            elif lower == b"location":
                self.locations.append(value)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_plain(self) -> bool:
        """Whether it can be read: not with another Content-Encoding than was asked for."""
        return self.encoding.strip().lower() in (b"", b"identity")

    @property
    def body(self) -> Body:
        if not self.is_plain:
            return Body.NOTHING
        if is_json(self.type[:200]):
            return Body.JSON
        return Body.EVENTS if self.type.split(b";", 1)[0].strip().lower() == EVENTS.encode() else Body.NOTHING

    @property
    def shown_type(self) -> str:
        text = self.type[:_MAX_SHOWN].decode("latin-1")
        return (text if text.isascii() and text.isprintable() else "") or "no type"

    def redirects_to(self, url: OutboundUrl) -> str | None:
        """Where on the same server the same request is to be sent instead; None if that is not what the answer says."""
        if self.status not in (307, 308) or len(self.locations) != 1:
            return None
        return target_on(url, self.locations[0])

    @property
    def may_be_older(self) -> bool:
        """Whether a server that answers so to the first POST may be one of HTTP+SSE (2024-11-05)."""
        return self.status in _NO_TRANSPORT

    @property
    def retry_after_s(self) -> float:
        text = self.retry_after.strip()
        seconds = float(text[:9]) if text.isdigit() else 1.0
        return min(max(seconds, 1.0), MAX_RETRY_AFTER_S)


def failure(answer: Answer, host: str, refusal: Response | None = None) -> BackendError:
    """The error for who has made a request that was answered so; `refusal`: the error of JSON-RPC in the body."""
    status = answer.status
    if status in (401, 403):
        return UpstreamRefused(
            f"{host} answered HTTP {status}: it does not accept the `headers` of this backend"
            + (_said(refusal) if status == 403 else ""),  # a 401 may repeat the credential, which nobody is shown
            hint="An administrator can give the backend other `headers`.",
        )
    if status == 407:
        return UpstreamRefused(
            f"a proxy before {host} answered HTTP 407: it wants credentials, or others",
            hint="An administrator can give the backend another `connect.proxy_auth`.",
        )
    if status == 429:
        return BackendBusy(f"{host} answered HTTP 429: it takes no more requests for now").again_after(
            answer.retry_after_s
        )
    if 300 <= status < 400:
        where = _shown(host, answer.locations[0]) if answer.locations else "no address"
        return InvalidResponse(
            f"{host} answered HTTP {status} and names {where}: followed are 307 and 308, once, on the same server only",
            hint="If that is the server's address, an administrator can give it to the backend as its `url`.",
        )
    if answer.is_good:
        words = "with a Content-Encoding that was not asked for" if answer.encoding else f"with {answer.shown_type}"
        return InvalidResponse(f"{host} answered {words}, which is neither JSON nor an event stream")
    failed = UpstreamFailed(f"{host} answered HTTP {status}")
    return failed.after_sending() if status >= 500 else failed


def _said(refusal: Response | None) -> str:
    """The server's own words, if they can be shown."""
    text = "" if refusal is None else string_of(members_of(refusal.value).get("message", ABSENT)) or ""
    return f" ({text[:_MAX_SHOWN_WORDS]})" if text and text.isprintable() else ""


def target_on(url: OutboundUrl, named: bytes) -> str | None:
    """Path and query of what an upstream names, as it is or relative to its URL; None if it is not on the same host,
    with the same scheme and port: that was not allowed by anybody, and the backend's headers are for its own."""
    if len(named) > MAX_URL:
        return None
    try:
        found = parse_url(urljoin(f"{url.scheme}://{url.authority}{url.target}", named.decode("ascii")))
    except (ValueError, UrlRefused):
        return None
    return found.target if (found.scheme, found.host, found.port) == (url.scheme, url.host, url.port) else None


def _shown(host: str, named: bytes) -> str:
    """An address that an upstream names, for people: without what may be a secret in it."""
    text = named[:MAX_URL].decode("latin-1")
    try:
        parts = urlsplit(urljoin(f"//{host}", text))
    except ValueError:
        return "an address that is none"
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    address = f"{scheme}{parts.netloc.rpartition('@')[2]}{parts.path}"[:_MAX_SHOWN_URL]
    return address if address.isascii() and address.isprintable() else "an address that is none"
