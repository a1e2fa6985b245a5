"""Errors without an id: whose they are."""

from app.protocol.jsonrpc import METHOD_NOT_FOUND, Response, code_of


def may_be_of_a_call(response: Response) -> bool:
    """Whether this is an error without an id of a server that may not have been able to read the call's. Who says that
    a method is unknown has read the message: it was a notification, which some servers refuse."""
    return response.id == b"null" and response.member == "error" and code_of(response) != METHOD_NOT_FOUND
