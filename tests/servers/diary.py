"""An MCP server that keeps files in its home, or in the directory that DIARY names. Standard library only.

Tools: write (a file of this `name` with this `text`), read (the names and contents of all files), fill (writes so many
MiB into the directory that the variable `where` names, as files of 1 MiB each, and is not answered before it is
killed), who (the user's name and home as the system knows them).
"""

import getpass
import json
import os
import pwd
import sys
import time

HOME = os.environ.get("DIARY") or os.environ["HOME"]


def texts() -> dict[str, str]:
    return {name: open(f"{HOME}/{name}").read() for name in sorted(os.listdir(HOME)) if not name.startswith("fill-")}


def call(name: str, arguments: dict) -> object:
    if name == "write":
        with open(f"{HOME}/{arguments['name']}", "w") as file:
            file.write(arguments["text"])
    elif name == "fill":
        for number in range(arguments["mib"]):
            with open(f"{os.environ[arguments['where']]}/fill-{number}", "wb") as file:
                file.write(bytes(1 << 20))
        time.sleep(600)
    elif name == "who":
        return [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, os.getuid()]
    return texts()


def handle(message: dict) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        info = {"serverInfo": {"name": "diary", "version": "1"}, "protocolVersion": params["protocolVersion"]}
        result = {"capabilities": {"tools": {}}, **info}
    elif method == "tools/call":
        try:
            text = json.dumps(call(params["name"], params.get("arguments") or {}))
        except OSError as error:
            text = json.dumps(str(error))
        result = {"content": [{"type": "text", "text": text}]}
    else:
        result = {"tools": []}
    if request_id is not None:
        os.write(1, json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n")


for line in sys.stdin.buffer:
    handle(json.loads(line))
