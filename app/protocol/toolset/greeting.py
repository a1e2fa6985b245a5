"""What a toolset says of itself, and what it says to its members."""

from typing import Any

import msgspec

from app.protocol.eras.sessionless_envelope import SESSIONLESS, VERSION_KEY
from app.protocol.jsonrpc import (
    Params,
    Request,
    dump_request,
    encoded,
    members_of,
    object_in,
    result_response,
    string_of,
)
from app.protocol.revisions import HANDSHAKE, is_handshake
from app.protocol.toolset.listing import ToolsetListing

MAX_INSTRUCTIONS = 16 << 10  # characters, of all members together
_WITH_CHANGES = ("tools", "prompts", "resources")
_DEPTH = 4  # of capabilities that are merged; deeper ones are those of the first member


class About(msgspec.Struct, frozen=True):
    """What an administrator has said of a toolset. Without `instructions` it has those of its members. `is_backend`: it
    is one backend, which speaks for itself."""

    name: str
    version: str
    title: str = ""
    instructions: str = ""
    is_backend: bool = False


def answer_to(initialize: Request, about: About, listing: ToolsetListing) -> bytes:
    """The answer to `initialize`, with the client's revision if we know it."""
    asked = string_of((initialize.params or {}).get("protocolVersion")) or ""
    version = asked if is_handshake(asked) else HANDSHAKE[-1]
    offer = listing.members[0].offer if about.is_backend else None
    if offer is not None:
        said = members_of(offer.hello)
        if listing.is_closed(listing.members[0]):
            said.pop("instructions", None)
        return result_response(initialize.id, {**said, "protocolVersion": version})
    server = {"name": about.name, "version": about.version, **({"title": about.title} if about.title else {})}
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": capabilities_of(listing),
        "serverInfo": server,
    }
    instructions = about.instructions or _instructions(listing)
    if instructions:
        result["instructions"] = instructions
    return result_response(initialize.id, result)


def capabilities_of(listing: ToolsetListing) -> dict[str, Any]:
    """What any member can, and changes of lists. A list of tasks would be that of one member: it is not offered."""
    merged: dict[str, Any] = {}
    for offer in listing.offers:
        _merge(merged, _plain(offer.capabilities), _DEPTH)
    for name in _WITH_CHANGES:
        if isinstance(merged.get(name), dict):
            merged[name]["listChanged"] = True
    if isinstance(merged.get("tasks"), dict):
        merged["tasks"].pop("list", None)
    return merged


def _plain(capabilities: Params) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in capabilities.items():
        try:
            found[name] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # a capability that nobody can read
    return found


def _merge(into: dict[str, Any], more: dict[str, Any], depth: int) -> None:
    for name, value in more.items():
        present = into.setdefault(name, value)
        if depth and present is not value and isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value, depth - 1)
        elif present is False and value is True:
            into[name] = True


def _instructions(listing: ToolsetListing) -> str:
    """Those of the members, each under its name."""
    told = [
        (each.name, each.offer.instructions.strip())
        for each in listing.members
        if each.offer is not None and not listing.is_closed(each)
    ]
    parts = [f"# {name}\n\n{words}" for name, words in told if words]
    return "\n\n".join(parts)[:MAX_INSTRUCTIONS]


def hello_for(request_id: bytes, initialize: Params) -> bytes:
    """The `initialize` for a member: what the client has sent to the toolset."""
    wanted = {name: value for name, value in initialize.items() if name != "_meta"}
    return dump_request(request_id, "initialize", wanted)


def speaks_sessionless(initialize: Params) -> bool:
    """Whether the client speaks 2026-07-28, and this is the handshake that the gateway makes for it."""
    return string_of(object_in(initialize, "_meta").get(VERSION_KEY)) == SESSIONLESS


def reference_of(params: Params) -> tuple[str, str]:
    """What `completion/complete` is about: `prompt` and its name, or `resource` and its URI template; else empty."""
    reference = object_in(params, "ref")
    kind = string_of(reference.get("type")) or ""
    if kind == "ref/prompt":
        return "prompt", string_of(reference.get("name")) or ""
    if kind == "ref/resource":
        return "resource", string_of(reference.get("uri")) or ""
    return "", ""


def with_prompt(params: Params, name: str) -> Params:
    """The params of `completion/complete` about a prompt under another name."""
    reference = {**members_of(params["ref"]), "name": encoded(name)}
    return {**params, "ref": encoded(reference)}
