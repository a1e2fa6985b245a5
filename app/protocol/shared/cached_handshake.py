"""CachedHandshake: the gateway's own handshake with a shared process, from which each session's is answered."""

import msgspec

from app.errors import InvalidResponse
from app.protocol.eras.sessionless_envelope import refuses_handshake
from app.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    Params,
    Request,
    Response,
    dump_notification,
    dump_request,
    dump_response,
    encoded,
    error_response,
    members_of,
    object_in,
    result_response,
    string_of,
)
from app.protocol.revisions import HANDSHAKE, Revision, is_handshake

INITIALIZED = dump_notification("notifications/initialized", None)


def hello(request_id: bytes) -> bytes:
    """Our own `initialize`, without client capabilities: a shared process can ask no client."""
    params: Params = {
        "protocolVersion": encoded(Revision.R2025_11_25.value),
        "capabilities": msgspec.Raw(b"{}"),
        "clientInfo": msgspec.Raw(b'{"name":"trunkline","version":"1"}'),
    }
    return dump_request(request_id, "initialize", params)


class CachedHandshake:
    """The answer to our `initialize`. `is_sessionless`: the process refused it, because it speaks only 2026-07-28."""

    __slots__ = ("_response", "has_log_levels", "is_sessionless")

    def __init__(self, response: Response) -> None:
        """Raises InvalidResponse for any other refusal."""
        is_refusal = response.member == "error"
        self.is_sessionless = is_refusal and refuses_handshake(dump_response(response.id, response))
        if is_refusal and not self.is_sessionless:
            raise InvalidResponse("the backend refused `initialize`")
        self._response = response
        self.has_log_levels = not is_refusal and "logging" in object_in(members_of(response.value), "capabilities")

    def answer_to(self, initialize: Request) -> bytes:
        """The session's answer, with the client's revision if the server would have agreed to it."""
        if self.is_sessionless:
            return dump_response(initialize.id, self._response)
        members = members_of(self._response.value)
        asked = string_of((initialize.params or {}).get("protocolVersion")) or ""
        members["protocolVersion"] = encoded(_negotiated(asked, string_of(members.get("protocolVersion"))))
        return result_response(initialize.id, members)

    def answer_ourselves(self, message: Request) -> bytes | None:
        """The answer to `ping` and `server/discover`; None for what the process must answer."""
        if self.is_sessionless:
            return None
        if message.method == "ping":
            return result_response(message.id, {})
        if message.method == "server/discover":
            return error_response(message.id, METHOD_NOT_FOUND, "the server speaks the handshake era")
        return None


def _negotiated(asked: str, offered: str | None) -> str:
    """The client's revision if it is not newer than the server's, else the server's."""
    if offered is None or not is_handshake(offered):
        return offered or Revision.R2025_11_25.value
    if is_handshake(asked) and HANDSHAKE.index(asked) <= HANDSHAKE.index(offered):
        return asked
    return offered
