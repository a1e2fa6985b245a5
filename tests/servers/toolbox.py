"""A server with what a toolset must pass on: tools, prompts, resources, questions, progress, logging. Standard library.

Its argument is its name, which stands in everything that it says. The tools: `say` (its name and the text), `slow`
(progress, then after `seconds` the text), `ask` (asks the client for its roots, always with the id 1), `grow` (a tool
more, and list_changed), `die`, `count` (of its calls).
"""

import json
import os
import sys
import threading

NAME = sys.argv[1]
LOCK = threading.Lock()
TOOLS = ["say", "slow", "ask", "grow", "die", "count"]
ANSWERS: dict[int, object] = {}
calls = 0


def write(**message: object) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tool(name: str) -> dict:
    app = {"_meta": {"ui": {"resourceUri": f"ui://{NAME}/app"}}} if name == "say" else {}
    return {"name": name, "description": f"{name} of {NAME}", "inputSchema": {"type": "object"}, **app}


def text(words: object) -> dict:
    return {"content": [{"type": "text", "text": f"{NAME}: {words}"}]}


def call(request_id: object, params: dict) -> None:
    global calls
    calls += 1
    name, arguments, token = params["name"], params.get("arguments", {}), params.get("_meta", {}).get("progressToken")
    if name == "ask":
        ANSWERS[1] = request_id
        write(id=1, method="roots/list")
        return
    if name == "die":
        os._exit(3)
    if name == "grow":
        TOOLS.append("grown")
        write(method="notifications/tools/list_changed")
    if name == "slow":
        write(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": NAME})
        threading.Timer(arguments.get("seconds", 0.1), write, [], {"id": request_id, "result": text("late")}).start()
        return
    write(id=request_id, result=text(calls if name == "count" else arguments.get("text", "")))


def answer(message: dict) -> object:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}, "logging": {}}
        info = {"name": NAME, "version": "1"}
        version = params["protocolVersion"]
        instructions = f"Use {NAME}."
        return {
            "protocolVersion": version, "capabilities": capabilities, "serverInfo": info, "instructions": instructions
        }  # fmt: skip
    lists = {
        "tools/list": {"tools": [tool(name) for name in TOOLS]},
        "prompts/list": {"prompts": [{"name": "hello", "description": NAME}]},
        "resources/list": {"resources": [{"uri": uri, "name": uri} for uri in (f"note://{NAME}/1", "note://all")]},
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": f"{NAME}://{{id}}", "name": "any"}]},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": f"{NAME} {params}"}}]},
        "resources/read": {"contents": [{"uri": params.get("uri"), "text": NAME}]},
        "completion/complete": {"completion": {"values": [NAME, str(params.get("ref", {}).get("name"))]}},
    }
    return lists.get(method, {})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        asked = ANSWERS.pop(message["id"])
        write(id=asked, result=text(json.dumps(message.get("result", message.get("error")))))
    elif "id" not in message:
        continue
    elif message["method"] == "tools/call":
        call(message["id"], message["params"])
    else:
        write(id=message["id"], result=answer(message))
        if message["method"] == "logging/setLevel":
            write(method="notifications/message", params={"level": "info", "data": f"{NAME} {message['params']}"})
        if message["method"] == "resources/subscribe":
            write(method="notifications/resources/updated", params={"uri": message["params"]["uri"]})
