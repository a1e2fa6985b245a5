"""Errors without an id: whose they are."""

from app.protocol.jsonrpc import INVALID_REQUEST, PARSE_ERROR, Response, code_of

_UNREADABLE = (PARSE_ERROR, INVALID_REQUEST)  # for which JSON-RPC has an id of null; others name what was read
_FIRST = ("initialize", "server/discover")


def is_without_id(response: Response) -> bool:
    """Whether this is an error that names no request."""
    return response.id == b"null" and response.member == "error"


def may_be_of_a_call(response: Response, method: str) -> bool:
    """Whether this is an error without an id of a server that may not have been able to read the call, which is the
    only one, and the last message that it got. Any other error may be about what failed beside the call; but before the
    first message there is nothing."""
    return is_without_id(response) and (method in _FIRST or code_of(response) in _UNREADABLE)
