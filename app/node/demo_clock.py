"""A small MCP server that tells the time: the demo's backend where mcp-server-time is not installed.

It is started by its path as a process of its own, so it uses the standard library only. Speaks the handshake revisions.
"""

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # the newest first
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
TOOL = {
    "name": "get_current_time",
    "description": "The time now in a time zone.",
    "inputSchema": {
        "type": "object",
        "properties": {"timezone": {"type": "string", "description": "A name like Europe/Zurich; UTC if left out."}},
    },
}


class Refused(Exception):
    """The request gets an error with this code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a request. Raises Refused where it is an error."""
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in REVISIONS else REVISIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "trunkline-clock", "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        if params.get("name") != TOOL["name"]:
            raise Refused(INVALID_PARAMS, "there is one tool: get_current_time")
        return tell_time(str((params.get("arguments") or {}).get("timezone") or "UTC"))
    raise Refused(METHOD_NOT_FOUND, "this server has tools, and nothing else")


def tell_time(zone: str) -> dict[str, Any]:
    """The result of the tool; an unknown zone is an error of the tool, which a model can read."""
    try:
        now = datetime.now(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = f"unknown time zone {zone[:100]!r}; name one like Europe/Zurich"
        return {"content": [{"type": "text", "text": text}], "isError": True}
    told = json.dumps({"timezone": zone, "datetime": now.isoformat(timespec="seconds"), "day_of_week": f"{now:%A}"})
    return {"content": [{"type": "text", "text": told}], "isError": False}


def respond(line: str) -> dict[str, Any] | None:
    """The response to a line; None where it is a notification, or no request at all."""
    message = json.loads(line)
    if not isinstance(message, dict) or "id" not in message or "method" not in message:
        return None
    try:
        outcome: dict[str, Any] = {"result": answer(message["method"], message.get("params") or {})}
    except Refused as error:
        outcome = {"error": {"code": error.code, "message": str(error)}}
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


def main() -> None:
    """Answers until stdin ends."""
    for line in sys.stdin:
        response = respond(line)
        if response is not None:
            sys.stdout.write(json.dumps(response) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
