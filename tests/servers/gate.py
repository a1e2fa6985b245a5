"""Answers `initialize` once the directory that it is given has a file `open`, and then offers one tool, `through`.

Each call of it is written to the directory's file `calls` first, with its argument `token` and this process's id.
"""

import json
import os
import sys
import time
from pathlib import Path

gate = Path(sys.argv[1], "open")
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result: object = {"tools": [{"name": "through", "inputSchema": {"type": "object"}}]}
    if message["method"] == "initialize":
        while not gate.exists():
            time.sleep(0.02)
        info = {"name": "gate", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/call":
        token = message["params"].get("arguments", {}).get("token", "")
        with Path(sys.argv[1], "calls").open("a") as calls:
            calls.write(f"{token} {os.fstat(0).st_ino}\n")
        result = {"content": [{"type": "text", "text": token}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
