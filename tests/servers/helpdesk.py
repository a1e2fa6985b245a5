#!/usr/bin/env python3
"""A server as an office has one, for pictures: tickets that are searched and opened, a report that takes a while.

With HELPDESK_RELEASE=2 the words of its tools are others, and it has one more. Standard library only.
"""

import json
import os
import sys
import time
from typing import Any

SECOND = os.environ.get("HELPDESK_RELEASE") == "2"
TEXT = {"type": "string"}
OPEN = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "title": "Title", "minLength": 5},
        "urgency": {"type": "string", "title": "Urgency", "enum": ["low", "normal", "high"], "default": "normal"},
        "customer": {"type": "string", "title": "Customer", "description": "Number or name"},
        "notify": {"type": "boolean", "title": "Tell the customer by mail"},
    },
    "required": ["title", "urgency"],
}
_FOUND_BY = {"words": TEXT, "limit": {"type": "integer", "maximum": 100}}
FIND = {"type": "object", "properties": _FOUND_BY, "required": ["words"]}
FIND_CLOSED = {**FIND, "properties": {**_FOUND_BY, "closed": {"type": "boolean"}}}
MONTH = {"type": "object", "properties": {"month": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}}}
TOOLS = [
    {
        "name": "search_tickets",
        "description": "Finds tickets by their words, also closed ones"
        if SECOND
        else "Finds open tickets by their words",
        "inputSchema": FIND_CLOSED if SECOND else FIND,
        "annotations": {"readOnlyHint": True},
    },
    {"name": "open_ticket", "description": "Opens a ticket and returns its number", "inputSchema": OPEN},
    {"name": "monthly_report", "description": "Counts the tickets of a month; takes a while", "inputSchema": MONTH},
    *(
        [{"name": "close_ticket", "description": "Closes a ticket", "inputSchema": {"type": "object"}}]
        if SECOND
        else []
    ),
]
RESOURCES = [{"uri": "helpdesk://faq", "name": "Frequent questions", "mimeType": "text/plain"}]
PROMPTS = [{"name": "reply", "description": "A polite answer", "arguments": [{"name": "ticket", "required": True}]}]


def write(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def log(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, file=sys.stderr, flush=True)


def report(params: dict[str, Any]) -> str:
    token = (params.get("_meta") or {}).get("progressToken")
    for day in range(1, 31):
        time.sleep(0.02)
        if token is not None and day % 5 == 0:
            progress = {"progressToken": token, "progress": day, "total": 30, "message": f"day {day}"}
            write({"method": "notifications/progress", "params": progress})
    return "412 tickets, 388 closed within a day"


def call(params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "monthly_report":
        words = report(params)
    elif name == "open_ticket":
        log(f"opened 4711, urgency {arguments.get('urgency')}")
        words = "Ticket 4711 is open. The customer hears of it within an hour."
    elif arguments.get("words") == "crash":
        log("index is locked by another process")
        return {"content": [{"type": "text", "text": "The index is locked, try again."}], "isError": True}
    else:
        log(f"search took {len(str(arguments)) % 7 + 2} ms")
        words = "4699 printer on floor 2\n4702 printer offline\n4710 no toner"
    return {"content": [{"type": "text", "text": words}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        log("helpdesk 1.4 ready")
        offers: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
        about = {"name": "helpdesk", "version": "2.0" if SECOND else "1.4"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": offers, "serverInfo": about}
    lists: dict[str, dict[str, Any]] = {
        "tools/list": {"tools": TOOLS},
        "resources/list": {"resources": RESOURCES},
        "resources/templates/list": {"resourceTemplates": []},
        "prompts/list": {"prompts": PROMPTS},
    }
    return lists.get(method, {})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            method, params = message["method"], message.get("params") or {}
            result = call(params) if method == "tools/call" else answer(method, params)
            write({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
