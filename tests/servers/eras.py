"""A server of one era, `legacy` or `modern`, as the first argument says. Standard library only.

It never answers `tools/list`. The tool `heard` answers with the client's capabilities: those of `initialize`, or of the
request's envelope.
"""

import json
import sys

META = "io.modelcontextprotocol/"
IS_MODERN = sys.argv[1] == "modern"
INFO = {"name": "eras", "version": "1"}
APPS = {"io.example/apps": {"mimeTypes": ["text/html"]}, META + "tasks": {}}
OFFERS = {"tools": {}, "logging": {}, "experimental": {"theirs": {"n": 1}}, "extensions": APPS}
capabilities: dict = {}


def send(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: object) -> dict:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def greet(request_id: object, method: str, params: dict) -> bool:
    """Whether this was the beginning of the era that is spoken, or of the other."""
    global capabilities
    if method == "server/discover" and IS_MODERN:
        about = {"supportedVersions": ["2026-07-28"], "capabilities": OFFERS, "_meta": {META + "serverInfo": INFO}}
        send(id=request_id, result={**about, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
    elif method == "initialize" and IS_MODERN:
        error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
        send(id=request_id, error=error)
    elif method == "initialize":
        capabilities = params["capabilities"]
        about = {"protocolVersion": "2025-11-25", "capabilities": OFFERS, "serverInfo": INFO}
        send(id=request_id, result=about)
    elif method == "server/discover":
        send(id=request_id, error={"code": -32601, "message": "no such method"})
    else:
        return False
    return True


for line in sys.stdin.buffer:
    message = json.loads(line)
    request_id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if request_id is None or method is None or greet(request_id, method, params):
        continue
    if IS_MODERN:
        capabilities = params["_meta"][META + "clientCapabilities"]
    if method == "tools/list":
        continue
    if method == "tools/call" and params["name"] == "heard":
        send(id=request_id, result=text(capabilities))
    else:
        send(id=request_id, error={"code": -32601, "message": "no such method"})
