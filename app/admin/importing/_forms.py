"""The forms of clients' files, as tables: where the servers are, and what their members are called.

Of Claude Code and Desktop, Cursor, VS Code, Windsurf, Cline, Roo, Codex, OpenCode, Gemini, Amazon Q, LM Studio,
JetBrains, Copilot, Warp, Zed, Continue, Goose, LibreChat, Amp; and the manifest of a bundle (`.mcpb`).
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

Named = list[tuple[str, Any]]  # servers by name, as a list of them may have a name twice

# Paths to objects that hold servers by name, or to lists of servers with names.
_CONTAINERS = (
    ("mcpServers",), ("mcp_servers",), ("servers",), ("mcp", "servers"), ("mcp.servers",),
    ("github.copilot.chat.mcp.servers",), ("amp.mcpServers",), ("context_servers",), ("mcp", "mcpServers"),
    ("experimental", "modelContextProtocolServers"), ("settings", "mcp", "servers"), ("settings", "mcp.servers"),
    ("customizations", "vscode", "mcp", "servers"), ("customizations", "vscode", "settings", "mcp", "servers"),
)  # fmt: skip
_MUST = frozenset({"mcpServers", "mcp_servers"})  # of another type it is named as what cannot be read
_OF_A_SERVER = frozenset({"command", "cmd", "url", "uri", "serverUrl", "httpUrl", "transport"})

# Members that are written out in an object within a server: of Zed, Continue, LibreChat and others.
_WITHIN = ("transport", "command", "requestOptions", "mcp_config", "stdio")
_SAME_AS = {
    "cmd": "command", "path": "command", "environment": "env", "envs": "env", "working_directory": "cwd",
    "workingDirectory": "cwd", "env_keys": "env_vars", "uri": "url", "server_url": "url", "baseUrl": "url",
    "transportType": "type", "isActive": "enabled", "available_tools": "enabled_tools",
}  # fmt: skip


def containers(document: Mapping[str, Any]) -> list[Named]:
    """All servers of the file, container by container."""
    found = [named for path in _CONTAINERS if (named := _by_name(_at(document, path))) is not None]
    found += [_manifest(document)] if "mcp_config" in (_at(document, ("server",)) or {}) else []
    mcp = document.get("mcp")
    if isinstance(mcp, dict):
        # Of a client that has its servers elsewhere, `mcp` has settings, too: what is no object is none of its servers.
        rest = {key: each for key, each in mcp.items() if key not in ("servers", "mcpServers")}
        found.append([pair for pair in rest.items() if isinstance(pair[1], dict) or not found])
    unread = {key: document[key] for key in _MUST if document.get(key) and _by_name(document[key]) is None}
    found += [sorted(unread.items())] if unread else []
    return found if any(found) else [*found, *(each for each in (_goose(document), _bare(document)) if each)]


def switched_off(document: Mapping[str, Any]) -> Container[str]:
    """Names of servers that the file does not want started, though it has them: of Gemini, Claude Code."""
    lists = (_at(document, ("mcp", "excluded")), document.get("disabledMcpServers"))
    return {name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)}


def inputs(document: Mapping[str, Any]) -> dict[str, str]:
    """The defaults of what the file has a person asked for: `inputs` of VS Code, `user_config` of a bundle."""
    found = dict[str, str]()
    asked = [document.get("inputs"), (_at(document, ("mcp", "inputs"))), _at(document, ("settings", "mcp", "inputs"))]
    for each in (one for some in asked if isinstance(some, list) for one in some if isinstance(one, dict)):
        if isinstance(each.get("default"), str) and each["default"]:
            found[str(each.get("id"))] = each["default"]
    config = document.get("user_config")
    for name, each in config.items() if isinstance(config, dict) else ():
        if isinstance(each, dict) and isinstance(each.get("default"), str | int | float):
            default = each["default"]
            found[f"user_config.{name}"] = str(default).lower() if isinstance(default, bool) else str(default)
    return found


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a server under the names that most clients use, those within others among them."""
    members = dict[str, Any]()
    for name, value in entry.items():
        if name in _WITHIN and isinstance(value, dict):
            members = {**flat(value), **members}
    for name, value in entry.items():
        if not (name in _WITHIN and isinstance(value, dict)):
            members[_SAME_AS.get(name, name) if _SAME_AS.get(name) not in entry else name] = value
    return members


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """What is there; None if nothing."""
    place: Any = document
    for name in path:
        place = place.get(name) if isinstance(place, dict) else None
    return place


def _by_name(servers: Any) -> Named | None:
    """The servers of an object, or of a list of such as have a name; None where there are none."""
    if isinstance(servers, dict):
        return list(servers.items())
    if isinstance(servers, list) and servers and all(map(_is_server, servers)):
        return list(_of_list(servers))
    return None


def _of_list(servers: list[Any]) -> Iterator[tuple[str, Any]]:
    for number, each in enumerate(servers, 1):
        yield str(each.get("name") or each.get("id") or f"server {number}"), each


def _is_server(value: Any) -> bool:
    return isinstance(value, dict) and not _OF_A_SERVER.isdisjoint(value)


def _goose(document: Mapping[str, Any]) -> Named:
    """Of `extensions`, which other programs have too, those that are servers, or what Goose brings itself."""
    found = document.get("extensions")
    pairs = list(found.items()) if isinstance(found, dict) else []
    are_known = all(isinstance(each, dict) and ("type" in each or _is_server(each)) for _, each in pairs)
    return pairs if are_known else []


def _bare(document: Mapping[str, Any]) -> Named:
    """Servers by name with nothing around them; or one that has its name itself."""
    if _is_server(document) and isinstance(document.get("name"), str):
        return [(document["name"], document)]
    pairs = [(name, each) for name, each in document.items() if not name.startswith("$")]
    return pairs if all(_is_server(each) for _, each in pairs) else []


def _manifest(document: Mapping[str, Any]) -> Named:
    """The server of a bundle, as it is on Linux."""
    server = document["server"]
    config = server["mcp_config"] if isinstance(server["mcp_config"], dict) else {}
    here = _at(config, ("platform_overrides", "linux"))
    config = {name: each for name, each in config.items() if name != "platform_overrides"}
    return [(str(document.get("name")), {**config, **(here if isinstance(here, dict) else {})})]
