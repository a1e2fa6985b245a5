"""Finds the servers in a file of any known format: JSON with comments, or TOML."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.admin.importing._clients import from_client
from app.admin.importing._entry import Entry, definition, told_apart
from app.admin.importing._projects import of_projects
from app.admin.importing._server_json import from_registry
from app.backends.checks.downloads import download_of
from app.backends.packages.recognition import NotInstallable, recognised
from app.errors import InvalidRequest
from app.text import jsonc

MAX_SERVERS = 256
# After lines that are empty or comments. One reading only: each line ends once, so no text takes it long.
_begins_yaml = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|[\w-]{1,100}:\s)").match
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
        entries = _entries(_load(text, is_toml=is_toml), supplied or {})
        return [_with_download(entry) for entry in told_apart(entries)]
    except RecursionError:
        raise InvalidRequest("the file is nested too deeply") from None


def _with_download(entry: Entry) -> Entry:
    """With what becomes of the package that its command names, or of what it would download."""
    args = entry.members.get("args")
    line = [str(each) for each in (entry.members.get("command") or "", *(args if isinstance(args, list) else ()))]
    try:
        request = recognised(line[0], line[1:])
    except NotInstallable as error:
        return entry.refused(str(error))
    if request is not None:
        return entry.noted(f"{request.wanted[0]} is installed once, from {request.registry}, when it is registered")
    found = download_of(line[0], line[1:])
    return entry if found is None else entry.noted(found.words)


def looks_like_toml(text: str) -> bool:
    """Guesses whether a text is TOML rather than JSON, which begins with a brace, a comment, `[]` or `[{`."""
    return _begins_json(text) is None


def _entries(document: dict[str, Any], supplied: Mapping[str, str]) -> list[Entry]:
    """Of all containers of the file. What two of them say in the same way is one server."""
    containers = _containers(document)
    registry = _registry_servers(document, is_alone=not containers)
    unread = {key: document[key] for key in ("mcpServers", "mcp_servers") if document.get(key)}
    if not containers and registry is None and not unread and not isinstance(document.get("projects"), dict):
        raise _nothing_found(document)
    # Beside others, a container that is no object is named like a server that cannot be read.
    containers.append({key: each for key, each in unread.items() if not isinstance(each, dict)})
    clients = {(name, definition(each)): each for servers in containers for name, each in servers.items()}
    published = {definition(each): each for each in registry or ()}
    projects = of_projects(document, clients)
    _require_few(len(clients) + len(registry or ()) + len(projects))
    return [
        *(from_client(name, entry, supplied) for (name, _), entry in clients.items()),
        *_published(published.values(), supplied),
        *(from_client(each.source, each.entry, supplied, each.name).noted(each.note) for each in projects),
    ]


def _published(servers: Iterable[Any], supplied: Mapping[str, str]) -> Iterator[Entry]:
    """Of several versions of one server the first counts."""
    seen = set[str]()
    for server in servers:
        entry = from_registry(server, supplied)
        is_other_version = bool(entry.source) and entry.source in seen
        seen.add(entry.source)
        yield entry.refused("is another version of a server that stands before it") if is_other_version else entry


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
        may_be_yaml = "; YAML is not read: write it as JSON" if not is_toml and _begins_yaml(text) else ""
        raise InvalidRequest(f"the file is not {'TOML' if is_toml else 'JSON'}: {error}{may_be_yaml}") from None
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


def _registry_servers(document: dict[str, Any], *, is_alone: bool) -> list[Any] | None:
    """The servers if the file is a `server.json`, too: by itself, or as the registry's API wraps it; else None."""
    found = list[Any]()
    servers, server = document.get("servers"), document.get("server")
    if isinstance(servers, list):
        found += [each.get("server", each) if isinstance(each, dict) else each for each in servers]
    # Beside a client's servers it may be a setting.
    if isinstance(server, dict) and (is_alone or isinstance(server.get("name"), str)):
        found.append(server)
    if isinstance(document.get("name"), str) and ("packages" in document or "remotes" in document):
        found.append(document)
    return found if found or isinstance(servers, list) else None


def _containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that hold a client's servers by name."""
    found = [document[key] for key in ("mcpServers", "mcp_servers", "servers") if isinstance(document.get(key), dict)]
    mcp = document.get("mcp")
    if not isinstance(mcp, dict):
        return found
    inner = mcp.get("servers")
    if isinstance(inner, dict):
        found.append(inner)
    # Of a client that has its servers elsewhere, `mcp` has settings, too: what is no object is none of its servers.
    bare = {key: each for key, each in mcp.items() if isinstance(each, dict) and each is not inner} if found else mcp
    return [*found, bare]


def _nothing_found(document: dict[str, Any]) -> InvalidRequest:
    if isinstance(document.get("mcp_server"), dict):
        return InvalidRequest("there are no servers in the file: is `mcp_servers` meant, instead of `mcp_server`?")
    if isinstance(document.get("name"), str):
        return InvalidRequest(
            "this server.json has neither `packages` nor `remotes`: there is nothing to start or reach"
        )
    return InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )
