"""The revision 2026-07-28: the envelope that every request carries, and the ladder it has to climb.

There is no handshake and no session: each request names its version and the client's capabilities in
`params._meta`, and repeats what routes it in headers, which must say the same as the body (basic/index,
basic/transports/streamable-http "Server Validation").
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from app.errors import InvalidMessage
from app.protocol.calls.stream_choice import SUBSCRIPTION_KEY
from app.protocol.jsonrpc import (
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    Notification,
    Params,
    Request,
    Response,
    encode,
    members_of,
    parse_backend,
    string_of,
)
from app.protocol.revisions import HANDSHAKE

MODERN = "2026-07-28"
SUPPORTED = (MODERN, *reversed(HANDSHAKE))  # what we say where a client asks for something else
META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = META + "protocolVersion", META + "clientCapabilities"
CLIENT_INFO_KEY, LOG_LEVEL_KEY = META + "clientInfo", META + "logLevel"
SERVER_INFO_KEY = META + "serverInfo"
TASKS = META + "tasks"  # of `extensions`; each era has tasks of its own, and they are not translated

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
METHODS_WITH_NAME = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId",
                     "tasks/update": "taskId", "tasks/cancel": "taskId"}  # fmt: skip
REMOVED = frozenset({
    "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list",
    "tasks/result",
})  # fmt: skip
CACHEABLE = frozenset({
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
})  # fmt: skip
MAX_ABOUT_CLIENT = 16 << 10  # bytes of its capabilities, and of its name: a line keeps both as long as it lives
MAX_MIRROR = 200  # characters of a parameter's path and header together; tools are remembered with theirs
MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

_NUMBER = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,4})?\Z", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_ENCODED = re.compile(r"=\?base64\?(.*)\?=\Z")


class Envelope(NamedTuple):
    """What a request says of its client. `capabilities_key` is the same for equal capabilities, `declared` has them as
    the client wrote them."""

    declared: msgspec.Raw
    capabilities: Mapping[str, Any]
    capabilities_key: bytes
    client_info: msgspec.Raw | None
    log_level: str | None


class Rejection(NamedTuple):
    """The first rung of the ladder that failed, as a JSON-RPC error; its HTTP status is 400."""

    code: int
    message: str
    data: dict[str, object] | None = None


class RoutingHeaders(NamedTuple):
    """What a request's headers repeat of its body; `repeated` is a routing header that stands twice."""

    version: str | None
    method: str | None
    name: str | None
    repeated: str | None = None


def envelope_version(message: object) -> msgspec.Raw | None:
    """The version in the message's own envelope: the source of truth for its era."""
    if isinstance(message, Request | Notification) and message.params is not None and "_meta" in message.params:
        return members_of(message.params["_meta"]).get(VERSION_KEY)
    return None


def climb(message: Request, headers: RoutingHeaders) -> Envelope | Rejection:
    """The ladder: the envelope of the request, or the first thing that is wrong with it."""
    if headers.repeated is not None:
        return Rejection(HEADER_MISMATCH, f"the header {headers.repeated} stands twice")
    params = message.params or {}
    meta = members_of(params["_meta"]) if "_meta" in params else {}
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        return Rejection(INVALID_PARAMS, "params._meta is missing " + " and ".join(missing))
    version = string_of(meta[VERSION_KEY])
    if headers.version is None or headers.version != version:
        return Rejection(HEADER_MISMATCH, "MCP-Protocol-Version is missing or differs from the request's _meta")
    if headers.method != message.method:
        return Rejection(HEADER_MISMATCH, "Mcp-Method is missing or differs from the request's method")
    if not _same_name(message.method, params, headers.name):
        return Rejection(HEADER_MISMATCH, "Mcp-Name is missing or differs from the request's parameter")
    if version != MODERN:
        return unsupported(version or "")
    return _envelope(meta)


def unsupported(version: str) -> Rejection:
    """The refusal of a version, with the list of what would do: one that is served in another way is not in it."""
    supported = [each for each in SUPPORTED if each != version]
    data: dict[str, object] = {"supported": supported, "requested": version[:64]}
    return Rejection(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)


def refuses_handshake(line: bytes) -> bool:
    """Whether a server's line is the refusal of `initialize` by one that speaks this revision only."""
    try:
        message = parse_backend(line)
    except InvalidMessage:
        return False
    if not isinstance(message, Response) or message.member != "error":
        return False
    error = members_of(message.value)
    is_about_version = bytes(error.get("code", msgspec.Raw())) == b"%d" % UNSUPPORTED_PROTOCOL_VERSION
    return is_about_version and MODERN.encode() in bytes(error.get("data", msgspec.Raw()))


def _envelope(meta: Params) -> Envelope | Rejection:
    for name in (CAPABILITIES_KEY, CLIENT_INFO_KEY):
        if len(bytes(meta.get(name, msgspec.Raw()))) > MAX_ABOUT_CLIENT:
            return Rejection(INVALID_PARAMS, f"{name} has more than {MAX_ABOUT_CLIENT} bytes")
    try:
        capabilities = json.loads(bytes(meta[CAPABILITIES_KEY]))
    except (ValueError, RecursionError):
        capabilities = None
    if not isinstance(capabilities, dict):
        return Rejection(INVALID_PARAMS, f"{CAPABILITIES_KEY} must be an object")
    key = hashlib.sha256(json.dumps(capabilities, sort_keys=True).encode()).digest()
    level = string_of(meta.get(LOG_LEVEL_KEY))
    return Envelope(
        meta[CAPABILITIES_KEY], capabilities, key, meta.get(CLIENT_INFO_KEY), level if level in LEVELS else None
    )


def own_envelope(envelope: Envelope) -> msgspec.Raw:
    """The `_meta` of a request of the gateway's own, on behalf of such a client."""
    meta: dict[str, object] = {VERSION_KEY: MODERN, CAPABILITIES_KEY: envelope.declared}
    if envelope.client_info is not None:
        meta[CLIENT_INFO_KEY] = envelope.client_info
    return msgspec.Raw(encode(meta))


def across_eras(capabilities: Params, known: Collection[str]) -> Params:
    """What either side may hear of the other's capabilities where the two are of different eras."""
    found = {name: value for name, value in capabilities.items() if name in known}
    extensions = members_of(found["extensions"]) if "extensions" in found else {}
    if extensions.pop(TASKS, None) is not None:
        found["extensions"] = msgspec.Raw(encode(extensions))
    return found


def takes_mode(mode: str, declared: Collection[str]) -> bool:
    """Whether a client with these modes under `elicitation` can be asked so; one that names none has forms."""
    return mode in declared or (mode == "form" and "url" not in declared)


def _same_name(method: str, params: Params, header: str | None) -> bool:
    key = METHODS_WITH_NAME.get(method)
    if key is None or key not in params:
        return True
    name = None if header is None else decode_header(header)
    return name is not None and name == string_of(params[key])


def decode_header(value: str) -> str | None:
    """A routing header's text: `=?base64?…?=` carries what a header cannot; None if that is broken."""
    match = _ENCODED.match(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match[1], validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == match[1] else None
    except (ValueError, binascii.Error):
        return None


# --- parameters that are repeated in headers (x-mcp-header)


class MirroredParameter(NamedTuple):
    """A tool's parameter that clients repeat as `Mcp-Param-<header>`."""

    path: tuple[str, ...]
    header: str
    kind: str


def mirrored_parameters(input_schema: Any) -> list[MirroredParameter]:
    """The annotated parameters of a tool, reached through `properties` only.

    None where an annotation is wrong: clients do not use such a tool, and repeat nothing (server/tools, x-mcp-header).
    """
    found: list[MirroredParameter] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), input_schema)]
    while waiting and len(found) < 64:
        path, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if "x-mcp-header" in schema:
            header, kind = schema["x-mcp-header"], str(schema.get("type"))
            is_right = isinstance(header, str) and _TOKEN.match(header) and kind in ("string", "integer", "boolean")
            is_right = is_right and len(header) + sum(map(len, path)) <= MAX_MIRROR
            if not (path and is_right) or any(header.lower() == other.header.lower() for other in found):
                return []
            found.append(MirroredParameter(path, header, kind))
        properties = schema.get("properties")
        if isinstance(properties, dict) and len(path) < 16:
            waiting += [((*path, name), below) for name, below in properties.items() if isinstance(name, str)]
    return found


def check_mirrors(
    mirrored: list[MirroredParameter], arguments: Any, headers: Mapping[str, list[str]]
) -> Rejection | None:
    """Whether each annotated argument stands in its header, and nothing else does. `headers` by lower-case name."""
    for parameter in mirrored:
        values = headers.get("mcp-param-" + parameter.header.lower(), [])
        argument = _value_at(arguments, parameter.path)
        if isinstance(argument, str | int | float):
            wrong = len(values) != 1 or not _says(decode_header(values[0]), argument, parameter.kind)
        else:  # absent, null, or what no header can say
            wrong = bool(values)
        if wrong:
            name, argument_name = f"Mcp-Param-{parameter.header}", ".".join(parameter.path)
            return Rejection(HEADER_MISMATCH, f"{name} is missing or differs from the argument {argument_name}")
    return None


def _value_at(node: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _says(text: str | None, argument: Any, kind: str) -> bool:
    if text is None:
        return False
    if isinstance(argument, bool):
        return text == ("true" if argument else "false")
    if isinstance(argument, str):
        return text == argument
    if kind != "integer":
        return text == str(argument)
    # As numbers, and exactly: 2^53 is not 2^53 + 1, and 7 is 7.0.
    return _NUMBER.match(text) is not None and Decimal(text) == Decimal(str(argument))


# --- results


def complete(result: msgspec.Raw, method: str, server_info: msgspec.Raw | None) -> bytes:
    """A handshake-era result as 2026-07-28 wants it: resultType, who answered, and how long it may be kept."""
    members = members_of(result)
    members.setdefault("resultType", msgspec.Raw(b'"complete"'))
    if server_info is not None:
        meta = members_of(members["_meta"]) if "_meta" in members else {}
        meta.setdefault(SERVER_INFO_KEY, server_info)
        members["_meta"] = msgspec.Raw(encode(meta))
    if method in CACHEABLE and bytes(members["resultType"]) == b'"complete"':  # a question is nothing to keep
        members.setdefault("ttlMs", msgspec.Raw(b"0"))
        members.setdefault("cacheScope", msgspec.Raw(b'"private"'))
    return encode(members)


def tagged(params: Params | None, subscription_id: bytes) -> Params:
    """A notification's params with the subscription they are sent for."""
    params = dict(params or {})
    meta = members_of(params["_meta"]) if "_meta" in params else {}
    meta[SUBSCRIPTION_KEY] = msgspec.Raw(subscription_id)
    params["_meta"] = msgspec.Raw(encode(meta))
    return params


def without_envelope(params: Params | None) -> Params | None:
    """The params as a handshake-era server knows them: progress token and trace context stay in `_meta`."""
    if params is None or "_meta" not in params:
        return params
    meta = {key: value for key, value in members_of(params["_meta"]).items() if not key.startswith(META)}
    rest = {key: value for key, value in params.items() if key not in ("_meta", "inputResponses", "requestState")}
    return {**rest, "_meta": msgspec.Raw(encode(meta))} if meta else rest
