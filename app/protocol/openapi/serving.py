"""ApiServer: answers as a server of MCP would that has the tools of an Api."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.protocol.jsonrpc import (
    ABSENT,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Request,
    error_response,
    result_response,
    string_of,
)
from app.protocol.openapi.api import Api, Operation
from app.protocol.revisions import HANDSHAKE, is_handshake

LIST = "tools/list"


class ApiServer:
    """One for all sessions: it keeps nothing of them."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._operations = {each.name: each for each in api.operations}

    def answer(self, request: Request) -> bytes:
        """The answer to anything but a call."""
        match request.method:
            case "initialize":
                return result_response(request.id, self._hello(request))
            case "ping":
                return result_response(request.id, {})
            case "tools/list":
                return b'{"jsonrpc":"2.0","id":%b,"result":{"tools":[%b]}}' % (request.id, self._tools())
            case other:
                return error_response(request.id, METHOD_NOT_FOUND, f"an API has no method {other[:100]}")

    def _hello(self, request: Request) -> dict[str, Any]:
        asked = string_of((request.params or {}).get("protocolVersion", ABSENT)) or ""
        server = {"name": self.api.title, "version": self.api.version}
        hello = {
            "protocolVersion": asked if is_handshake(asked) else HANDSHAKE[-1],
            "capabilities": {"tools": {}},
            "serverInfo": server,
        }
        return hello | ({"instructions": self.api.description} if self.api.description else {})

    def _tools(self) -> bytes:
        return b",".join(bytes(each.tool) for each in self.api.operations)

    def called(self, request: Request) -> tuple[Operation, Mapping[str, Any]] | bytes:
        """The operation and its arguments; or the answer, where there is no such tool."""
        params = request.params or {}
        operation = self._operations.get(string_of(params.get("name", ABSENT)) or "")
        if operation is None:
            return error_response(request.id, INVALID_PARAMS, "there is no tool of this name")
        try:
            arguments = msgspec.json.decode(params.get("arguments", b"null"), type=dict[str, Any] | None)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return error_response(request.id, INVALID_PARAMS, "`arguments` must be an object")
        return operation, arguments or {}
