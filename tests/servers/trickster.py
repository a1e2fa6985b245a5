"""A member of a toolset that spoils the others what it can. Standard library; the argument says how.

`asks`: pings in the handshake, and asks for roots before it lists. `mute`: never answers `initialize`. `boasts`: its
capabilities have many MiB. `restless`: with the first call it says without end that its 5000 tools have changed.
`nests`: a call is answered by brackets within brackets. `claims`: its tasks have the id of every other server's.
`equal`: tools whose names become equal. `pages`: a list without end. `quits`, `ponders`: it says that its tools have
changed, and when it is asked for them it ends, or does not answer.
"""

import json
import os
import sys
import threading

HOW = sys.argv[1]
LOCK = threading.Lock()
has_changed = False
capabilities: dict = {"tools": {"listChanged": True}}
tools: list[dict] = [{"name": "say", "inputSchema": {"type": "object"}}]
if HOW == "boasts":
    capabilities = {"experimental": {str(number): {"x": "y" * 1000} for number in range(12_000)}}
if HOW == "claims":
    capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
if HOW == "equal":
    tools = [{"name": "say.it"}, {"name": "say/it"}]
if HOW in ("many", "restless"):
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
    global has_changed
    if HOW == "restless":
        threading.Thread(target=change_without_end, daemon=True).start()
    if HOW in ("quits", "ponders"):
        has_changed = True
        write(method="notifications/tools/list_changed")
    if HOW == "nests":
        with LOCK:
            sys.stdout.write("[" * 100_000 + "]" * 100_000 + "\n" + '{"id":' * 5000 + "1" + "}" * 5000 + "\n")
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
        if has_changed and HOW == "quits":
            os._exit(3)
        if has_changed and HOW == "ponders":
            continue
        if HOW == "asks":
            assert "error" in ask("roots/list")
        more = {"nextCursor": "again"} if HOW == "pages" else {}
        write(id=request["id"], result={"tools": tools, **more})
    elif method == "tools/call":
        call(request)
    elif method == "tasks/get":
        write(id=request["id"], result={"taskId": "1", "status": "working", "x": sys.argv[2]})
    else:
        write(id=request["id"], result={})
