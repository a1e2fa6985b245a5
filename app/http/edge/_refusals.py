"""What the edge answers itself, without the application."""

from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.http.errors import HttpRefusal, phrase, rpc_error
from app.http.problems import MEDIA_TYPE, ProblemResponse
from app.http.request_ids import RequestIds

_MCP_PATHS = b"/t/"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is closed; without `status` no answer is sent. A flooding connection is kept open unread for a
    while, because a client that is closed at once reconnects at once."""

    reason: str
    status: int | None = None
    message: str = ""
    retry_after_s: int | None = None
    is_flood: bool = False

    def response(self, url: bytes, ids: RequestIds) -> bytes:
        """A whole HTTP/1.1 response with `Connection: close`."""
        assert self.status is not None
        media_type, body = self._content(url)
        head = [
            f"HTTP/1.1 {self.status} {phrase(self.status)}",
            f"content-type: {media_type}",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "connection: close",
        ]
        if self.retry_after_s is not None:
            head.append(f"retry-after: {self.retry_after_s}")
        return "\r\n".join([*head, ""]).encode("ascii") + ids.lines + b"\r\n" + body

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application that answers so; the caller decides whether the connection goes on."""
        assert self.status is not None
        media_type, body = self._content(scope["raw_path"])
        headers = {"Cache-Control": "no-store"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        await Response(body, self.status, headers, media_type)(scope, receive, send)

    def _content(self, url: bytes) -> tuple[str, bytes]:
        """A JSON-RPC error on MCP endpoints, problem details elsewhere."""
        assert self.status is not None
        if url.startswith(_MCP_PATHS):
            return "application/json", rpc_error(HttpRefusal(self.status, self.reason, self.message))
        return MEDIA_TYPE, bytes(ProblemResponse(self.status, self.reason, detail=self.message).body)


# --- what was sent

MALFORMED = Refusal("malformed_request", 400, "the request is not valid HTTP/1.1")
HEAD_TOO_LARGE = Refusal("head_too_large", 431, "the head of a request has at most 32 KiB in 100 fields")
URI_TOO_LONG = Refusal("uri_too_long", 414, "a URL has at most 8 KiB")
TRAILERS_TOO_LARGE = Refusal("trailers_too_large", 431, "trailers and chunk extensions have at most 8 KiB")
CHUNKS_TOO_SMALL = Refusal(
    "chunks_too_small",
    413,
    "chunk framing has at most 8 KiB and an eighth of the body; use larger chunks",
    is_flood=True,
)
UNREAD_BODY = Refusal("unread_body", is_flood=True)
EMPTY_LINES = Refusal("empty_lines", is_flood=True)
NOT_IMPLEMENTED = Refusal("not_implemented", 501, "CONNECT, and transfer codings other than chunked, are not supported")
VERSION = Refusal("version_not_supported", 505, "only HTTP/1.0 and HTTP/1.1 are supported")
PIPELINE_TOO_LONG = Refusal("pipeline_too_long", is_flood=True)

PLAIN_HTTP = Refusal("plain_http", 400, "this port speaks TLS: use https")
TLS_FAILED = Refusal("tls_failed")  # no common version or cipher, or what arrived is damaged
TLS_REFUSED = Refusal("tls_refused")  # the client ended the handshake: it may not trust the certificate

# --- too slow

HANDSHAKE_TIMEOUT = Refusal("handshake_timeout")
HEAD_TIMEOUT = Refusal("head_timeout", 408, "the head of the request did not arrive in time")
BODY_TIMEOUT = Refusal("body_timeout")
SILENT = Refusal("silent")
STALLED = Refusal("stalled")

# --- too many

ADDRESS_LIMIT = Refusal("address_limit", 429, "too many connections from this address", retry_after_s=1)
CONNECTION_LIMIT = Refusal("connection_limit", 503, "too many connections", retry_after_s=1)
DESCRIPTORS_SHORT = Refusal("descriptors_short", 503, "too many connections", retry_after_s=1)
MADE_ROOM = Refusal("made_room")
