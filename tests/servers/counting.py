"""An MCP server without state whose calls leave a trace: each is written to a file before it is answered.

Its argument is the file; a line is the `token` of one executed call. Tools: mark(token, ms) answers after so many
milliseconds; tell(token) sends notifications/resources/updated with the token as its URI, then answers. A call with a
progress token has its progress told once, at its beginning.
"""

import json
import os
import sys
import threading

os.umask(0)  # each node gives its processes another user id
trace = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")


def call(request_id: object, params: dict) -> None:
    arguments = params.get("arguments") or {}
    token = arguments["token"]
    os.write(trace, token.encode() + b"\n")
    if "progressToken" in (params.get("_meta") or {}):
        send(method="notifications/progress", params={"progressToken": params["_meta"]["progressToken"], "progress": 0})
    if params["name"] == "tell":
        send(method="notifications/resources/updated", params={"uri": token})
    result = {"content": [{"type": "text", "text": token}]}
    if arguments.get("ms"):
        threading.Timer(arguments["ms"] / 1000, send, kwargs={"id": request_id, "result": result}).start()
    else:
        send(id=request_id, result=result)


for line in sys.stdin:
    message = json.loads(line)
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if request_id is None or method is None:
        continue
    if method == "initialize":
        about = {"name": "counting", "version": "1"}
        version = params["protocolVersion"]
        send(id=request_id, result={"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": about})
    elif method == "tools/call":
        call(request_id, params)
    else:
        send(id=request_id, result={})
os._exit(0)
