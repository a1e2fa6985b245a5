"""An MCP server with as many tools as its argument says, each of an ordinary size; or with those of a JSON file that it
names. Standard library only."""

import json
import sys
from typing import Any

COUNT = int(sys.argv[1]) if sys.argv[1].isdigit() else 0
TOOLS = [
    {
        "name": f"tool_{number}",
        "title": f"Tool {number}",
        "description": f"Does what tool number {number} does, with the text that it is given. " * 3,
        "inputSchema": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What it is to work on."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "At most so many."},
            },
            "required": ["text"],
        },
        "annotations": {"readOnlyHint": True},
    }
    for number in range(COUNT)
]
if not COUNT:
    with open(sys.argv[1], encoding="utf-8") as file:
        TOOLS = json.load(file)


def answer(message: dict[str, Any]) -> object:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "many-tools", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    return {"content": [{"type": "text", "text": params.get("arguments", {}).get("text", "")}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}) + "\n")
        sys.stdout.flush()
