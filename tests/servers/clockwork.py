"""An MCP server that keeps what it is told in its memory, and has a clock; for what a frozen process sees. Standard
library only.

Tools: put (adds `text`), all (what was put, the inode of its stdin, and how long its clock says it has run), later (a
log message after `ms`), turns (how often its thread, which wakes every few milliseconds, has done so), ask (a question
to the client after `ms`, whose answer it adds), hold (never answered), child (starts a process that lives on; its pid).
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time

CAPABILITIES = {"tools": {}, "logging": {}, "resources": {"subscribe": True}}
EMPTY: dict = {"resources": [], "resourceTemplates": []}
TOOLS = ("put", "all", "later", "turns", "ask", "hold", "child")
began = time.monotonic()
said: list[str] = []
turns = itertools.count()
turned = 0


def turn() -> None:
    global turned
    while True:
        turned = next(turns)
        time.sleep(0.005)


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")


def soon(arguments: dict, **message: object) -> None:
    threading.Timer(arguments["ms"] / 1000, send, kwargs=message).start()


def call(request_id: object, params: dict) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    found: object = None
    if name == "put":
        said.append(arguments["text"])
    elif name == "all":
        found = {"said": said, "process": os.fstat(0).st_ino, "ran_s": time.monotonic() - began}
    elif name == "later":
        soon(arguments, method="notifications/message", params={"level": "info", "data": "later"})
    elif name == "turns":
        found = turned
    elif name == "ask":
        soon(arguments, id="q", method="roots/list")
    elif name == "hold":
        return
    elif name == "child":
        found = subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=True).pid
    send(id=request_id, result={"content": [{"type": "text", "text": json.dumps(found)}]})


threading.Thread(target=turn, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        said.append("answer")
    elif method == "initialize":
        about = {"name": "clockwork", "version": "1"}
        version = params["protocolVersion"]
        send(id=request_id, result={"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": about})
    elif method == "tools/list":
        send(id=request_id, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
    elif method == "tools/call":
        call(request_id, params)
    elif request_id is not None:
        send(id=request_id, result=EMPTY if method.endswith("/list") else {})
os._exit(0)
