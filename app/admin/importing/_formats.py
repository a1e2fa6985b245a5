"""Finds the servers in a file of any known format: JSON with comments, TOML, or YAML."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.admin.importing._clients import from_client
from app.admin.importing._entry import Entry, definition, told_apart
from app.admin.importing._forms import containers, inputs, switched_off
from app.admin.importing._projects import of_projects
from app.admin.importing._server_json import from_registry, official
from app.backends.checks.downloads import download_of
from app.backends.packages.recognition import image_runner_of, line_of, recognised
from app.errors import InvalidRequest
from app.text import jsonc

MAX_SERVERS = 256
# After lines that are empty or comments. One reading only: each line ends once, so no text takes it long.
_begins_yaml = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|[\w-]{1,100}:\s)").match
_begins_member = re.compile(r'\s*"[^"\\\n]{1,200}"\s*:\s*\{').match
_begins_json = re.compile(r"[\ufeff\s]*(\{|/|\[\s*[{\]])").match
MAX_COMMENTED = 2**20  # characters of a file that is not plain JSON, which takes ten times as long to read
MAX_DOTS = 100  # in a line of TOML: the parser needs quadratic time for the parts of a key
FORMATS = (
    "mcpServers (Claude, also those of its projects, Cursor, Windsurf, Cline, Gemini, Continue and others), servers "
    "or mcp.servers (VS Code), mcp (OpenCode), mcp_servers (Codex, TOML), context_servers (Zed), extensions (Goose, "
    "YAML), the manifest of a bundle (.mcpb), server.json of the MCP registry"
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
        image = _image(line)
    except ValueError as error:
        return entry.refused(str(error))
    if image:
        return entry.noted(f"{image} is started by the node's container engine (CONTAINER_ENGINE)")
    if request is not None:
        return entry.noted(f"{request.wanted[0]} is installed once, from {request.registry}, when it is registered")
    found = download_of(line[0], line[1:])
    return entry if found is None else entry.noted(found.words)


def _image(line: Sequence[str]) -> str | None:
    """The image that the command names, if it starts a container. Raises NotRunnable."""
    if image_runner_of(line_of(line[0], line[1:])) is None:
        return None
    from app.backends.images.recognition import recognised_image  # noqa: PLC0415 - few files need it

    found = recognised_image(line[0], line[1:])
    return None if found is None else found.reference


def looks_like_toml(text: str) -> bool:
    """Guesses whether a text is TOML rather than JSON, which begins with a brace, a comment, `[]` or `[{`, or YAML."""
    return not any(begins(text) for begins in (_begins_json, _begins_member, _begins_yaml))


def _entries(document: dict[str, Any], supplied: Mapping[str, str]) -> list[Entry]:
    """Of all containers of the file. What two of them say in the same way is one server."""
    found = containers(document)
    registry = _registry_servers(document, is_alone=not found)
    if not found and registry is None and not isinstance(document.get("projects"), dict):
        raise _nothing_found(document)
    off, defaults = switched_off(document), inputs(document)
    clients = {(name, definition(each)): each for servers in found for name, each in servers}
    published = {definition(each): each for each in registry or ()}
    projects = of_projects(document, clients)
    _require_few(len(clients) + len(registry or ()) + len(projects))
    return [
        *(
            from_client(name, _switched(entry, is_off=name in off), supplied, defaults=defaults)
            for (name, _), entry in clients.items()
        ),
        *_published(published.values(), supplied),
        *(from_client(each.source, each.entry, supplied, each.name).noted(each.note) for each in projects),
    ]


def _switched(entry: Any, *, is_off: bool) -> Any:
    return {**entry, "disabled": True} if is_off and isinstance(entry, dict) else entry


def _published(servers: Iterable[Any], supplied: Mapping[str, str]) -> Iterator[Entry]:
    """Of several versions of one server the latest counts, or the first."""
    servers, seen = [*servers], set[str]()
    latest = {name: each for each in servers if (name := _is_latest(each))}
    for server in servers:
        entry = from_registry(server, supplied)
        is_latest = latest.get(entry.source, server) is server
        is_other_version = bool(entry.source) and (entry.source in seen or not is_latest)
        seen.update([] if is_other_version else [entry.source])
        yield entry.refused("is another version of a server of this file") if is_other_version else entry


def _is_latest(server: Any) -> str | None:
    """Its name, if the registry says that it is the latest version."""
    return server.get("name") if isinstance(server, dict) and official(server).get("isLatest") is True else None


def _require_few(count: int) -> None:
    if count > MAX_SERVERS:
        raise InvalidRequest(f"there are more than {MAX_SERVERS} servers in the file")


def _load(text: str, *, is_toml: bool) -> dict[str, Any]:
    text = text.removeprefix("\ufeff")
    if is_toml and any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise InvalidRequest(f"a line of the file has more than {MAX_DOTS} dots")
    if not is_toml and _begins_member(text):  # as READMEs show one server: without the braces around it
        text = "{" + text.rstrip().removesuffix(",") + "}"
    try:
        document = None if is_toml else _plain_json(text)
        if document is None:
            if len(text) > MAX_COMMENTED:
                raise InvalidRequest(f"a file of more than {MAX_COMMENTED} characters must be plain JSON")
            document = _read(text, is_toml=is_toml)
    except ValueError as error:
        kind = "TOML" if is_toml else "YAML" if _begins_yaml(text) else "JSON"
        raise InvalidRequest(f"the file is not {kind}: {error}") from None
    if isinstance(document, list) and document:
        document = {"mcpServers": document}
    if not isinstance(document, dict):
        raise InvalidRequest("the file must hold an object")
    return document


def _read(text: str, *, is_toml: bool) -> Any:
    if is_toml:
        return tomllib.loads(text)
    if not _begins_yaml(text):
        return jsonc.read(text).value
    from app.text import strict_yaml  # noqa: PLC0415 - few files need it

    try:
        return strict_yaml.read(text).value
    except strict_yaml.Unreadable as error:
        raise ValueError(f"line {error.line}: {error}") from None


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
    if isinstance(servers, list) and not all(isinstance(each, dict) and "command" in each for each in servers or [0]):
        found += map(_of_api, servers)
    # Beside a client's servers it may be a setting.
    if isinstance(server, dict) and (is_alone or isinstance(server.get("name"), str)):
        found.append(_of_api(document))
    if isinstance(document.get("name"), str) and ("packages" in document or "remotes" in document):
        found.append(document)
    return found if found or isinstance(servers, list) else None


def _of_api(answer: Any) -> Any:
    """The server in an answer of the registry, which says more about it beside it."""
    server = answer.get("server", answer) if isinstance(answer, dict) else answer
    meta = answer.get("_meta") if isinstance(answer, dict) else None
    if not isinstance(server, dict) or server is answer or not isinstance(meta, dict):
        return server
    own = server.get("_meta")
    return {**server, "_meta": {**(own if isinstance(own, dict) else {}), **meta}}


def _nothing_found(document: dict[str, Any]) -> InvalidRequest:
    if document.get("command") or document.get("url"):
        return InvalidRequest('this is one server without a name: write {"mcpServers": {"NAME": …}} around it')
    if isinstance(document.get("mcp_server"), dict):
        return InvalidRequest("there are no servers in the file: is `mcp_servers` meant, instead of `mcp_server`?")
    if isinstance(document.get("name"), str):
        return InvalidRequest(
            "this server.json has neither `packages` nor `remotes`: there is nothing to start or reach"
        )
    return InvalidRequest(
        "there are no servers in the file: no `mcpServers`, `servers`, `mcp`, `mcp_servers`, `packages`"
    )
