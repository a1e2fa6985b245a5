"""Answers that a toolset gives itself."""

from app.protocol.commands import is_tool_error
from app.protocol.jsonrpc import INVALID_PARAMS, Request, Response, error_response, result_response
from app.protocol.toolset.listing import Place, Withheld
from app.protocol.toolset.outs import Out, ToSession


def with_result(message: Request, result: bytes) -> list[Out]:
    """A result that is JSON already."""
    return [ToSession(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message.id, result))]


def empty(message: Request) -> Out:
    """There is nothing to say but that it is done."""
    return ToSession(result_response(message.id, {}))


def invalid(message: Request, words: str) -> list[Out]:
    """An error about the params."""
    return [ToSession(error_response(message.id, INVALID_PARAMS, words))]


def no_tool(message: Request, name: str, found: Place | Withheld | None) -> list[Out]:
    """No tool may be called by this name; if it is withheld, with the reason."""
    if isinstance(found, Withheld):
        return [ToSession(error_response(message.id, INVALID_PARAMS, found.why, {"reason": "tool_withheld"}))]
    return invalid(message, f"Unknown tool: {name[:200]}")


def is_success(response: Response) -> bool:
    """Of a tool."""
    return response.member == "result" and not is_tool_error(response.value)
