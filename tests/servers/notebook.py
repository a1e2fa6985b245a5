"""An MCP server of the handshake era that keeps what it is told, in its memory only. Standard library only.

Every answer says by the inode of its stdin which process it is from. Tools: put and keys (of what was put); ask (puts
what its client answers); twice (the same, with two questions); meet (answered when a second call with this key is
there: both then); hold (never answered; the method vendor/hold is the same); held (answered once such a hold has
come); say (a log message at this level, and an answer); exit. `prompts/list` has pages, whose cursors no other
process knows.
"""

import json
import os
import secrets
import sys

PROCESS = os.fstat(0).st_ino
PROMPTS = [f"prompt-{number}" for number in range(5)]
TOOLS = ("put", "keys", "ask", "twice", "meet", "hold", "held", "say", "exit")
stored: dict[str, object] = {}
asked: dict[object, tuple[object, dict]] = {}  # by the id of the question: the call and its arguments
meeting: dict[str, object] = {}
holding: set[str] = set()
waiting: dict[str, list[object]] = {}  # for a hold
cursors: dict[str, int] = {}


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def say(request_id: object, **more: object) -> None:
    text = json.dumps({"process": PROCESS, "count": len(stored), **more})
    send(id=request_id, result={"content": [{"type": "text", "text": text}]})


def ask(request_id: object, arguments: dict, field: str) -> None:
    question_id = f"{request_id}-{field}"
    asked[question_id] = request_id, arguments
    schema = {"type": "object", "properties": {field: {"type": "string"}}}
    message = f"{arguments['key']} {PROCESS}"
    send(id=question_id, method="elicitation/create", params={"message": message, "requestedSchema": schema})


def answered(message: dict) -> None:
    request_id, arguments = asked.pop(message["id"], (None, {}))
    if request_id is None:
        return
    if "result" not in message:
        send(id=request_id, error={"code": -32000, "message": message["error"]["message"]})
        return
    ((field, value),) = message["result"]["content"].items()
    if field == "first":
        ask(request_id, arguments, "second")
        return
    stored[arguments["key"]] = value
    say(request_id, value=value)


def call(request_id: object, name: str, arguments: dict) -> None:
    key = arguments.get("key", "")
    if name == "put":
        stored[key] = arguments.get("value")
        say(request_id)
    elif name == "keys":
        say(request_id, stored=stored)
    elif name == "ask":
        ask(request_id, arguments, "value")
    elif name == "twice":
        ask(request_id, arguments, "first")
    elif name == "meet" and key in meeting:
        say(meeting.pop(key))
        say(request_id)
    elif name == "meet":
        meeting[key] = request_id
    elif name == "hold":
        holding.add(key)
        for each in waiting.pop(key, ()):
            say(each)
    elif name == "held" and key not in holding:
        waiting.setdefault(key, []).append(request_id)
    elif name == "say":
        send(method="notifications/message", params={"level": arguments["level"], "data": key})
        say(request_id)
    elif name == "exit":
        os._exit(3)
    else:
        say(request_id)


def prompts(params: dict) -> dict:
    start = cursors.get(params["cursor"], -1) if "cursor" in params else 0
    if start < 0:
        raise KeyError
    page: dict = {"prompts": [{"name": name} for name in PROMPTS[start : start + 2]]}
    if start + 2 < len(PROMPTS):
        page["nextCursor"] = secrets.token_hex(8)
        cursors[page["nextCursor"]] = start + 2
    return page


def handle(message: dict) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        answered(message)
    elif method == "initialize":
        info = {"serverInfo": {"name": "notebook", "version": "1"}, "protocolVersion": params["protocolVersion"]}
        send(id=request_id, result={"capabilities": {"tools": {}, "prompts": {}, "logging": {}}, **info})
    elif method == "tools/list":
        send(id=request_id, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
    elif method == "prompts/list":
        try:
            send(id=request_id, result=prompts(params))
        except KeyError:
            send(id=request_id, error={"code": -32602, "message": "a cursor of another process"})
    elif method == "tools/call":
        call(request_id, params["name"], params.get("arguments") or {})
    elif method == "vendor/hold":
        call(request_id, "hold", params)
    elif method == "logging/setLevel":
        send(id=request_id, result={})
    elif request_id is not None:
        send(id=request_id, error={"code": -32601, "message": "no such method"})


for line in sys.stdin.buffer:
    handle(json.loads(line))
