"""Headers of requests to upstreams."""

import json

import msgspec
import pytest

from app.backends.upstreams.requests import (
    RoutingHeaders,
    base_headers,
    checked_session_id,
    encoded_value,
    is_free,
    is_sessionless,
    is_value,
    session_headers,
)
from app.protocol.eras.sessionless_envelope import decode_header
from app.protocol.jsonrpc import Request, Response, parse_backend

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
TOOLS = {"tools": [{"name": "where", "inputSchema": {"type": "object", "properties": {
    "region": {"type": "string", "x-mcp-header": "Region"}, "deep": {"properties": {"n": {
        "type": "integer", "x-mcp-header": "N"}}}, "sure": {"type": "boolean", "x-mcp-header": "Sure"},
}}}]}  # fmt: skip


def asked(method, **params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    message = parse_backend(json.dumps(body).encode())
    assert isinstance(message, Request)
    return message


def page(value):
    return Response(b"1", "result", msgspec.Raw(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("Authorization", True), ("X-Api-Key", True), ("Cookie", True), ("Host", False), ("content-LENGTH", False),
     ("Mcp-Session-Id", False), ("mcp-method", False), ("Proxy-Authorization", False), ("Transfer-Encoding", False),
     ("Last-Event-ID", False), ("a b", False), ("", False), ("a\r\nb", False), ("Ä", False), ("x" * 129, False)],
)  # fmt: skip
def test_a_backend_may_not_set_what_the_gateway_writes(name, allowed):
    assert is_free(name) is allowed


@pytest.mark.parametrize("text", ["", " x", "x ", "a\r\nb: c", "a\0b", "é", "\t"])
def test_a_value_is_one_line_of_printable_ascii(text):
    assert not is_value(text)
    assert is_value("Bearer a b~")


def test_every_request_names_its_host_and_accepts_no_encoding():
    headers = dict(base_headers("far.example:8443", [(b"Authorization", b"Bearer x")]))
    assert headers[b"Host"] == b"far.example:8443"
    assert headers[b"Accept-Encoding"] == b"identity"
    assert headers[b"Authorization"] == b"Bearer x"
    assert headers[b"User-Agent"].startswith(b"trunkline/")
    assert dict(base_headers("h", [(b"user-agent", b"mine")])).get(b"User-Agent") is None


@pytest.mark.parametrize(
    ("values", "found"),
    [([b"abc"], b"abc"), ([], None), ([b"a", b"b"], None), ([b"a b"], None), ([b""], None), ([b"x" * 1025], None)],
)
def test_a_session_id_that_could_not_be_given_back_is_none(values, found):
    assert checked_session_id(values) == found


def test_a_session_repeats_its_id_and_version():
    assert session_headers(None, None) == []
    assert session_headers(b"s", "2025-11-25") == [(b"Mcp-Session-Id", b"s"), (b"MCP-Protocol-Version", b"2025-11-25")]


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [("tools/call", {"name": "add"}, b"add"), ("resources/read", {"uri": "test://é"}, b"=?base64?dGVzdDovL8OpPW==?="),
     ("prompts/get", {"name": " x"}, None), ("tasks/get", {"taskId": "t1"}, b"t1"), ("tools/list", {}, b"")],
)  # fmt: skip
def test_a_message_of_2026_repeats_what_routes_it(method, params, name):
    message = asked(method, **params)
    headers = dict(RoutingHeaders().of(message))
    assert is_sessionless(message)
    assert headers[b"MCP-Protocol-Version"] == b"2026-07-28"
    assert headers[b"Mcp-Method"] == method.encode()
    if name == b"":
        assert b"Mcp-Name" not in headers
    else:
        assert decode_header(headers[b"Mcp-Name"].decode()) == next(iter(params.values()))


def test_arguments_are_repeated_as_the_list_of_tools_says():
    routing = RoutingHeaders()
    message = asked("tools/call", name="where", arguments={"region": "Zürich", "deep": {"n": 7}, "sure": True})
    assert b"Mcp-Param-Region" not in dict(routing.of(message))
    routing.saw(page(TOOLS))
    headers = dict(routing.of(message))
    assert decode_header(headers[b"Mcp-Param-Region"].decode()) == "Zürich"
    assert (headers[b"Mcp-Param-N"], headers[b"Mcp-Param-Sure"]) == (b"7", b"true")
    absent = dict(routing.of(asked("tools/call", name="where", arguments={"region": None})))
    assert not [name for name in absent if name.startswith(b"Mcp-Param")]
    routing.saw(page({"tools": [{"name": "where", "inputSchema": {}}]}))
    assert b"Mcp-Param-Region" not in dict(routing.of(message))


@pytest.mark.parametrize("text", ["plain", "with space", "=?base64?eA==?=", "é", "a\r\nb", " lead", ""])
def test_any_text_survives_a_header(text):
    value = encoded_value(text)
    assert b"\r" not in value
    assert b"\n" not in value
    assert decode_header(value.decode()) == text
