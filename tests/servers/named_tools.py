"""A server whose tools have the names that its arguments say, take anything and answer nothing. Standard library."""

import json
import sys

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in sys.argv[1:]]
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "named-tools", "version": "1"},
}
ANSWERS = {"initialize": HELLO, "tools/list": {"tools": TOOLS}, "tools/call": {"content": []}, "ping": {}}

for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": ANSWERS.get(request["method"], {})}
        print(json.dumps(answer), flush=True)
