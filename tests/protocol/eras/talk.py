"""A dialogue over a Bridge: the session's or the server's line in, what goes to which side out."""

import json
from collections.abc import Iterable
from typing import Any

from app.protocol.eras.bridge import Bridge, Out, Pause, ToServer

META = "io.modelcontextprotocol/"


INFO = {"name": "sessionless", "version": "1"}


LISTS = {"tools": {"listChanged": True}, "prompts": {"listChanged": False}, "resources": {"subscribe": True}}


TOOL = {"content": [{"type": "text", "text": "hi"}]}


ACCEPT = {"action": "accept", "content": {}}


SAY = {"method": "elicitation/create", "params": {"mode": "form", "message": "?"}}


class Talk:
    """Both sides of a bridge."""

    def __init__(self, version: str = "2025-11-25", capabilities: Any = None, *, server: Any = None) -> None:
        self.bridge = Bridge()
        self.version, self.capabilities = version, {"elicitation": {}} if capabilities is None else capabilities
        self.server_capabilities = LISTS if server is None else server

    def session(self, **message: Any) -> list[tuple[str, dict[str, Any]]]:
        return said(self.bridge.from_session(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def server(self, **message: Any) -> list[tuple[str, dict[str, Any]]]:
        return said(self.bridge.from_server(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    def opened(self) -> "Talk":
        params = {
            "protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": {"name": "c"},
        }  # fmt: skip
        self.session(id=1, method="initialize", params=params)
        self.server(id=1, result={"capabilities": self.server_capabilities, "_meta": {META + "serverInfo": INFO}})
        self.session(method="notifications/initialized")
        return self

    def call(self, call_id: int = 5, **params: Any) -> dict[str, Any]:
        """A tool call; its line to the server."""
        return one("server", self.session(id=call_id, method="tools/call", params={"name": "x", **params}))

    def goes_on(self, pause: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return said(self.bridge.go_on(json.dumps(pause["call"]).encode()))

    def asks(self, inner: Any, state: str | None = "s", **questions: Any) -> list[tuple[str, dict[str, Any]]]:
        result: dict[str, Any] = {"resultType": "input_required", "inputRequests": questions}
        if state is not None:
            result["requestState"] = state
        return self.server(id=inner, result=result)


def said(outs: Iterable[Out]) -> list[tuple[str, dict[str, Any]]]:
    return [_said(out) for out in outs]


def _said(out: Out) -> tuple[str, dict[str, Any]]:
    if isinstance(out, Pause):
        return "pause", {"call": json.loads(out.call), "seconds": out.seconds}
    return "server" if isinstance(out, ToServer) else "session", json.loads(out.line)


def one(side: str, outs: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    assert [to for to, _ in outs] == [side]
    return outs[0][1]


def envelope(line: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(META): value for name, value in line["params"]["_meta"].items()}
