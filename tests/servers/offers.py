"""A server for checks: two pages of tools, one prompt. The argument says what is wrong with it, if anything."""

import json
import sys

wrong = sys.argv[1] if len(sys.argv) > 1 else ""
capabilities: dict[str, dict[str, object]] = {"tools": {"listChanged": True}, "prompts": {}}
if wrong == "boastful":
    capabilities = {f"feature{number}": {"x": "y" * 1000} for number in range(100)}


def send(**message):
    line = {"jsonrpc": "2.0", **message}
    print(json.dumps([line] if wrong == "batches" else line), flush=True)


print("a banner that is no message", flush=True)
print("trying hard", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request or "method" not in request:
        continue
    if request["method"] == "initialize":
        if wrong == "silent":
            continue
        if wrong == "empty":
            send(id=request["id"], result={})
            continue
        # Questions come first; only who answers both gets an answer.
        send(id="q1", method="ping")
        send(id=7, method="roots/list")
        answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
        assert "result" in answers[0], answers
        assert "error" in answers[1], answers
        send(method="notifications/message", params={"level": "info", "data": "hello"})
        send(id=999, result={"not": "asked for"})
        server = {"name": "offers", "title": "T" * 500, "version": "1", "other": 5}
        send(
            id=request["id"],
            result={"protocolVersion": "2025-11-25", "serverInfo": server, "capabilities": capabilities},
        )
    elif wrong == "error":
        send(id=request["id"], error={"code": -32603, "message": "out of tools"})
    elif wrong == "dies":
        print("cannot go on", file=sys.stderr, flush=True)
        sys.exit(3)
    elif wrong == "endless":
        send(id=request["id"], result={"tools": [{"name": f"t{request['id']}"}], "nextCursor": "more"})
    elif request["method"] == "tools/list":
        first = "cursor" not in request["params"]
        send(
            id=request["id"],
            result={"tools": [{"name": "c"}], "nextCursor": "2"}
            if first
            else {"tools": [{"name": "a"}, {"name": "b"}]},
        )
    elif request["method"] == "prompts/list":
        send(id=request["id"], result={"prompts": [{"name": "p"}]})
