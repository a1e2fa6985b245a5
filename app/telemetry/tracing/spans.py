"""Span: something that took time, once it is over. What the attributes are called: OpenTelemetry's conventions for MCP.

Never in a span: arguments, results, URIs, credentials. Texts that clients choose are bounded.
"""

from typing import Literal

import msgspec

MAX_TEXT = 128  # characters of a name, method or id that a client chooses

Kind = Literal["server", "client", "internal"]
Attributes = dict[str, str | int | bool]


class Span(msgspec.Struct, gc=False, frozen=True):
    """One span of a trace; ids are hex digits. `error` is empty for a success."""

    name: str
    kind: Kind
    trace: bytes
    span: bytes
    parent: bytes  # empty: it is the first one
    state: bytes
    flags: bytes
    began_ns: int
    ended_ns: int
    attributes: Attributes
    error: str
    linked: tuple[bytes, bytes] | None = None
    is_parent_ours: bool = False  # of a server span: it is the message of a batch


def title_of(method: str, name: str) -> str:
    """The name of a message's span. `name` is that of the tool or prompt, or empty."""
    return f"{method[:MAX_TEXT]} {name[:MAX_TEXT]}" if name else method[:MAX_TEXT]


def about_message(method: str, name: str) -> Attributes:
    """The attributes that every message has."""
    about: Attributes = {"mcp.method.name": method[:MAX_TEXT]}
    if name and method == "tools/call":
        about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name[:MAX_TEXT]}
    elif name:
        about["gen_ai.prompt.name"] = name[:MAX_TEXT]
    return about
