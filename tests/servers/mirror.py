"""Answers `mirror` with the `_meta` of the call, `hello` with that of `initialize`, `fail` with an error.

With `2026` it speaks 2026-07-28 only.
"""

import json
import sys

SESSIONLESS = sys.argv[1:] == ["2026"]
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("mirror", "fail", "hello")]
hello: dict = {}


def result_of(method, params):
    global hello
    if method == "initialize":
        hello = params.get("_meta", {})
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "m", "version": "1"}}
    if method == "server/discover" and SESSIONLESS:
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    if method == "tools/list":
        return {"resultType": "complete", "tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/call" and params["name"] in ("mirror", "hello"):
        text = json.dumps(params.get("_meta", {}) if params["name"] == "mirror" else hello)
        return {"resultType": "complete", "content": [{"type": "text", "text": text}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    result = result_of(message["method"], message.get("params", {}))
    if SESSIONLESS and message["method"] == "initialize":
        data = {"supported": ["2026-07-28"], "requested": message["params"]["protocolVersion"]}
        answer["error"] = {"code": -32022, "message": "Unsupported protocol version", "data": data}
    elif result is None:
        answer["error"] = {"code": -32601, "message": "no such method or tool"}
    else:
        answer["result"] = result
    print(json.dumps(answer), flush=True)
