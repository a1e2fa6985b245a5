"""A server whose every text is hostile to who shows it: markup, scripts, quotes, control characters, very long words.

Its first argument is a suffix of its descriptions, so that they change with it. With `dies` it ends at once.
Tools: those of TEXTS answer with all of them, after log messages and progress; `fails`, `errs` and `dies` do so.
"""

import json
import sys

TEXTS = (
    "<script>window.hit = 1</script>",
    "\"'><img src=x onerror=window.hit=1>",
    "</textarea></title></pre></script><svg onload=window.hit=1>",
    "javascript:window.hit=1//{{ 7 * 7 }}${7 * 7}",
    "\u202egnp.exe \u2066mixed\u2067 \u05e9\u05dc\u05d5\u05dd",
    "line one\nline two\ttab\r\nline three\u2028line four",
    "W" * 1500,
    "\\'\"`&lt;&#60;%3Cscript%3E\\u003cscript\\u003e",
)


def send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def described(number: int, suffix: str) -> dict[str, str]:
    return {"title": TEXTS[number - 1], "description": TEXTS[number] + suffix}


def tool(number: int, suffix: str) -> dict[str, object]:
    properties = {
        TEXTS[number - 1][:60]: {"type": "string", "title": TEXTS[number], "description": TEXTS[number - 2]},
        "choice": {"type": "string", "enum": list(TEXTS), "default": TEXTS[number]},
        "text": {"type": "string", "default": TEXTS[number]},
    }
    schema = {"type": "object", "properties": properties, "title": TEXTS[number], "description": TEXTS[number]}
    return {"name": TEXTS[number][:128], **described(number, suffix), "inputSchema": schema}


def lists(suffix: str) -> dict[str, dict[str, object]]:
    numbers = range(len(TEXTS))
    plain = [{"name": name, "inputSchema": {"type": "object"}} for name in ("fails", "errs", "dies")]
    arguments = [{"name": text[:60], "description": text} for text in TEXTS]
    prompts = [{"name": TEXTS[number], **described(number, suffix), "arguments": arguments} for number in numbers]
    kinds = [{"name": TEXTS[number], **described(number, suffix), "mimeType": TEXTS[number]} for number in numbers]
    return {
        "tools/list": {"tools": [*(tool(number, suffix) for number in numbers), *plain]},
        "prompts/list": {"prompts": prompts},
        "resources/list": {"resources": [{**each, "uri": f"wall://{each['name']}"} for each in kinds]},
        "resources/templates/list": {"resourceTemplates": [{**each, "uriTemplate": "wall://{x}"} for each in kinds]},
    }


def result_of(method: str, params: dict) -> dict[str, object]:
    content = [{"type": "text", "text": text} for text in TEXTS]
    if method == "prompts/get":
        messages = [{"role": "user", "content": each} for each in content]
        return {"description": TEXTS[0], "messages": messages}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "mimeType": "text/html", "text": text} for text in TEXTS]}
    for text in TEXTS:
        send(method="notifications/message", params={"level": "error", "logger": text, "data": text})
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            send(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": text})
    return {
        "content": content,
        "structuredContent": {text: text for text in TEXTS},
        "isError": params["name"] == "fails",
    }


def main() -> None:
    suffix = sys.argv[1] if len(sys.argv) > 1 else ""
    print(*TEXTS, sep="\n", file=sys.stderr, flush=True)
    if suffix == "dies":
        sys.exit(3)
    listed = lists(suffix)
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        if method == "initialize":
            info = {"name": TEXTS[0], "title": TEXTS[2], "version": TEXTS[1]}
            offers: dict[str, object] = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}}
            hello = {"protocolVersion": "2025-11-25", "capabilities": offers, "serverInfo": info}
            send(id=message["id"], result={**hello, "instructions": "\n".join(TEXTS)})
        elif method in listed:
            send(id=message["id"], result=listed[method])
        elif params.get("name") == "errs":
            send(id=message["id"], error={"code": -32000, "message": " ".join(TEXTS)})
        elif params.get("name") == "dies":
            sys.exit(3)
        elif method in ("tools/call", "prompts/get", "resources/read"):
            send(id=message["id"], result=result_of(method, params))
        else:
            send(id=message["id"], result={})


if __name__ == "__main__":
    main()
