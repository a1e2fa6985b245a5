"""The answers of a server of 2026-07-28 as the handshake era has them."""

import msgspec

from app.protocol.eras.modern import HEADER_MISMATCH, MISSING_CAPABILITY, SERVER_INFO_KEY
from app.protocol.jsonrpc import INTERNAL_ERROR, UNSUPPORTED_PROTOCOL_VERSION, Response, encode, members_of

_MODERN_ONLY = ("resultType", "ttlMs", "cacheScope")


def as_handshake_era(response: Response) -> Response:
    """The answer without what only 2026-07-28 knows."""
    members = members_of(response.value)
    if not members:  # a vendor's, which need not be an object, or one that can only be passed on
        return response
    if response.member == "error":
        code = bytes(members.get("code", msgspec.Raw()))
        if code in (b"%d" % HEADER_MISMATCH, b"%d" % MISSING_CAPABILITY, b"%d" % UNSUPPORTED_PROTOCOL_VERSION):
            members["code"] = msgspec.Raw(b"%d" % INTERNAL_ERROR)
            return Response(response.id, "error", msgspec.Raw(encode(members)))
        return response
    for name in _MODERN_ONLY:
        members.pop(name, None)
    if "_meta" in members:
        meta = members_of(members.pop("_meta"))
        meta.pop(SERVER_INFO_KEY, None)
        if meta:
            members["_meta"] = msgspec.Raw(encode(meta))
    return Response(response.id, "result", msgspec.Raw(encode(members)))
