"""A server that takes every message for a request, and refuses notifications with an error without an id."""

import json
import sys
import time

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params") or {}
    answer = {"jsonrpc": "2.0", "id": asked.get("id")}
    if method == "initialize":
        about = {"name": "refuses-notifications", "version": "0"}
        version = params.get("protocolVersion", "2025-11-25")
        answer["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "ping":
        answer["result"] = {}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        time.sleep(params.get("arguments", {}).get("seconds", 0))
        answer["result"] = {"content": [{"type": "text", "text": "done"}]}
    else:
        answer["error"] = {"code": -32601, "message": f"Method not found: {method}"}
    print(json.dumps(answer), flush=True)
