"""Translates answers between the eras.

2026-07-28 has no -32042 (the server refuses a request until its client has opened some URLs, and gets it again); there
the client is asked with `input_required`, like any other question.
"""

from typing import Any

import msgspec

from app.errors import InvalidResponse
from app.protocol.commands import is_tool_error
from app.protocol.eras.sessionless_envelope import HEADER_MISMATCH, MISSING_CAPABILITY, SERVER_INFO_KEY
from app.protocol.exchange import SUBSCRIPTION_KEY
from app.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    Params,
    Request,
    Response,
    code_of,
    encode,
    encoded,
    members_of,
    object_in,
    string_of,
)

RESOURCE_NOT_FOUND = -32002  # of the handshake era
URL_ELICITATION_REQUIRED = -32042  # of 2025-11-25
MAX_URLS = 16  # in one such error; with more it is passed on as an error
CACHEABLE = frozenset({
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
})  # fmt: skip
_SESSIONLESS_ONLY = ("resultType", "ttlMs", "cacheScope")

_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def as_handshake_era(response: Response) -> Response:
    """The answer without what only 2026-07-28 knows."""
    members = members_of(response.value)
    if not members:  # not an object (of a vendor's method), or not readable
        return response
    if response.member == "error":
        if code_of(response) in (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION):
            return Response(response.id, "error", encoded({**members, "code": INTERNAL_ERROR}))
        return response
    for name in _SESSIONLESS_ONLY:
        members.pop(name, None)
    if "_meta" in members:
        meta = members_of(members.pop("_meta"))
        meta.pop(SERVER_INFO_KEY, None)
        if meta:
            members["_meta"] = encoded(meta)
    return Response(response.id, "result", encoded(members))


def as_sessionless(
    response: Response, message: Request, server_info: msgspec.Raw | None, lacking: dict[str, Any] | None
) -> Response:
    """The answer to `message`. `lacking` are capabilities of the client that the server has needed in vain: an error
    then becomes -32021. Raises InvalidResponse: as `complete`."""
    if response.member == "result":
        if lacking is not None and is_tool_error(response.value):
            return _lacks("the tool needs a capability that the client did not declare", lacking)
        return Response(b"", "result", msgspec.Raw(complete(response.value, message.method, server_info)))
    if lacking is not None:
        return _lacks("the request needs a capability that the client did not declare", lacking)
    members: dict[str, Any] = dict(members_of(response.value))
    if is_url_required(response):  # a code that this revision has retired
        members["code"] = INTERNAL_ERROR
    elif code_of(response) == RESOURCE_NOT_FOUND:
        uri = (message.params or {}).get("uri")
        members["code"] = INVALID_PARAMS
        if uri is not None:
            members["data"] = {"uri": uri}
    else:
        return response
    return Response(b"", "error", encoded(members))


def error_answer(code: int, message: str, data: dict[str, Any]) -> Response:
    """An error by the gateway in place of the server's answer."""
    return Response(b"", "error", encoded({"code": code, "message": message, "data": data}))


def retagged(response: Response, subscription_id: bytes) -> Response:
    """The end of a subscription, with the client's id of it."""
    return Response(b"", "result", encoded(tagged(members_of(response.value), subscription_id)))


def _lacks(why: str, lacking: dict[str, Any]) -> Response:
    return error_answer(MISSING_CAPABILITY, why, {"requiredCapabilities": lacking})


def complete(result: msgspec.Raw, method: str, server_info: msgspec.Raw | None) -> bytes:
    """A handshake-era result for 2026-07-28: with resultType, serverInfo, and how long it may be cached.

    Raises:
        InvalidResponse: it is no object, so this revision has no form for it.
    """
    members = members_of(result)
    if not members and bytes(result).strip(b"{} \t\r\n"):
        raise InvalidResponse("the backend's result is no JSON object that can be read")
    members.setdefault("resultType", msgspec.Raw(b'"complete"'))
    if server_info is not None:
        meta = object_in(members, "_meta")
        meta.setdefault(SERVER_INFO_KEY, server_info)
        members["_meta"] = encoded(meta)
    if method in CACHEABLE and bytes(members["resultType"]) == b'"complete"':  # `input_required` is not cached
        members.setdefault("ttlMs", msgspec.Raw(b"0"))
        members.setdefault("cacheScope", msgspec.Raw(b'"private"'))
    return encode(members)


def tagged(params: Params | None, subscription_id: bytes) -> Params:
    """A notification's params with the id of its subscription."""
    params = params or {}
    meta = {**object_in(params, "_meta"), SUBSCRIPTION_KEY: msgspec.Raw(subscription_id)}
    return {**params, "_meta": encoded(meta)}


# --- URLs to open first (-32042)


def is_url_required(response: Response) -> bool:
    """Whether this is -32042, well-formed or not."""
    return code_of(response) == URL_ELICITATION_REQUIRED


def required_urls(response: Response) -> list[Params]:
    """The params of `elicitation/create` in 2026-07-28 for each URL; without items that name none, and empty if there
    are too many."""
    data = object_in(members_of(response.value), "data")
    try:
        listed = _items(data.get("elicitations", msgspec.Raw(b"[]")))
    except (msgspec.DecodeError, RecursionError):
        return []
    if len(listed) > MAX_URLS:
        return []
    return [
        {name: value for name, value in params.items() if name != "elicitationId"}
        for params in map(members_of, listed)
        if string_of(params.get("mode")) == "url" and string_of(params.get("url")) is not None
    ]


def was_opened(answer: msgspec.Raw) -> bool | None:
    """Whether the client has accepted; None if its answer has no known action."""
    action = string_of(members_of(answer).get("action"))
    return {"accept": True, "decline": False, "cancel": False}.get(action or "")
