"""A member of a toolset that spoils the others what it can. Standard library; the argument says how.

`asks`: pings in the handshake, and asks for roots before it lists. `mute`: never answers `initialize`. `restless`: with
the first call it says without end that its 5000 tools have changed. `claims`: its tasks have the id of every other
server's.
"""

import json
import sys
import threading

HOW = sys.argv[1]
LOCK = threading.Lock()
capabilities: dict = {"tools": {"listChanged": True}}
tools: list[dict] = [{"name": "say", "inputSchema": {"type": "object"}}]
if HOW == "claims":
    capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
if HOW == "restless":
    text = "word " * 40
    tools = [
        {"name": f"tool{number}", "description": text, "inputSchema": {"type": "object"}} for number in range(5000)
    ]


def write(**message: object) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method: str) -> dict:
    write(id=method, method=method)
    return json.loads(sys.stdin.readline())


def change_without_end() -> None:
    while True:
        write(method="notifications/tools/list_changed")


def call(request: dict) -> None:
    if HOW == "restless":
        threading.Thread(target=change_without_end, daemon=True).start()
    if "task" in request["params"]:
        task = {"taskId": "1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None, "x": sys.argv[2]}
        write(id=request["id"], result={"task": task})
        return
    write(id=request["id"], result={"content": [{"type": "text", "text": HOW}]})


for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method", "")
    if "id" not in request or not method:
        continue
    if method == "initialize":
        if HOW == "mute":
            continue
        if HOW == "asks":
            assert "result" in ask("ping")
        version = request["params"]["protocolVersion"]
        info = {"name": HOW, "version": "1"}
        write(id=request["id"], result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
    elif method == "tools/list":
        if HOW == "asks":
            assert "error" in ask("roots/list")
        write(id=request["id"], result={"tools": tools})
    elif method == "tools/call":
        call(request)
    elif method == "tasks/get":
        write(id=request["id"], result={"taskId": "1", "status": "working", "x": sys.argv[2]})
    else:
        write(id=request["id"], result={})
