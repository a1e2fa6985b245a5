"""Offers of servers that do not run."""

from typing import Any

import msgspec

from app.domain import Selection
from app.protocol.jsonrpc import encoded
from app.protocol.toolset.listing import Shown
from app.protocol.toolset.offer import Offer


def offer(name: str, *, capabilities: Any = None, instructions: str = "", **lists: Any) -> Offer:
    """What the server `name` offers; `lists` are tools, prompts, resources and templates."""
    methods = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}
    methods["templates"] = "resources/templates/list"
    made = Offer(
        encoded(
            {
                "protocolVersion": "2025-11-25",
                "serverInfo": {"name": name, "version": "1"},
                "capabilities": {"tools": {}, "resources": {}} if capabilities is None else capabilities,
                **({"instructions": instructions} if instructions else {}),
            }
        )
    )
    for kind, items in lists.items():
        made = made.with_list(methods[kind], [encoded(item) for item in items])
    return made


def shown(name: str, made: Offer | None, prefix: str | None = "", **selection: Any) -> Shown:
    return Shown(name, made, f"{name}_" if prefix == "" else prefix, Selection(**selection))


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def decoded(data: bytes) -> Any:
    return msgspec.json.decode(data)
