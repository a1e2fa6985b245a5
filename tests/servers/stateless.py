"""An MCP server that says what it has heard; for what sessions share, or lose. Standard library only.

Tools: echo, whoami (the inode of its stdin, and what it has heard), later (answered when `release` is called), release,
crash, log, progress, ask, ask_and_wait (asks `text` by `method`, once `among` calls wait to ask; answered with the
answer), change (says that its tools have changed), update, huge (writes a line of `bytes`).
`first`: a file; the first process to make it works, the others die at once.
"""

import itertools
import json
import os
import sys

CAPABILITIES = {"tools": {"listChanged": True}, "logging": {}, "resources": {"subscribe": True}}
heard: list[str] = []
held: list[object] = []
wanting: list[tuple[object, dict]] = []  # calls that wait to ask, and what
asked: dict[object, object] = {}  # the call, by the id of its open question
questions = itertools.count(1)


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")


def answer(request_id: object, text: str) -> None:
    send(id=request_id, result={"content": [{"type": "text", "text": text}]})


def want_to_ask(request_id: object, arguments: dict) -> None:
    wanting.append((request_id, arguments))
    if len(wanting) >= arguments.get("among", 1):
        while wanting:
            ask_for(*wanting.pop(0))


def ask_for(request_id: object, arguments: dict) -> None:
    method, text = arguments.get("method", "sampling/createMessage"), arguments.get("text", "")
    question = f"w{next(questions)}"
    asked[question] = request_id
    if method == "elicitation/create":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        send(id=question, method=method, params={"message": text, "requestedSchema": schema})
    else:
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        send(id=question, method=method, params={"messages": messages, "maxTokens": 9})


def call(request_id: object, params: dict) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "crash":
        os._exit(3)
    if name == "later":
        held.append(request_id)
        heard.append("later")
        return
    if name == "ask_and_wait":
        want_to_ask(request_id, arguments)
        return
    if name == "release":
        while held:
            answer(held.pop(0), "released")
    elif name == "log":
        send(method="notifications/message", params={"level": "info", "data": arguments["text"]})
    elif name == "progress":
        token = params["_meta"]["progressToken"]
        for step in range(arguments["n"]):
            send(method="notifications/progress", params={"progressToken": token, "progress": step})
    elif name == "ask":
        send(id="q", method="sampling/createMessage", params={})
    elif name == "change":
        send(method="notifications/tools/list_changed")
    elif name == "update":
        send(method="notifications/resources/updated", params={"uri": arguments["uri"]})
    text = arguments.get("text", "") if name == "echo" else json.dumps({"process": os.fstat(0).st_ino, "heard": heard})
    answer(request_id, "x" * arguments["bytes"] if name == "huge" else text)


def handle(message: dict) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None and message["id"] in asked:
        result = message.get("result", {"text": f"refused: {message.get('error')}"})
        answer(asked.pop(message["id"]), result.get("content", result).get("text", ""))
        return
    if method is None:
        heard.append("error" if "error" in message else "answer")
        return
    if method != "tools/call":
        heard.append(" ".join([method, *[str(params[key]) for key in ("level", "uri") if key in params]]))
    if request_id is None:
        return
    if method == "initialize":
        version = params["protocolVersion"]
        about = {"name": "stateless", "version": "1"}
        send(id=request_id, result={"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": about})
    elif method == "tools/call":
        call(request_id, params)
    else:
        send(id=request_id, result={})


if len(sys.argv) > 1:
    try:
        os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        sys.exit(7)
for line in sys.stdin:
    handle(json.loads(line))
