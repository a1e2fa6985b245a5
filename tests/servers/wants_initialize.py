"""A server that ends unless its first message is `initialize` or `ping`, as older Rust SDKs do. It has one tool."""

import json
import sys

TOOL = {"name": "say", "inputSchema": {"type": "object"}}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "wants-initialize", "version": "1"},
    },
    "ping": {},
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "said"}]},
}

for number, line in enumerate(sys.stdin):
    message = json.loads(line)
    if not number and message["method"] not in ("initialize", "ping"):
        sys.exit("Error: expect initialized request")
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[message["method"]]}
        print(json.dumps(answer), flush=True)
