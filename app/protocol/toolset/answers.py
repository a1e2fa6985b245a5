"""Answers that a toolset gives itself."""

from app.protocol.jsonrpc import INVALID_PARAMS, Request, Response, error_response, result_response
from app.protocol.tool_results import is_tool_error
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


def no_tool(message: Request, name: str, withheld: str | None) -> list[Out]:
    """There is no such tool, or it is `withheld`, with the reason."""
    if withheld is None:
        return invalid(message, f"Unknown tool: {name[:200]}")
    return [ToSession(error_response(message.id, INVALID_PARAMS, withheld, {"reason": "tool_withheld"}))]


def is_success(response: Response) -> bool:
    """Of a tool."""
    return response.member == "result" and not is_tool_error(response.value)
