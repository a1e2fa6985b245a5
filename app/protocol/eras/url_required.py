"""-32042 of 2025-11-25: a server refuses a request until its client has opened some URLs, and sends it again.

2026-07-28 has no such error; there the client is asked with `input_required`, as for anything else. Pure.
"""

import msgspec

from app.protocol.jsonrpc import Params, Response, members_of, string_of

URL_ELICITATION_REQUIRED = -32042
MAX_URLS = 16  # of one error; one with more passes as an error

_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_url_required(response: Response) -> bool:
    """Whether this is that error, well-formed or not."""
    if response.member != "error":
        return False
    return bytes(members_of(response.value).get("code", msgspec.Raw())) == b"%d" % URL_ELICITATION_REQUIRED


def required_urls(response: Response) -> list[Params]:
    """What the client is to open, as the params of `elicitation/create` in 2026-07-28; empty if that cannot be told."""
    data = members_of(members_of(response.value).get("data", msgspec.Raw(b"{}")))
    try:
        listed = _items(data.get("elicitations", msgspec.Raw(b"[]")))
    except (msgspec.DecodeError, RecursionError):
        return []
    found = [members_of(each) for each in listed[: MAX_URLS + 1]]
    is_right = all(
        string_of(params.get("mode")) == "url" and string_of(params.get("url")) is not None for params in found
    )
    if not is_right or len(found) > MAX_URLS:
        return []
    return [{name: value for name, value in params.items() if name != "elicitationId"} for params in found]


def was_opened(answer: msgspec.Raw) -> bool | None:
    """What the client's answer says of a URL; None if it says nothing."""
    action = string_of(members_of(answer).get("action"))
    return {"accept": True, "decline": False, "cancel": False}.get(action or "")
