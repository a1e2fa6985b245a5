"""Says `count` times how far a call is, in messages of `size` bytes, and answers with its text `times` times."""

import json
import sys


def send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params") or {}
    if method == "initialize":
        info = {"name": "torrent", "version": "1"}
        hello = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        send(id=request["id"], result=hello)
    elif method == "tools/call":
        arguments = params["arguments"]
        for step in range(arguments.get("count", 0)):
            told = {"progressToken": params["_meta"]["progressToken"], "progress": step}
            send(method="notifications/progress", params=told | {"message": "x" * arguments["size"]})
        if arguments.get("fails"):
            send(id=request["id"], error={"code": -32000, "message": arguments["text"]})
            continue
        text = arguments["text"] * arguments.get("times", 1)
        send(id=request["id"], result={"content": [{"type": "text", "text": text}]})
    elif method == "notifications/roots/list_changed":
        send(method="notifications/tools/list_changed")
    elif "id" in request and method is not None:
        send(id=request["id"], error={"code": -32601, "message": method})
