"""One operation of a document becomes a tool."""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.protocol.openapi import _dialects
from app.protocol.openapi._references import LeftOut, References
from app.protocol.openapi._schemas import MAX_WORDS, Schemas, TooLarge, is_read_only, short
from app.protocol.openapi.api import Body, Operation, Parameter, encoded

MAX_TOOL_NAME = 64
MAX_DESCRIPTION = 1500
MAX_TOOL_BYTES = 48 << 10
MAX_PARAMETERS = 200
MAX_PATH = 1000
# Ways to write the schemas of a tool, from the one that most clients read to the shortest: shared, parts, depth.
_WAYS = ((False, 600, 24), (True, 1500, 24), (True, 600, 2))
_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"),
    "header": ("simple",),
}
# What the gateway writes itself, or what says who calls.
_OWN_HEADERS = frozenset({
    "accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type",
    "cookie", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
})  # fmt: skip
_NO_PARAMETERS = frozenset({"accept", "authorization", "content-type"})  # says OpenAPI: they are ignored
_is_header = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}").fullmatch
_is_path = re.compile(r"/[^\s?#\\\x00-\x1f\x7f]*").fullmatch
_is_json = re.compile(r"(application/json|[\w.+-]+/[\w.+-]+\+json)\s*(;.*)?", re.IGNORECASE).fullmatch
_NOT_SPREAD = frozenset({"patternProperties", "not", "enum", "const"})
_HINTS: dict[str, dict[str, bool]] = {
    "get": {"readOnlyHint": True},
    "put": {"idempotentHint": True},
    "delete": {"destructiveHint": True, "idempotentHint": True},
}


@dataclass(slots=True)
class Dialect:
    """What holds for every operation of a document. `note` takes a sentence about a part that is left out."""

    document: dict[str, Any]
    references: References
    is_swagger: bool
    server: str
    note: Callable[[str], None]
    credentials: frozenset[str]  # names of parameters, in lower case, that carry one
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Arguments:
    """The arguments of a tool: their schemas, as the document has them, and how each is described."""

    schemas: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)

    def add(self, name: str, place: str, schema: Any, words: object, *, required: bool) -> str:
        """The argument's own name, by which it differs from all others."""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")[:MAX_TOOL_NAME] or place
        tried = [plain, f"{place}_{plain}"[:MAX_TOOL_NAME], *(f"{plain[:56]}_{number}" for number in range(2, 1000))]
        own = next((each for each in tried if each not in self.schemas), "")
        if not own or len(self.schemas) >= MAX_PARAMETERS:
            raise LeftOut(f"has more than {MAX_PARAMETERS} parameters")
        self.schemas[own] = schema
        if text := short(words, MAX_WORDS):
            self.words[own] = text
        if required:
            self.required.append(own)
        return own


def made_of(dialect: Dialect, path: str, method: str, item: dict[str, Any], operation: dict[str, Any]) -> Operation:
    """The tool, and how it is called.

    Raises:
        LeftOut: it cannot be expressed.
    """
    operation = _normal(dialect, path, item, operation)
    _require_reachable(dialect, path, item, operation)
    arguments = _Arguments()
    parameters = [
        made for each in operation["parameters"] if (made := _parameter(dialect, arguments, each)) is not None
    ]
    named = {each.name for each in parameters if each.place == "path"}
    if missing := [name for name in re.findall(r"\{([^{}]*)\}", path) if name not in named]:
        raise LeftOut(f"has `{{{missing[0][:40]}}}` in its path, which is none of its parameters")
    given = operation.get("requestBody")
    if given and method == "get":
        dialect.note("its body is left out: a GET has none")
    body = None if method == "get" else _body(dialect, arguments, given)
    if operation.get("callbacks"):
        dialect.note("its callbacks are left out: nobody would be called back")
    name = _name(dialect, operation, path, method)
    tool = _tool(dialect, arguments, name, method, path, operation)
    dialect.names.add(name)
    return Operation(name, msgspec.Raw(tool), method.upper(), path, parameters, body)


def _normal(dialect: Dialect, path: str, item: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """With its parameters and those of its path, where they are not the same."""
    found = dict[tuple[str, str], dict[str, Any]]()
    for several in (item.get("parameters"), operation.get("parameters")):
        for each in several if isinstance(several, list) else ():
            parameter = dialect.references.resolved(each)
            if parameter.get("in") == "path" and f"{{{parameter.get('name')}}}" not in path:
                continue
            found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
    if dialect.is_swagger:
        return _dialects.as_openapi(dialect.document, operation, found.values())
    return {**operation, "parameters": list(found.values())}


def _require_reachable(dialect: Dialect, path: str, item: dict[str, Any], operation: dict[str, Any]) -> None:
    if _is_path(path) is None or len(path) > MAX_PATH:
        raise LeftOut("has a path that is none")
    if any(part.replace("%2E", ".").replace("%2e", ".") in (".", "..") for part in path.split("/")):
        raise LeftOut("has `.` or `..` in its path")
    for node in (operation, item):
        if servers := _dialects.servers_of(node):
            if dialect.server not in servers:
                raise LeftOut(f"is at another server ({servers[0][:100]})")
            return


def _parameter(dialect: Dialect, arguments: _Arguments, given: dict[str, Any]) -> Parameter | None:
    """None: it is not given by callers."""
    name, place, is_required = given.get("name"), given.get("in"), given.get("required") is True
    if not isinstance(name, str) or not name:
        raise LeftOut("has a parameter without a name")
    if place in ("query", "header") and name.lower() in dialect.credentials:
        return None
    if place == "header" and (name.lower() in _OWN_HEADERS or name.lower().startswith(("mcp-", "proxy-"))):
        if name.lower() not in _NO_PARAMETERS:
            dialect.note(f"its parameter `{name[:60]}` cannot be given: the gateway sets this header, or `headers` do")
        return None
    if place not in ("path", "query", "header") or (place == "header" and _is_header(name) is None):
        _without(dialect, name, f"cannot be given (it is in `{str(place)[:20]}`)", is_required=is_required)
        return None
    style, explode, schema = _style(given, place)
    if style is None:
        _without(dialect, name, "is written in a way that is not known", is_required=is_required)
        return None
    if given.get("allowReserved") is True and place == "query":
        dialect.note(f"its parameter `{name[:60]}` is percent-encoded, though `allowReserved` says otherwise")
    is_required = is_required or place == "path"
    own = arguments.add(name, place, schema, given.get("description"), required=is_required)
    return Parameter(own, name, place, style, explode, is_required)  # type: ignore[arg-type]


def _without(dialect: Dialect, name: str, why: str, *, is_required: bool) -> None:
    if is_required:
        raise LeftOut(f"needs the parameter `{name[:60]}`, which {why}")
    dialect.note(f"its parameter `{name[:60]}` {why}")


def _style(given: dict[str, Any], place: str) -> tuple[str | None, bool, Any]:
    """How it is written, and its schema."""
    content = given.get("content")
    if isinstance(content, dict) and content:
        kind, media = next(iter(content.items()))
        schema = media.get("schema", {}) if isinstance(media, dict) else {}
        return ("json" if _is_json(str(kind)) else None), False, schema
    style = given.get("style") or _STYLES[place][0]
    explode = given.get("explode")
    is_known = style in _STYLES[place]
    return (
        (style if is_known else None),
        explode if isinstance(explode, bool) else style == "form",
        given.get("schema", {}),
    )


# --- the body


def _body(dialect: Dialect, arguments: _Arguments, given: Any) -> Body | None:
    if given is None:
        return None
    body = dialect.references.resolved(given)
    found = body.get("content")
    content = found if isinstance(found, dict) else {}
    kinds = [each for each in content if isinstance(each, str)]
    chosen = next((each for each in kinds if each.lower().startswith("application/json")), None)
    chosen = chosen or next((each for each in kinds if _is_json(each) or each == "*/*"), None)
    if chosen is None:
        if not kinds:
            return None
        raise LeftOut(f"takes a body of {kinds[0][:60]}, and only JSON can be given")
    media = content[chosen]
    schema = media.get("schema", {}) if isinstance(media, dict) else {}
    kind = "application/json" if chosen == "*/*" else chosen
    if not kind.isascii() or not kind.isprintable():
        raise LeftOut("takes a body whose type is none")
    members, said = _members(dialect.references, schema), body.get("required")
    whole = dialect.references.resolved(schema) if isinstance(schema, dict) else {}
    needed = _needed(whole) if members is None else members[1]
    is_required = said is True or (said is not False and bool(needed))  # many documents have it in the schema only
    if members is None:
        own = arguments.add("body", "json", schema, body.get("description"), required=is_required)
        return Body(kind, argument=own, required=is_required)
    taken = {
        arguments.add(name, "body", each, None, required=is_required and name in needed): name
        for name, each in members[0].items()
    }
    return Body(kind, members=taken, required=is_required)


def _members(
    references: References, schema: Any, depth: int = 0, seen: list[Any] | None = None
) -> tuple[dict[str, Any], set[str]] | None:
    """The properties of a body that is an object of just these, and which it needs; None: it is given as a whole.
    `seen` has its parts so far."""
    node = references.resolved(schema) if isinstance(schema, dict) else {}
    seen = [] if seen is None else seen
    seen.append(node)
    if depth > 8 or len(seen) > MAX_PARAMETERS or node.get("additionalProperties") not in (None, False):
        return None
    if node.get("type", "object") != "object" or node.get("nullable") or _NOT_SPREAD & node.keys():
        return None
    if any(not _only_requires(each) for name in ("anyOf", "oneOf") for each in node.get(name) or ()):
        return None
    properties, needed = dict[str, Any](), set[str]()
    for each in node.get("allOf") or ():
        part = _members(references, each, depth + 1, seen)
        if part is None:
            return None
        properties |= part[0]
        needed |= part[1]
    own = node.get("properties")
    for name, each in own.items() if isinstance(own, dict) else ():
        if not is_read_only(each):
            properties[str(name)] = each
    needed |= _needed(node)
    if depth:
        return properties, needed
    return (properties, needed & properties.keys()) if properties else None


def _needed(node: dict[str, Any]) -> set[str]:
    """The members that this part of a schema requires of callers."""
    required, own = node.get("required"), node.get("properties")
    read_only = {name for name, each in own.items() if is_read_only(each)} if isinstance(own, dict) else set()
    return {each for each in required if isinstance(each, str)} - read_only if isinstance(required, list) else set()


def _only_requires(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.keys() <= {"required", "description", "title"}


# --- the tool


def _name(dialect: Dialect, operation: dict[str, Any], path: str, method: str) -> str:
    given = operation.get("operationId")
    text = given if isinstance(given, str) and given.strip() else f"{method}{path}"
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or method
    if len(name) > MAX_TOOL_NAME:
        name = f"{name[: MAX_TOOL_NAME - 7]}_{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:6]}"
    plain, number = name, 2
    while name in dialect.names:
        name, number = f"{plain[: MAX_TOOL_NAME - 5]}_{number}", number + 1
    return name


def _tool(
    dialect: Dialect, arguments: _Arguments, name: str, method: str, path: str, operation: dict[str, Any]
) -> bytes:
    """With its schemas written in the first way in which they are not too large."""
    summary, words = short(operation.get("summary"), 200), short(operation.get("description"), MAX_DESCRIPTION)
    text = "\n\n".join(each for each in dict.fromkeys((summary, words)) if each) or f"{method.upper()} {path}"
    tool: dict[str, Any] = {"name": name}
    tool |= {"title": summary} if summary else {}
    tool["description"] = short(f"Deprecated. {text}" if operation.get("deprecated") is True else text, MAX_DESCRIPTION)
    hints = {"annotations": _HINTS[method]} if method in _HINTS else {}
    for shares, most, depth in _WAYS:
        schemas = Schemas(dialect.references, shares=shares, most=most, depth=depth)
        try:
            made = encoded({**tool, "inputSchema": _input(schemas, arguments), **hints})
        except TooLarge:
            continue
        if len(made) <= MAX_TOOL_BYTES:
            return made
    dialect.note("its schema is too large: only the names of its arguments are shown")
    return encoded({**tool, "inputSchema": _outline(arguments), **hints})


def _input(schemas: Schemas, arguments: _Arguments) -> dict[str, Any]:
    properties = {}
    for name, each in arguments.schemas.items():
        schema = schemas.converted(each)
        if name in arguments.words:
            schema = {**schema, "description": arguments.words[name]}
        properties[name] = schema
    made: dict[str, Any] = {"type": "object", "properties": properties}
    made |= {"required": arguments.required} if arguments.required else {}
    made["additionalProperties"] = False
    return made | ({"$defs": schemas.definitions} if schemas.definitions else {})


def _outline(arguments: _Arguments) -> dict[str, Any]:
    """Names only."""
    properties = {
        name: {"description": words[:80]} if (words := arguments.words.get(name)) else {} for name in arguments.schemas
    }
    made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": arguments.required} if arguments.required else {})


def methods_in(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The operations of a path, by method."""
    known = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
    return [(method, item[method]) for method in known if method in item]
