"""Holds every call until its client says that its list of roots has changed: then the oldest is answered with its name.

Appends the name of each call that arrives to the file it is given, and "-" with the name of each that is cancelled.
"""

import json
import sys

trace = open(sys.argv[1], "a", buffering=1)  # noqa: SIM115 - as long as the process
held: dict[object, str] = {}


def answer(request_id: object, result: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "turnstile", "version": "1"}
        answer(
            message["id"],
            {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info},
        )
    elif method == "tools/call":
        held[message["id"]] = params["name"]
        print(params["name"], file=trace)
    elif method == "notifications/cancelled":
        print("-" + held.pop(params["requestId"], "?"), file=trace)
    elif method == "notifications/roots/list_changed" and held:
        first = next(iter(held))
        answer(first, {"content": [{"type": "text", "text": held.pop(first)}]})
    elif "id" in message and method is not None:
        print(
            json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": method}}),
            flush=True,
        )
