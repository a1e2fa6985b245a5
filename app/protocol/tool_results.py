"""Whether a tool says that it has failed: read from the result's first level, wherever `isError` stands in it."""

import msgspec

from app.protocol.jsonrpc import ABSENT, members_of


class _Said(msgspec.Struct, gc=False, rename="camel"):
    is_error: bool = False


_decode = msgspec.json.Decoder(_Said).decode


def is_tool_error(result: msgspec.Raw) -> bool:
    """Only of `true`: as for clients, anything else is no error."""
    try:
        return _decode(result).is_error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another type, or JSON that only others can read
        return bytes(members_of(result).get("isError", ABSENT)) == b"true"
