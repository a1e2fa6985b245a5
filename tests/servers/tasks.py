"""An MCP server with tasks, that tells and logs without saying to whom; for what a shared process keeps apart.

`sessionless`: it speaks 2026-07-28 only. Tools: start (makes a task; the answer says which), finish (says so of the
task `task`, twice: its status and a log message of it), say (at `level`, in a log message and in a notification of
its own), update (of a resource), levels (that it was told).
"""

import json
import os
import sys

SESSIONLESS = "2026-07-28"
is_sessionless = sys.argv[1:] == ["sessionless"]
tasks: dict[str, str] = {}
levels: list[str] = []
ABLE = {"tools": {}, "logging": {}, "resources": {"subscribe": True}, "tasks": {"list": {}, "cancel": {}}}


class Wrong(Exception):
    """The request cannot be answered: code and message."""


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def about(task: object) -> dict:
    if task not in tasks:
        raise Wrong(-32602, f"no task {task}")
    return {"taskId": task, "status": tasks[task], "createdAt": "2026-01-01T00:00:00Z", "ttl": None}


def start() -> dict:
    task = f"task-{len(tasks) + 1}"
    tasks[task] = "working"
    return {"resultType": "task", **about(task)} if is_sessionless else {"task": about(task)}


def finish(task: str) -> None:
    tasks[task] = "completed"
    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": task}}}
    send(method="notifications/tasks/status", params=about(task))
    send(method="notifications/message", params={"level": "warning", "data": f"{task} is done", **related})


def call(name: str, arguments: dict) -> dict:
    if name == "start":
        return start()
    if name == "finish":
        finish(arguments["task"])
    elif name == "say":
        send(method="notifications/message", params={"level": arguments["level"], "data": arguments["text"]})
        send(method="notifications/vendor/said", params={"text": arguments["text"]})
    elif name == "update":
        send(method="notifications/resources/updated", params={"uri": arguments["uri"]})
    return {"content": [{"type": "text", "text": json.dumps(levels)}]}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        if is_sessionless:
            raise Wrong(-32022, "no handshake")
        return {"protocolVersion": "2025-11-25", "capabilities": ABLE, "serverInfo": {"name": "tasks", "version": "1"}}
    if method == "server/discover" and is_sessionless:
        return {"supportedVersions": [SESSIONLESS], "capabilities": ABLE, "resultType": "complete"}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    if method == "tools/list":
        names = ("start", "finish", "say", "update", "levels")
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    if method == "tasks/list":
        return {"tasks": [about(task) for task in tasks]}
    if method in ("tasks/get", "tasks/cancel", "tasks/result", "tasks/update"):
        return about(params["taskId"])
    if method == "logging/setLevel":
        levels.append(params["level"])
    elif method not in ("resources/subscribe", "resources/unsubscribe"):
        raise Wrong(-32601, "no such method")
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    try:
        send(id=message["id"], result=answer(message["method"], message.get("params") or {}))
    except Wrong as wrong:
        code, text = wrong.args
        data = {"supported": [SESSIONLESS]} if code == -32022 else None
        send(id=message["id"], error={"code": code, "message": text, "data": data})
