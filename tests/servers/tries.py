"""A server whose tools try what a sandbox or a limit may deny, and answer as SDKs do: `isError` with the error's words.

`write` a file, `connect` to an address, `fetch` a URL, start `threads`, `fill` a file of so many MiB, `hoard` memory,
`say` words as an error; `works` does nothing.
"""

import json
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

stay = threading.Event()


def write(path: str) -> str:
    with open(path, "a") as file:
        file.write("x")
    return "written"


def connect(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), 5).close()
    except OSError as error:
        raise OSError(f"connect to {host}:{port}: {error}") from None
    return "connected"


def fetch(url: str) -> str:
    urllib.request.urlopen(url, timeout=5).close()
    return "fetched"


def threads(count: int) -> str:
    for _ in range(count):
        threading.Thread(target=stay.wait, daemon=True).start()
    return "started"


def fill(path: str, mib: int) -> str:
    with open(path, "wb") as file:
        file.writelines(b"x" * (1 << 20) for _ in range(mib))
    return "filled"


def hoard(mib: int) -> str:
    """In a child, which is killed alone where the kernel kills no whole group."""
    child = os.fork()
    if child == 0:
        hoarded = [os.urandom(1 << 20) for _ in range(mib)]
        assert hoarded
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise MemoryError("the child was killed")
    return "hoarded"


def say(words: str, where: str = "answer") -> str:
    if where == "stderr":
        print(words, file=sys.stderr, flush=True)
        raise ValueError("it failed")
    raise ValueError(words)


def works() -> str:
    return "works"


TOOLS: dict[str, Callable[..., str]] = {
    each.__name__: each for each in (write, connect, fetch, threads, fill, hoard, say, works)
}


def called(params: dict[str, Any]) -> dict[str, object]:
    try:
        text = TOOLS[params["name"]](**params["arguments"])
        return {"content": [{"type": "text", "text": text}]}
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request or "method" not in request:
        continue
    member, result = "result", dict[str, object]()
    if request["method"] == "initialize":
        server = {"name": "tries", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "serverInfo": server, "capabilities": {"tools": {}}}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": each, "inputSchema": {"type": "object"}} for each in TOOLS]}
    elif request["method"] == "tools/call":
        result = called(request["params"])
    elif request["method"] == "prompts/list":
        member, result = "error", {"code": -32601, "message": "Method not found"}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], member: result}), flush=True)
