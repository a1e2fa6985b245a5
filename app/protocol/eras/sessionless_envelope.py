"""The revision 2026-07-28: the envelope of each request, and its validation.

There is no handshake and no session: each request has its version and the client's capabilities in `params._meta`, and
repeats in headers what routes it; the headers must agree with the body (basic/index, basic/transports/streamable-http
"Server Validation").
"""

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from app.errors import InvalidMessage
from app.protocol.jsonrpc import (
    ABSENT,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    Notification,
    Params,
    Request,
    Response,
    code_of,
    encoded,
    members_of,
    object_in,
    parse_backend,
    string_of,
)
from app.protocol.revisions import HANDSHAKE

SESSIONLESS = "2026-07-28"
SUPPORTED = (SESSIONLESS, *reversed(HANDSHAKE))
META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = META + "protocolVersion", META + "clientCapabilities"
CLIENT_INFO_KEY, LOG_LEVEL_KEY = META + "clientInfo", META + "logLevel"
SERVER_INFO_KEY = META + "serverInfo"
TASKS = META + "tasks"  # of `extensions`; tasks are not translated between the eras

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
METHODS_WITH_NAME = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId",
                     "tasks/update": "taskId", "tasks/cancel": "taskId"}  # fmt: skip
REMOVED = frozenset({
    "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list",
    "tasks/result",
})  # fmt: skip
MAX_ABOUT_CLIENT = 16 << 10  # bytes of the capabilities, and of the client info: a pooled session keeps both
MAX_MIRROR = 200  # characters of a parameter's path and header together; they are kept for each tool
MAY_ASK = frozenset({"tools/call", "prompts/get", "resources/read"})
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

_NUMBER = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,4})?\Z", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_ENCODED = re.compile(r"=\?base64\?(.*)\?=\Z")


class Envelope(NamedTuple):
    """`declared` has the capabilities as the client wrote them; `capabilities_key` is the same for equal ones."""

    declared: msgspec.Raw
    capabilities: Mapping[str, Any]
    capabilities_key: bytes
    client_info: msgspec.Raw | None
    log_level: str | None


class Rejection(NamedTuple):
    """A JSON-RPC error for HTTP status 400."""

    code: int
    message: str
    data: dict[str, object] | None = None


class RoutingHeaders(NamedTuple):
    """What a request's headers repeat of its body; `repeated` is a routing header that was sent twice."""

    version: str | None
    method: str | None
    name: str | None
    repeated: str | None = None


def envelope_version(message: object) -> msgspec.Raw | None:
    """The version in the message's envelope, which decides its era."""
    if isinstance(message, Request | Notification) and message.params is not None and "_meta" in message.params:
        return members_of(message.params["_meta"]).get(VERSION_KEY)
    return None


def validate(message: Request, headers: RoutingHeaders) -> Envelope | Rejection:
    """The envelope of a valid request, or the first thing that is wrong, in the order of docs/protocol.md."""
    if headers.repeated is not None:
        return Rejection(HEADER_MISMATCH, f"the header {headers.repeated} was sent twice")
    params = message.params or {}
    meta = object_in(params, "_meta")
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
    if version != SESSIONLESS:
        return unsupported(version or "")
    return _envelope(meta)


def unsupported(version: str) -> Rejection:
    """The refusal of a version, with the supported ones; a version that is only refused here is not among them."""
    supported = [each for each in SUPPORTED if each != version]
    data: dict[str, object] = {"supported": supported, "requested": version[:64]}
    return Rejection(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)


def refuses_handshake(line: bytes) -> bool:
    """Whether a server's line refuses `initialize` because it speaks only this revision."""
    try:
        message = parse_backend(line)
    except InvalidMessage:
        return False
    return isinstance(message, Response) and is_refused_handshake(message)


def is_refused_handshake(answer: Response) -> bool:
    """Whether the answer to `initialize` is that the server speaks only this revision."""
    if code_of(answer) != UNSUPPORTED_PROTOCOL_VERSION:
        return False
    return SESSIONLESS.encode() in bytes(members_of(answer.value).get("data", ABSENT))


def envelope_of_ours(client_info: Mapping[str, str]) -> dict[str, object]:
    """The `_meta` of a request of the gateway's own, which offers the server nothing."""
    return {VERSION_KEY: SESSIONLESS, CAPABILITIES_KEY: {}, CLIENT_INFO_KEY: client_info}


def _envelope(meta: Params) -> Envelope | Rejection:
    for name in (CAPABILITIES_KEY, CLIENT_INFO_KEY):
        if len(meta.get(name, ABSENT)) > MAX_ABOUT_CLIENT:
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
    """The `_meta` of a request that the gateway makes on behalf of such a client."""
    meta: dict[str, object] = {VERSION_KEY: SESSIONLESS, CAPABILITIES_KEY: envelope.declared}
    if envelope.client_info is not None:
        meta[CLIENT_INFO_KEY] = envelope.client_info
    return encoded(meta)


def across_eras(capabilities: Params, known: Collection[str]) -> Params:
    """The capabilities of one side for the other, if they are of different eras."""
    found = {name: value for name, value in capabilities.items() if name in known}
    extensions = object_in(found, "extensions")
    if extensions.pop(TASKS, None) is not None:
        found["extensions"] = encoded(extensions)
    return found


def takes_mode(mode: str, declared: Collection[str]) -> bool:
    """Whether a client that declares these modes of `elicitation` supports this one; without any it supports forms."""
    return mode in declared or (mode == "form" and "url" not in declared)


def _same_name(method: str, params: Params, header: str | None) -> bool:
    key = METHODS_WITH_NAME.get(method)
    if key is None or key not in params:
        return True
    name = None if header is None else decode_header(header)
    return name is not None and name == string_of(params[key])


def decode_header(value: str) -> str | None:
    """A routing header's text, `=?base64?…?=` decoded; None if it is malformed."""
    match = _ENCODED.match(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match[1], validate=True)
        return decoded.decode() if base64.b64encode(decoded).decode() == match[1] else None
    except ValueError:
        return None


# --- parameters that are repeated in headers (x-mcp-header)


class MirroredParameter(NamedTuple):
    """A tool's parameter that clients repeat as `Mcp-Param-<header>`."""

    path: tuple[str, ...]
    header: str
    kind: str


def mirrored_parameters(input_schema: Any) -> list[MirroredParameter]:
    """The annotated parameters of a tool, reached through `properties` only. Empty if any annotation is invalid:
    clients then repeat nothing (server/tools, x-mcp-header)."""
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
    """Checks that each annotated argument is in its header, and nothing else. `headers` by lower-case name."""
    for parameter in mirrored:
        values = headers.get("mcp-param-" + parameter.header.lower(), [])
        argument = _value_at(arguments, parameter.path)
        if isinstance(argument, str | int | float):
            wrong = len(values) != 1 or not _says(decode_header(values[0]), argument, parameter.kind)
        else:  # absent, null, or not representable in a header
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
    # Compared as numbers, and exactly: 2^53 is not 2^53 + 1, and 7 is 7.0.
    return _NUMBER.match(text) is not None and Decimal(text) == Decimal(str(argument))


def without_envelope(params: Params | None) -> Params | None:
    """The params for a handshake-era server: progress token and trace context stay in `_meta`."""
    if params is None or "_meta" not in params:
        return params
    meta = {key: value for key, value in members_of(params["_meta"]).items() if not key.startswith(META)}
    rest = {key: value for key, value in params.items() if key not in ("_meta", "inputResponses", "requestState")}
    return {**rest, "_meta": encoded(meta)} if meta else rest
