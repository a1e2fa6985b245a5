"""A stdio server with what a person may meet when they try tools: questions, progress, pictures, odd schemas, markup.

Standard library only; one request at a time.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
COLOURS = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
PLACE = {
    "type": "object",
    "title": "Place",
    "properties": {"city": {"type": "string"}, "floor": {"type": "integer", "minimum": 0}},
    "required": ["city"],
}
EVERY_KIND = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "Some text", "minLength": 2},
        "whole": {"type": "integer", "minimum": 1, "maximum": 9},
        "flag": {"type": "boolean"},
        "colour": COLOURS,
        "place": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "anything": {},
    },
    "required": ["text", "colour"],
    "$defs": {"place": PLACE},
}
NONE = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "every_kind", "description": "Says what it was given", "inputSchema": EVERY_KIND},
    {"name": "ask", "description": "Asks for a name", "inputSchema": NONE},
    {"name": "think", "description": "Asks a model", "inputSchema": NONE},
    {"name": "count", "description": "Tells its progress", "inputSchema": NONE},
    {"name": "picture", "description": "Answers with an image", "inputSchema": NONE},
    {"name": "markup", "title": MARKUP, "description": MARKUP, "inputSchema": NONE},
    {"name": "fails", "description": "Says that it has failed", "inputSchema": NONE},
]
PROMPT = {"name": "greet", "arguments": [{"name": "who", "required": True}]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def write(message: Mapping[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def asked(method: str, params: object) -> Any:
    """The client's answer."""
    write({"id": "q", "method": method, "params": params})
    return json.loads(sys.stdin.readline()).get("result")


def call(name: str, arguments: object, meta: Mapping[str, Any]) -> dict[str, Any]:
    if name == "ask":
        answer = asked("elicitation/create", {"message": f"Who? {MARKUP}", "requestedSchema": NAME})
        return text(json.dumps(answer))
    if name == "think":
        said = [{"role": "user", "content": {"type": "text", "text": MARKUP}}]
        return text(json.dumps(asked("sampling/createMessage", {"messages": said, "maxTokens": 10})))
    if name == "count":
        for number in range(1, 4):
            about = {"progressToken": meta.get("progressToken"), "progress": number, "total": 3, "message": "counting"}
            write({"method": "notifications/progress", "params": about})
            write({"method": "notifications/message", "params": {"level": "info", "data": f"at {number} {MARKUP}"}})
        return text("counted")
    if name == "picture":
        return {"content": [{"type": "image", "data": DOT, "mimeType": "image/png"}]}
    if name == "fails":
        return {**text("It did not work"), "isError": True}
    return text(MARKUP) if name == "markup" else text(json.dumps(arguments))


def answer(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        able: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}}
        about = {"name": f"showcase {MARKUP}", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": able, "serverInfo": about}
    if method == "tools/call":
        return call(params["name"], params.get("arguments"), params.get("_meta", {}))
    if method == "prompts/get":
        said = {"type": "text", "text": f"Greet {params['arguments']['who']}"}
        return {"messages": [{"role": "user", "content": said}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "mimeType": "text/html", "text": MARKUP}]}
    lists: dict[str, dict[str, Any]] = {
        "tools/list": {"tools": TOOLS},
        "prompts/list": {"prompts": [PROMPT]},
        "resources/list": {"resources": [{"uri": "note://one", "name": "one"}]},
    }
    return lists.get(method, {})


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        write({"id": message["id"], "result": answer(message["method"], message.get("params", {}))})
