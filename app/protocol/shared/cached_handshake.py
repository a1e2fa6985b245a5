"""CachedHandshake: the handshake of a shared process, held once by the gateway and told to each of its sessions."""

import msgspec

from app.errors import InvalidResponse
from app.protocol.eras.modern import refuses_handshake
from app.protocol.jsonrpc import (
    ABSENT,
    METHOD_NOT_FOUND,
    Params,
    Request,
    Response,
    dump_notification,
    dump_request,
    dump_response,
    encode,
    error_response,
    members_of,
    result_response,
    string_of,
)
from app.protocol.revisions import HANDSHAKE, Revision, is_handshake

INITIALIZED = dump_notification("notifications/initialized", None)


def hello(request_id: bytes) -> bytes:
    """Our own `initialize`, without client capabilities: what a shared process asks could be put to nobody."""
    params: Params = {
        "protocolVersion": msgspec.Raw(encode(Revision.R2025_11_25.value)),
        "capabilities": msgspec.Raw(b"{}"),
        "clientInfo": msgspec.Raw(b'{"name":"trunkline","version":"1"}'),
    }
    return dump_request(request_id, "initialize", params)


class CachedHandshake:
    """What the process answered to our `initialize`. `is_modern`: it refused, for it speaks 2026-07-28 only."""

    __slots__ = ("_response", "has_log_levels", "is_modern")

    def __init__(self, response: Response) -> None:
        """Raises InvalidResponse if the process has refused without being modern."""
        is_refusal = response.member == "error"
        self.is_modern = is_refusal and refuses_handshake(dump_response(response.id, response))
        if is_refusal and not self.is_modern:
            raise InvalidResponse("the backend refused `initialize`")
        self._response = response
        capabilities = ABSENT if is_refusal else members_of(response.value).get("capabilities", ABSENT)
        self.has_log_levels = "logging" in members_of(capabilities)

    def answer_to(self, initialize: Request) -> bytes:
        """The session's answer. The revision is the client's where the server would have agreed to it."""
        if self.is_modern:
            return dump_response(initialize.id, self._response)
        members = members_of(self._response.value)
        asked = string_of((initialize.params or {}).get("protocolVersion")) or ""
        members["protocolVersion"] = msgspec.Raw(encode(_negotiated(asked, string_of(members.get("protocolVersion")))))
        return result_response(initialize.id, members)

    def answer_ourselves(self, message: Request) -> bytes | None:
        """The answer to what says nothing to a process that serves others too; None for what it must answer.

        A discovery would only be refused, or never answered.
        """
        if self.is_modern:
            return None
        if message.method == "ping":
            return result_response(message.id, {})
        if message.method == "server/discover":
            return error_response(message.id, METHOD_NOT_FOUND, "the server speaks the handshake era")
        return None


def _negotiated(asked: str, offered: str | None) -> str:
    """The client's revision if it is no newer than the server's, which then knows it; else the server's own."""
    if offered is None or not is_handshake(offered):
        return offered or Revision.R2025_11_25.value
    if is_handshake(asked) and HANDSHAKE.index(asked) <= HANDSHAKE.index(offered):
        return asked
    return offered
