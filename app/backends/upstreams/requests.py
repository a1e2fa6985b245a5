"""The headers of requests to an upstream: what each message needs, and what a backend may add. Pure."""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app import __version__
from app.protocol.eras.sessionless_envelope import (
    METHODS_WITH_NAME,
    MirroredParameter,
    envelope_version,
    mirrored_parameters,
)
from app.protocol.jsonrpc import Message, Notification, Params, Request, Response, members_of, string_of

Headers = list[tuple[bytes, bytes]]

MAX_SESSION_ID = 1024
MAX_TOOLS = 1000  # whose mirrored parameters are remembered, of one backend
MAX_TOOL_NAME = 200
_ANNOTATION = b"x-mcp-header"

_is_session_id = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_SESSION_ID).fullmatch
_is_plain = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?").fullmatch
_is_field_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}").fullmatch
_is_field_value = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?").fullmatch

# Those that the gateway writes itself, or that would change where a message ends or who reads it.
_OWN = frozenset({
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "last-event-id", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_OWN_PREFIXES = ("mcp-", "proxy-")


def is_free(name: str) -> bool:
    """Whether a backend may set a header of this name."""
    return _is_field_name(name) is not None and not is_own(name)


def is_own(name: str) -> bool:
    """Whether the gateway alone sets the header of this name."""
    lower = name.lower()
    return lower in _OWN or lower.startswith(_OWN_PREFIXES)


def is_value(text: str) -> bool:
    """Whether this can be the value of a header: printable ASCII, no space at either end."""
    return _is_field_value(text) is not None


def base_headers(authority: str, own: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Those of every request."""
    agent = f"trunkline/{__version__}".encode()
    given = list(own)
    if not any(name.lower() == b"user-agent" for name, _ in given):
        given.append((b"User-Agent", agent))
    return [(b"Host", authority.encode()), (b"Accept-Encoding", b"identity"), *given]


POST = [(b"Accept", b"application/json, text/event-stream"), (b"Content-Type", b"application/json")]
GET = [(b"Accept", b"text/event-stream"), (b"Cache-Control", b"no-store")]


def checked_session_id(values: Sequence[bytes]) -> bytes | None:
    """The id that a server has given to the session; None if there is none, or it cannot be given back."""
    return values[0] if len(values) == 1 and _is_session_id(values[0]) else None


def session_headers(session_id: bytes | None, version: str | None) -> Headers:
    """Those of a session with a handshake."""
    named: Headers = [] if session_id is None else [(b"Mcp-Session-Id", session_id)]
    return named if version is None else [*named, (b"MCP-Protocol-Version", version.encode())]


def is_sessionless(message: Message) -> bool:
    """Whether the message is of 2026-07-28."""
    return not isinstance(message, Response) and envelope_version(message) is not None


class RoutingHeaders:
    """The headers in which messages of 2026-07-28 repeat what routes them, arguments of tools included: of one backend.

    Which arguments is learnt from the lists that pass (`saw`).
    """

    def __init__(self) -> None:
        self._mirrored: dict[str, list[MirroredParameter]] = {}

    def saw(self, response: Response) -> None:
        """An answer that may be a page of tools."""
        if response.member != "result" or b'"tools"' not in bytes(response.value):
            return
        tools = members_of(response.value).get("tools")
        if tools is None:
            return
        annotated = _ANNOTATION in bytes(tools)
        if not annotated and not self._mirrored:
            return
        for name, found in _of_page(bytes(tools)).items():
            self._mirrored.pop(name, None)
            if found and len(self._mirrored) < MAX_TOOLS and len(name) <= MAX_TOOL_NAME:
                self._mirrored[name] = found

    def of(self, message: Request | Notification) -> Headers:
        """For a message with an envelope."""
        params = message.params or {}
        version = string_of(envelope_version(message)) or ""
        headers = [(b"MCP-Protocol-Version", encoded_value(version)), (b"Mcp-Method", encoded_value(message.method))]
        key = METHODS_WITH_NAME.get(message.method)
        name = None if key is None else string_of(params.get(key))
        if name is not None:
            headers.append((b"Mcp-Name", encoded_value(name)))
        if message.method == "tools/call" and name in self._mirrored:
            headers += mirrors(self._mirrored[name], params)
        return headers


def mirrors(mirrored: Iterable[MirroredParameter], params: Params) -> Headers:
    """The arguments of a call that it repeats in headers."""
    try:
        arguments = json.loads(bytes(params["arguments"]))
    except (KeyError, ValueError, RecursionError):
        return []
    headers: Headers = []
    for parameter in mirrored:
        value = _value_at(arguments, parameter.path)
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str | int | float):
            text = str(value)
        else:
            continue
        headers.append((f"Mcp-Param-{parameter.header}".encode(), encoded_value(text)))
    return headers


def encoded_value(text: str) -> bytes:
    """As a header's value: as it is, or in Base64 where it could be read otherwise."""
    if _is_plain(text) is not None and not text.startswith("=?base64?"):
        return text.encode()
    return b"=?base64?%b?=" % base64.b64encode(text.encode("utf-8", "replace"))


def _value_at(node: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _of_page(tools: bytes) -> dict[str, list[MirroredParameter]]:
    try:
        found = json.loads(tools)
    except (ValueError, RecursionError):
        return {}
    named = [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
    return {str(tool.get("name")): mirrored_parameters(tool.get("inputSchema")) for tool in named}
