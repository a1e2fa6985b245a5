"""Answers a call in two halves, and any other not yet: the rest comes when the client asks for the tools.

The argument `member` of a call is what its answer begins with: "id" or "result". Without it nothing comes of it before.
"""

import json
import sys

held: list[object] = []
rest = ""


def answer(request_id: object, result: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def text(content: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": content}]}


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "halves", "version": "1"}
        hello = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        print(answer(message["id"], hello), flush=True)
    elif method == "tools/call" and params["arguments"].get("member"):
        whole = {"jsonrpc": "2.0", "id": message["id"], "result": text("x" * 5000 + "whole")}
        if params["arguments"]["member"] == "result":
            whole["id"] = whole.pop("id")  # is the last member now
        begun, rest = json.dumps(whole)[:300], json.dumps(whole)[300:]
        print(begun, end="", flush=True)
    elif method == "tools/call":
        held.append(message["id"])
    elif method == "tools/list":
        late = (answer(each, text("late")) for each in held)
        print(rest, *late, answer(message["id"], {"tools": []}), sep="\n", flush=True)
        held.clear()
    elif "id" in message and method is not None:
        error = {"code": -32601, "message": method}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
