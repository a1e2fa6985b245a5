"""Finds the servers in a file of any known format: JSON with comments, or TOML."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from app import jsonc
from app.errors import InvalidRequest
from app.importing.clients import from_client
from app.importing.entry import Entry
from app.importing.server_json import from_registry

MAX_SERVERS = 256
_begins_json = re.compile(r"[\ufeff\s]*(\{|/|\[\s*[{\]])").match
MAX_DOTS = 100  # in a line of TOML: the parser needs quadratic time for the parts of a key
FORMATS = (
    "mcpServers (Claude, Cursor, Windsurf, Cline), servers or mcp.servers (VS Code), mcp (OpenCode), "
    "mcp_servers (Codex, TOML), server.json of the MCP registry"
)


def parse(text: str, *, is_toml: bool = False, supplied: Mapping[str, str] | None = None) -> list[Entry]:
    """Every server of the file, in order. `supplied` are values for placeholders and variables, by name.

    Raises:
        InvalidRequest: the text has none of the formats.
    """
    try:
        return _entries(_load(text, is_toml=is_toml), supplied or {})
    except RecursionError:
        raise InvalidRequest("the file is nested too deeply") from None


def looks_like_toml(text: str) -> bool:
    """Guesses whether a text is TOML rather than JSON, which begins with a brace, a comment, `[]` or `[{`."""
    return _begins_json(text) is None


def _entries(document: dict[str, Any], supplied: Mapping[str, str]) -> list[Entry]:
    registry = _registry_servers(document)
    clients = _client_servers(document) if registry is None else {}
    if len(registry or clients) > MAX_SERVERS:
        raise InvalidRequest(f"there are more than {MAX_SERVERS} servers in the file")
    if registry is not None:
        return [from_registry(server, supplied) for server in registry]
    return [from_client(str(name), entry, supplied) for name, entry in clients.items()]


def _load(text: str, *, is_toml: bool) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    if is_toml and any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise InvalidRequest(f"a line of the file has more than {MAX_DOTS} dots")
    try:
        document = tomllib.loads(text) if is_toml else jsonc.read(text).value
    except ValueError as error:
        raise InvalidRequest(f"the file is not {'TOML' if is_toml else 'JSON'}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the file must hold an object")
    return document


def _registry_servers(document: dict[str, Any]) -> list[Any] | None:
    """The servers if this is a `server.json`: by itself, or as the registry's API wraps it; else None."""
    if isinstance(document.get("servers"), list):
        return [each.get("server", each) if isinstance(each, dict) else each for each in document["servers"]]
    if isinstance(document.get("server"), dict):
        return [document["server"]]
    if isinstance(document.get("name"), str) and ("packages" in document or "remotes" in document):
        return [document]
    return None


def _client_servers(document: dict[str, Any]) -> dict[str, Any]:
    for key in ("mcpServers", "mcp_servers", "servers", "mcp"):
        servers = document.get(key)
        if key == "mcp" and isinstance(servers, dict) and isinstance(servers.get("servers"), dict):
            servers = servers["servers"]
        if isinstance(servers, dict):
            return servers
    if isinstance(document.get("mcp_server"), dict):
        raise InvalidRequest("there are no servers in the file: is `mcp_servers` meant, instead of `mcp_server`?")
    if isinstance(document.get("name"), str):
        raise InvalidRequest(
            "this server.json has neither `packages` nor `remotes`: there is nothing to start or reach"
        )
    raise InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )
