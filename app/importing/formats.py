"""Which format a file has, and where its servers stand in it: JSON as editors write it, or TOML."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from app.errors import InvalidRequest
from app.importing.clients import from_client
from app.importing.entry import Entry
from app.importing.server_json import from_registry

MAX_SERVERS = 256
MAX_DOTS = 100  # in a line of TOML: what the parser does for a key grows with the square of its parts
FORMATS = (
    "mcpServers (Claude, Cursor, Windsurf, Cline), servers or mcp.servers (VS Code), mcp (OpenCode), "
    "mcp_servers (Codex, TOML), server.json of the MCP registry"
)

# What has no end goes to the end of the text: looked for again from each place, it would take the square of the time.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\\?\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)


def parse(text: str, *, is_toml: bool = False, supplied: Mapping[str, str] | None = None) -> list[Entry]:
    """Every server of the file, in its order. `supplied` are values for placeholders and variables, by name.

    Raises:
        InvalidRequest: the text is none of the formats.
    """
    try:
        return _entries(_load(text, is_toml=is_toml), supplied or {})
    except RecursionError:
        raise InvalidRequest("the file is nested too deeply") from None


def looks_like_toml(text: str) -> bool:
    """Whether a text of unknown origin is rather TOML than JSON: an object begins with its brace, or with a comment."""
    return not text.lstrip("\ufeff \t\r\n").startswith(("{", "/"))


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
        document = tomllib.loads(text) if is_toml else _load_json(text)
    except ValueError as error:
        raise InvalidRequest(f"the file is not {'TOML' if is_toml else 'JSON'}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the file holds no object")
    return document


def _load_json(text: str) -> Any:
    """JSON, or JSON with comments and trailing commas as editors write it."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError:
        without_comments = _STRING_OR_COMMENT.sub(lambda found: found[1] or " ", text)
        plain = _STRING_OR_LAST_COMMA.sub(lambda found: found[1] or " ", without_comments)
        return json.loads(plain, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequest(f"{twice!a} stands twice in one object; which one counts?")
    return members


def _registry_servers(document: dict[str, Any]) -> list[Any] | None:
    """The `server.json` in here, if that is what it is: by itself, or as the registry's API wraps it."""
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
    raise InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )
