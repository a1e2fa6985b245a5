"""An MCP server that counts what it is asked: each answer is how many of the same process came before it.

Tools: count (answered after `ms`), tell (progress and a log message first), fail (an error as result), big (a text of
`bytes` after `ms`, which is not counted), wait (never answered). The resource ledger://count and the prompt `count`
count as well. Standard library only.
"""

import itertools
import json
import os
import sys
import threading

numbers = itertools.count()
writing = threading.Lock()
SCHEMA = {"type": "object", "properties": {"ms": {"type": "integer"}, "bytes": {"type": "integer"}}}
TOOLS = [
    {"name": name, "description": name, "inputSchema": SCHEMA} for name in ("count", "tell", "fail", "big", "wait")
]


def send(**message: object) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"
    with writing:
        while line:
            line = line[os.write(1, line) :]


def call(request_id: object, params: dict) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "wait":
        return
    text = "x" * arguments["bytes"] if name == "big" else str(next(numbers))
    if name == "tell":
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            send(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2})
        send(method="notifications/message", params={"level": "info", "data": "told"})
    result = {"content": [{"type": "text", "text": text}], "isError": name == "fail"}
    if ms := arguments.get("ms"):
        threading.Timer(ms / 1000, send, kwargs={"id": request_id, "result": result}).start()
    else:
        send(id=request_id, result=result)


def answer(method: str, params: dict) -> object:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}},
            "serverInfo": {"name": "ledger", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "resources/list":
        return {"resources": [{"uri": "ledger://count", "name": "count"}]}
    if method == "prompts/list":
        return {"prompts": [{"name": "count"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": str(next(numbers))}]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": str(next(numbers))}}]}
    return {} if method in ("ping", "logging/setLevel") else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    if message["method"] == "tools/call":
        call(message["id"], message["params"])
    elif (result := answer(message["method"], message.get("params") or {})) is not None:
        send(id=message["id"], result=result)
    else:
        send(id=message["id"], error={"code": -32601, "message": "Method not found"})
os._exit(0)
