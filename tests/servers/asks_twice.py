"""An MCP server of the handshake era that asks its client two questions. Standard library only.

The tool `choose` elicits both answers; `poll` elicits the first and has the client's model say the second. argv: a
file, to which it writes a line when a call begins, and another before it is answered. The questions say which call
they are of, and of which process, by the inode of its stdin. A call that is cancelled just stays unanswered; the tool
`ponder` is never answered.
"""

import json
import os
import sys

PROCESS = os.fstat(0).st_ino
os.umask(0)  # each node gives its processes another user id
JOURNAL = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
FIELDS = ("name", "color")
calls: dict[object, dict] = {}  # by the id of the question that is open


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def note(word: str, number: object) -> None:
    os.write(JOURNAL, f"{word} {number}\n".encode())


def ask(call: dict) -> None:
    field = FIELDS[len(call["answers"])]
    question_id = f"{call['id']}-{field}"
    calls[question_id] = call
    about = f"{call['n']} {PROCESS}"
    if call["tool"] == "poll" and call["answers"]:
        messages = [{"role": "user", "content": {"type": "text", "text": about}}]
        send(id=question_id, method="sampling/createMessage", params={"messages": messages, "maxTokens": 9})
        return
    schema = {"type": "object", "properties": {field: {"type": "string"}}}
    send(id=question_id, method="elicitation/create", params={"message": about, "requestedSchema": schema})


def answered(message: dict) -> None:
    call = calls.pop(message["id"], None)
    if call is None or "result" not in message:
        return
    content = message["result"]["content"]
    call["answers"].append(content["text"] if "text" in content else content[FIELDS[len(call["answers"])]])
    if len(call["answers"]) < len(FIELDS):
        ask(call)
        return
    note("ended", call["n"])
    send(id=call["id"], result={"content": [{"type": "text", "text": " likes ".join(call["answers"])}]})


def handle(message: dict) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        answered(message)
    elif method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "asks-twice", "version": "1"}}
        send(id=request_id, result={"protocolVersion": params["protocolVersion"], **about})
    elif method == "tools/list":
        names = ("choose", "poll", "ponder")
        send(id=request_id, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "tools/call" and params["name"] == "ponder":
        note("ponders", PROCESS)
    elif method == "tools/call":
        note("began", params["arguments"]["n"])
        ask({"id": request_id, "tool": params["name"], "n": params["arguments"]["n"], "answers": []})
    elif request_id is not None:
        send(id=request_id, error={"code": -32601, "message": "no such method"})


for line in sys.stdin.buffer:
    handle(json.loads(line))
