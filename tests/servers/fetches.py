"""An MCP server whose tool `fetch` reads a URL, with the proxies and authorities that its environment names."""

import json
import sys
import urllib.request


def answered(method: str, params: dict) -> dict:
    if method == "initialize":
        info = {"name": "fetches", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
        return {"tools": [{"name": "fetch", "inputSchema": schema}]}
    try:
        text = urllib.request.urlopen(params["arguments"]["url"], timeout=30).read().decode()
        return {"content": [{"type": "text", "text": text}]}
    except OSError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answered(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
