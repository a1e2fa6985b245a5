"""A server of one era, as the first argument says: `legacy`, `sessionless`, `batching`, which is of 2025-03-26 and puts
whatever comes together into a batch, or a revision of the handshake era; or as the file says that the second argument
names. Standard library only.

It never answers `tools/list`. Its tools:
`heard` answers with the client's capabilities: those of `initialize`, or of the request's envelope.
`ask` logs and asks for the client's roots; its answer, which progress comes before, is theirs.
`form` has the client fill in a form, whatever it has declared; its answer says what has come of that. So does whoever
reads a resource.
`park` is answered when `release` is called, which logs before it answers either; `is_parked` says whether it waits.
`last` waits for a file, answers, and ends the process.
`later` (sessionless) makes a file, and wants to be asked again until there is another.
"""

import json
import pathlib
import sys
import time

META = "io.modelcontextprotocol/"
ERA = sys.argv[1] if len(sys.argv) < 3 else pathlib.Path(sys.argv[2]).read_text()
IS_SESSIONLESS = ERA == "sessionless"
INFO = {"name": "eras", "version": "1"}
APPS = {"io.example/apps": {"mimeTypes": ["text/html"]}, META + "tasks": {}}
OFFERS = {"tools": {}, "logging": {}, "experimental": {"theirs": {"n": 1}}, "extensions": APPS}
FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
REVISION = {"legacy": "2025-11-25", "batching": "2025-03-26"}.get(ERA, ERA)
capabilities: dict = {}
parked: list = []
asked: dict = {}  # calls by the id of their question


def send(*messages: dict) -> None:
    lines = [{"jsonrpc": "2.0", **message} for message in messages]
    for line in [lines] if ERA == "batching" else lines:
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def answer(request_id: object, result: dict) -> None:
    send({"id": request_id, "result": result})


def refuse(request_id: object, code: int = -32601, message: str = "no such method", **data: object) -> None:
    send({"id": request_id, "error": {"code": code, "message": message, "data": data}})


def text(value: object) -> dict:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def greet(request_id: object, method: str, params: dict) -> bool:
    """Whether this was the beginning of the era that is spoken, or of the other."""
    global capabilities
    if method == "server/discover" and IS_SESSIONLESS:
        about = {"supportedVersions": ["2026-07-28"], "capabilities": OFFERS, "_meta": {META + "serverInfo": INFO}}
        answer(request_id, {**about, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
    elif method == "initialize" and IS_SESSIONLESS:
        refuse(request_id, -32022, "no", supported=["2026-07-28"])
    elif method == "initialize":
        capabilities = params["capabilities"]
        answer(request_id, {"protocolVersion": REVISION, "capabilities": OFFERS, "serverInfo": INFO})
    elif method == "server/discover":
        refuse(request_id)
    else:
        return False
    return True


def call(request_id: object, params: dict) -> None:
    if params["name"] == "heard":
        answer(request_id, text(capabilities))
    elif params["name"] == "ask":
        asked[f"ask-{request_id}"] = request_id, params["_meta"]["progressToken"]
        log = {"method": "notifications/message", "params": {"level": "info", "data": "asks"}}
        send(log, {"id": f"ask-{request_id}", "method": "roots/list"})

    elif params["name"] == "park":
        parked.append(request_id)
    elif params["name"] == "is_parked":
        answer(request_id, text(parked))
    elif params["name"] == "release":
        send({"method": "notifications/message", "params": {"level": "info", "data": "released"}})
        for waiting in [*parked, request_id]:
            answer(waiting, text("released"))
        parked.clear()
    elif params["name"] == "last":
        while not pathlib.Path(params["arguments"]["after"]).exists():
            time.sleep(0.01)
        answer(request_id, text("last words"))
        sys.exit()
    elif params["name"] == "later":
        asked_file, until = (pathlib.Path(params["arguments"][name]) for name in ("asked", "until"))
        asked_file.touch()
        again = {"resultType": "input_required", "requestState": "later"}
        answer(request_id, text("now") if until.exists() else again)
    elif params["name"] == "form" and not IS_SESSIONLESS:
        asked[f"ask-{request_id}"] = request_id, None
        send({"id": f"ask-{request_id}", "method": "elicitation/create", "params": FORM})
    elif params["name"] == "form" and "inputResponses" in params:
        answer(request_id, text(params["inputResponses"]["form"]["action"]))
    elif params["name"] == "form":
        asks = {"form": {"method": "elicitation/create", "params": FORM}}
        answer(request_id, {"resultType": "input_required", "inputRequests": asks})


def answered(message: dict) -> None:
    request_id, token = asked.pop(message["id"])
    if "error" in message:
        answer(request_id, {**text("refused"), "isError": True})
        return
    if "action" in message["result"]:
        answer(request_id, text(message["result"]["action"]))
        return
    progress = {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
    send(progress, {"id": request_id, "result": text(message["result"]["roots"][0]["uri"])})


for line in sys.stdin.buffer:
    message = json.loads(line)
    request_id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method is None:
        answered(message)
    if request_id is None or method is None or greet(request_id, method, params):
        continue
    if IS_SESSIONLESS:
        capabilities = params["_meta"][META + "clientCapabilities"]
    if method == "tools/call":
        call(request_id, params)
    elif method == "resources/read":
        call(request_id, {**params, "name": "form"})
    elif method != "tools/list":
        refuse(request_id)
