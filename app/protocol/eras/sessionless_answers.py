"""The answers of a handshake-era server as 2026-07-28 has them."""

from typing import Any

import msgspec

from app.protocol.eras.modern import MISSING_CAPABILITY, complete, tagged
from app.protocol.eras.url_required import is_url_required
from app.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Request, Response, encode, members_of

RESOURCE_NOT_FOUND = -32002  # of the handshake era


def as_sessionless(
    response: Response, message: Request, server_info: msgspec.Raw | None, lacking: dict[str, Any] | None
) -> Response:
    """The answer to `message`. `lacking` are the capabilities that the server would have needed of the client: without
    them its refusal becomes the one that this revision has for that."""
    if response.member == "result":
        value = complete(response.value, message.method, server_info)
        if lacking is not None and _is_error_result(response):
            return _lacks("the tool needs a capability that the client did not declare", lacking)
        return Response(b"", "result", msgspec.Raw(value))
    members = members_of(response.value)
    if lacking is not None:
        return _lacks("the request needs a capability that the client did not declare", lacking)
    if is_url_required(response):  # a code that must not be used again
        members["code"] = msgspec.Raw(b"%d" % INTERNAL_ERROR)
        return Response(b"", "error", msgspec.Raw(encode(members)))
    if bytes(members.get("code", msgspec.Raw())) == b"%d" % RESOURCE_NOT_FOUND:
        uri = (message.params or {}).get("uri")
        members["code"] = msgspec.Raw(b"%d" % INVALID_PARAMS)
        if uri is not None:
            members["data"] = msgspec.Raw(encode({"uri": uri}))
        return Response(b"", "error", msgspec.Raw(encode(members)))
    return response


def error_answer(code: int, message: str, data: dict[str, Any]) -> Response:
    """An error that the server has not written itself."""
    return Response(b"", "error", msgspec.Raw(encode({"code": code, "message": message, "data": data})))


def retagged(response: Response, subscription_id: bytes) -> Response:
    """The end of a subscription, under the client's id of it."""
    return Response(b"", "result", msgspec.Raw(encode(tagged(members_of(response.value), subscription_id))))


def _lacks(why: str, lacking: dict[str, Any]) -> Response:
    return error_answer(MISSING_CAPABILITY, why, {"requiredCapabilities": lacking})


def _is_error_result(response: Response) -> bool:
    return bytes(members_of(response.value).get("isError", msgspec.Raw())) == b"true"
