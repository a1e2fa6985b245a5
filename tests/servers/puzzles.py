"""A stdio server whose schemas, questions, progress and results are made to break whoever draws them.

Standard library only; one request at a time.
"""

import json
import sys
from typing import Any

AGAIN = {"$ref": "#"}
NAMES = [
    "__proto__",
    "constructor",
    "toString",
    "action",
    "submit",
    "elements",
    "hasOwnProperty",
    "length",
    "id",
    "name",
]
SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0id2luZG93LmhpdD0xIi8+"
SCHEMAS: dict[str, Any] = {
    "variants": {"type": "object", "properties": {"a": {"anyOf": [AGAIN] * 12}}},
    "members": {"type": "object", "properties": {f"m{n}": AGAIN for n in range(12)}},
    "items": {"type": "object", "properties": {"a": {"type": "array", "minItems": 20, "items": AGAIN}}},
    "alone": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}},
    "itself": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    "outside": {"type": "object", "properties": {"a": {"$ref": "#/__proto__/constructor"}, "b": {"$ref": "file:///x"}}},
    "thousands": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
    "choices": {"type": "object", "properties": {"a": {"enum": [str(n) for n in range(100_000)]}}},
    "names": {"type": "object", "properties": {each: {"type": "string"} for each in NAMES}, "required": NAMES},
    "pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
    "odd": {
        "type": "object",
        "required": 5,
        "properties": {
            "a": {"oneOf": {}}, "b": {"enum": "abc"}, "c": None, "d": 7, "e": {"anyOf": [None, 3, {"type": "string"}]},
            "f": {"type": {"x": 1}}, "g": {"type": [None]}, "h": {"type": "string", "examples": {"length": 3}},
            "i": {"type": "array", "items": 5, "minItems": "x"}, "j": {"type": "string", "maxLength": -5},
            "k": {"type": "object", "properties": "abc"}, "l": {"enum": [1], "oneOf": 5}, "m": {"anyOf": "xyz"},
            "n": {"type": "string", "maxLength": "5", "title": {"x": 1}, "description": {"toString": 1}},
            "o": {"type": "number", "minimum": {"a": 1}, "default": "x"}, "p": {"const": {"a": 1}},
            "q": {"type": "object", "properties": None}, "r": {"oneOf": [{"const": 1}, {"const": 2}], "enumNames": 5},
        },
    },
    "nothing": 5,
}  # fmt: skip


def nested() -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": {"end": {"type": "string"}}}
    for _ in range(300):
        found = {"type": "object", "properties": {"deeper": found}}
    return found


SCHEMAS["deep"] = nested()
PLAIN = {"type": "object", "properties": {}}
OTHERS = ("large", "pictures", "links", "progress", "crowd", "shapeless", "stream")


def write(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def progress(token: Any) -> None:
    """Numbers that are none."""
    for number, total in ((1, 5), ("x", 5), (1, "5x"), (None, 3), (1e308, 1e-308), (-1, 2), ({}, 1)):
        about = {"progressToken": token, "progress": number, "total": total, "message": {"a": 1}}
        write({"method": "notifications/progress", "params": about})
    # JSON has no infinite numbers, but one that is too large.
    inner = f'"progressToken": {json.dumps(token)}, "progress": 1e999, "total": 1e999'
    print(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{{{inner}}}}}', flush=True)
    write({"method": "notifications/progress"})
    write({"method": "notifications/message", "params": {"level": {"a": 1}, "data": None}})


def result(name: str, arguments: Any, token: Any) -> Any:
    if name == "large":
        return {"content": [{"type": "text", "text": "x<b>y" * 1_600_000}], "structuredContent": {"a": "z" * 1_000_000}}
    if name == "stream":
        write({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        return {"content": [{"type": "text", "text": "0123456789" * 1_200_000}]}
    if name == "pictures":
        kinds = (
            "image/svg+xml",
            "text/html",
            "image/png",
            "image/svg+xml;charset=x,<script>",
            "IMAGE/SVG+XML",
            5,
            None,
        )
        made: list[Any] = [{"type": "image", "mimeType": each, "data": SVG} for each in kinds]
        made.append({"type": "image", "mimeType": "image/png", "data": "'><script>window.hit=1</script>"})
        odd: Any = {"toString": 1, "valueOf": 1}
        made += [{"type": "audio", "mimeType": odd, "data": "AAAA"}, {"type": odd}, {"type": "text", "text": odd}]
        return {
            "content": [*made, None, 5, {"type": "resource", "resource": {"uri": odd, "mimeType": odd, "blob": SVG}}]
        }
    if name == "links":
        addresses = ("javascript:window.hit=1", "data:text/html,<script>window.hit=1</script>", "//evil.example")
        return {"content": [{"type": "resource_link", "uri": each, "name": each} for each in addresses]}
    if name == "progress":
        progress(token)
        return {"content": [{"type": "text", "text": "it went on"}]}
    if name == "crowd":
        for number in range(200):
            asked = {"message": f"question {number}", "requestedSchema": PLAIN}
            write({"id": f"q{number}", "method": "elicitation/create", "params": asked})
        return {"content": [{"type": "text", "text": "asked"}]}
    if name == "shapeless":
        return {"content": {"a": 1}, "messages": 5, "contents": "abc"}
    return {"content": [{"type": "text", "text": json.dumps(arguments)}]}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            about = {"name": "puzzles", "version": "1"}
            given = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
            write({"id": message["id"], "result": given})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": schema} for name, schema in SCHEMAS.items()]
            tools += [{"name": name, "inputSchema": PLAIN} for name in OTHERS]
            write({"id": message["id"], "result": {"tools": tools}})
        elif method == "tools/call":
            token = (params.get("_meta") or {}).get("progressToken")
            write({"id": message["id"], "result": result(params["name"], params.get("arguments"), token)})
        else:
            write({"id": message["id"], "result": {}})


if __name__ == "__main__":
    main()
