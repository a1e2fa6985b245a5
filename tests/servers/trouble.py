"""A server in trouble: refuses to start without a setting, eats memory, hangs.

Tools: fine() answers; eat(mib) keeps so much; hang() never answers. With `needs NAME` as its arguments it ends at once
unless the environment has that variable; with `opens NAME` unless it can read the file that the variable names.
"""

import json
import os
import sys

kept: list[bytearray] = []


def result_of(method: str, params: dict) -> dict:
    if method == "initialize":
        about = {"name": "trouble", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("fine", "eat", "hang")]}
    if params.get("name") == "eat":
        kept.append(bytearray(b"x") * (int(params["arguments"]["mib"]) << 20))
    return {"content": [{"type": "text", "text": "done"}]}


def main() -> None:
    if sys.argv[1:2] == ["needs"] and sys.argv[2] not in os.environ:
        sys.exit(f"fatal: {sys.argv[2]} is not set")
    if sys.argv[1:2] == ["opens"]:
        with open(os.environ[sys.argv[2]], encoding="utf-8") as file:
            file.read()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        params = message.get("params") or {}
        if message["method"] == "tools/call" and params.get("name") == "hang":
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result_of(message["method"], params)}
        print(json.dumps(answer), flush=True)


main()
