"""Finds the servers in a file of any known format: JSON with comments, or TOML."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from app import jsonc
from app.errors import InvalidRequest
from app.importing.clients import from_client
from app.importing.downloads import download_of
from app.importing.entry import Entry
from app.importing.projects import of_projects
from app.importing.server_json import from_registry

MAX_SERVERS = 256
_begins_json = re.compile(r"[\ufeff\s]*(\{|/|\[\s*[{\]])").match
MAX_COMMENTED = 2**20  # characters of a file that is not plain JSON, which takes ten times as long to read
MAX_DOTS = 100  # in a line of TOML: the parser needs quadratic time for the parts of a key
FORMATS = (
    "mcpServers (Claude, also those of its projects, Cursor, Windsurf, Cline), servers or mcp.servers (VS Code), "
    "mcp (OpenCode), mcp_servers (Codex, TOML), server.json of the MCP registry"
)


def parse(text: str, *, is_toml: bool = False, supplied: Mapping[str, str] | None = None) -> list[Entry]:
    """Every server of the file, in order. `supplied` are values for placeholders and variables, by name.

    Raises:
        InvalidRequest: the text has none of the formats.
    """
    try:
        return [_with_download(entry) for entry in _entries(_load(text, is_toml=is_toml), supplied or {})]
    except RecursionError:
        raise InvalidRequest("the file is nested too deeply") from None


def _with_download(entry: Entry) -> Entry:
    args = entry.members.get("args")
    found = download_of(entry.members.get("command"), args if isinstance(args, list) else ())
    return entry if found is None else entry.noted(found.words)


def looks_like_toml(text: str) -> bool:
    """Guesses whether a text is TOML rather than JSON, which begins with a brace, a comment, `[]` or `[{`."""
    return _begins_json(text) is None


def _entries(document: dict[str, Any], supplied: Mapping[str, str]) -> list[Entry]:
    registry = _registry_servers(document)
    if registry is not None:
        _require_few(len(registry))
        return [from_registry(server, supplied) for server in registry]
    clients = _client_servers(document)
    projects = of_projects(document, clients)
    _require_few(len(clients) + len(projects))
    return [from_client(str(name), entry, supplied) for name, entry in clients.items()] + [
        from_client(each.source, each.entry, supplied, each.name).noted(each.note) for each in projects
    ]


def _require_few(count: int) -> None:
    if count > MAX_SERVERS:
        raise InvalidRequest(f"there are more than {MAX_SERVERS} servers in the file")


def _load(text: str, *, is_toml: bool) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    if is_toml and any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise InvalidRequest(f"a line of the file has more than {MAX_DOTS} dots")
    try:
        document = None if is_toml else _plain_json(text)
        if document is None:
            if len(text) > MAX_COMMENTED:
                raise InvalidRequest(f"a file of more than {MAX_COMMENTED} characters must be plain JSON")
            document = tomllib.loads(text) if is_toml else jsonc.read(text).value
    except ValueError as error:
        raise InvalidRequest(f"the file is not {'TOML' if is_toml else 'JSON'}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the file must hold an object")
    return document


def _plain_json(text: str) -> Any:
    """None where it is more than that, or wrong, which the slower reader says better."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except ValueError:
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a member stands twice in one object")
    return found


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
    if isinstance(document.get("projects"), dict):
        return {}
    if isinstance(document.get("mcp_server"), dict):
        raise InvalidRequest("there are no servers in the file: is `mcp_servers` meant, instead of `mcp_server`?")
    if isinstance(document.get("name"), str):
        raise InvalidRequest(
            "this server.json has neither `packages` nor `remotes`: there is nothing to start or reach"
        )
    raise InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )
