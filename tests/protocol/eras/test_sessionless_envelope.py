"""The revision 2026-07-28, rung by rung (basic/transports/streamable-http "Server Validation", basic/index "_meta")."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.eras.sessionless_envelope import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    MAX_ABOUT_CLIENT,
    METHODS_WITH_NAME,
    SESSIONLESS,
    SUPPORTED,
    VERSION_KEY,
    Envelope,
    Rejection,
    RoutingHeaders,
    check_mirrors,
    decode_header,
    envelope_version,
    mirrored_parameters,
    refuses_handshake,
    validate,
    without_envelope,
)
from app.protocol.jsonrpc import Request, parse_client

ENVELOPE = {VERSION_KEY: SESSIONLESS, CAPABILITIES_KEY: {}}


def request(method: str = "tools/call", meta: Any = ENVELOPE, **params: Any) -> Request:
    given_meta = {} if meta is None else {"_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **given_meta}}
    message = parse_client(json.dumps(body).encode())
    assert isinstance(message, Request)
    return message


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


GOOD = RoutingHeaders(SESSIONLESS, "tools/call", "x")


# --- validation


def test_a_valid_request_says_who_its_client_is() -> None:
    meta = {**ENVELOPE, CAPABILITIES_KEY: {"b": 1, "a": {}}, CLIENT_INFO_KEY: {"name": "c"}, LOG_LEVEL_KEY: "info"}
    envelope = validate(request(meta=meta, name="x"), GOOD)
    assert isinstance(envelope, Envelope)
    assert envelope.capabilities == {"a": {}, "b": 1}
    same = validate(request(meta={**ENVELOPE, CAPABILITIES_KEY: {"a": {}, "b": 1}}, name="x"), GOOD)
    assert isinstance(same, Envelope)
    assert envelope.capabilities_key == same.capabilities_key
    assert envelope.client_info is not None
    assert json.loads(bytes(envelope.client_info)) == {"name": "c"}
    assert envelope.log_level == "info"


@pytest.mark.parametrize("name", [CAPABILITIES_KEY, CLIENT_INFO_KEY])
def test_what_a_client_says_of_itself_is_short(name: str) -> None:
    meta = {**ENVELOPE, name: {"x": "y" * MAX_ABOUT_CLIENT}}
    rejection = validate(request(meta=meta, name="x"), GOOD)
    assert isinstance(rejection, Rejection)
    assert rejection.code == -32602
    meta = {**ENVELOPE, name: {"x": "y" * (MAX_ABOUT_CLIENT - 20)}}
    assert isinstance(validate(request(meta=meta, name="x"), GOOD), Envelope)


def test_a_request_without_client_info_or_with_an_unknown_level_is_served() -> None:
    envelope = validate(request(meta={**ENVELOPE, LOG_LEVEL_KEY: "loud"}, name="x"), GOOD)
    assert isinstance(envelope, Envelope)
    assert (envelope.client_info, envelope.log_level) == (None, None)


OTHER = "2099-01-01"


@pytest.mark.parametrize(
    ("meta", "headers", "code"),
    [
        (ENVELOPE, GOOD._replace(repeated="mcp-name"), -32020),
        (None, GOOD, -32602),
        ("text", GOOD, -32602),
        ({}, GOOD, -32602),
        ({VERSION_KEY: SESSIONLESS}, GOOD, -32602),
        ({CAPABILITIES_KEY: {}}, GOOD, -32602),
        (ENVELOPE, GOOD._replace(version=None), -32020),
        (ENVELOPE, GOOD._replace(version="2025-11-25"), -32020),
        ({**ENVELOPE, VERSION_KEY: OTHER}, GOOD, -32020),
        ({**ENVELOPE, VERSION_KEY: 7}, GOOD, -32020),
        (ENVELOPE, GOOD._replace(method=None), -32020),
        (ENVELOPE, GOOD._replace(method="tools/list"), -32020),
        (ENVELOPE, GOOD._replace(method="TOOLS/CALL"), -32020),
        (ENVELOPE, GOOD._replace(name=None), -32020),
        (ENVELOPE, GOOD._replace(name="y"), -32020),
        (ENVELOPE, GOOD._replace(name="=?base64?!?="), -32020),
        ({**ENVELOPE, VERSION_KEY: OTHER}, GOOD._replace(version=OTHER), -32022),
        ({**ENVELOPE, VERSION_KEY: "2025-11-25"}, GOOD._replace(version="2025-11-25"), -32022),
        ({**ENVELOPE, CAPABILITIES_KEY: []}, GOOD, -32602),
        ({**ENVELOPE, CAPABILITIES_KEY: None}, GOOD, -32602),
    ],
)
def test_each_rung_refuses_with_its_code(meta: Any, headers: RoutingHeaders, code: int) -> None:
    rejection = validate(request(meta=meta, name="x"), headers)
    assert isinstance(rejection, Rejection)
    assert rejection.code == code


def test_the_first_rung_that_fails_is_the_one_that_is_named() -> None:
    bad = RoutingHeaders("x", "y", "z", "mcp-method")
    codes = []
    for headers, meta in [
        (bad, None), (bad._replace(repeated=None), None),
        (bad._replace(repeated=None), {**ENVELOPE, VERSION_KEY: OTHER}),
        (RoutingHeaders(OTHER, "tools/call", "x"), {VERSION_KEY: OTHER, CAPABILITIES_KEY: 7}),
    ]:  # fmt: skip
        rejection = validate(request(meta=meta, name="x"), headers)
        assert isinstance(rejection, Rejection)
        codes.append(rejection.code)
    assert codes == [-32020, -32602, -32020, -32022]


def test_a_version_we_do_not_have_is_refused_with_those_we_have() -> None:
    rejection = validate(request(meta={**ENVELOPE, VERSION_KEY: OTHER}, name="x"), GOOD._replace(version=OTHER))
    assert isinstance(rejection, Rejection)
    assert rejection.data == {"supported": list(SUPPORTED), "requested": OTHER}
    assert SUPPORTED[0] == SESSIONLESS


def test_a_version_that_is_served_in_another_way_is_refused_without_being_offered() -> None:
    older = SUPPORTED[1]
    rejection = validate(request(meta={**ENVELOPE, VERSION_KEY: older}, name="x"), GOOD._replace(version=older))
    assert isinstance(rejection, Rejection)
    assert rejection.data == {"supported": [each for each in SUPPORTED if each != older], "requested": older}


@pytest.mark.parametrize("method", METHODS_WITH_NAME)
def test_each_method_with_a_name_has_it_in_its_header(method: str) -> None:
    key = METHODS_WITH_NAME[method]
    message = request(method, **{key: "grüße"})
    assert isinstance(validate(message, RoutingHeaders(SESSIONLESS, method, encoded("grüße"))), Envelope)
    assert isinstance(validate(message, RoutingHeaders(SESSIONLESS, method, "grüße ")), Rejection)


def test_a_name_that_is_no_string_fits_no_header() -> None:
    for header in (None, "7", "=?base64?!?=", "null"):
        assert isinstance(validate(request(name=7), GOOD._replace(name=header)), Rejection)


def test_a_method_without_a_name_needs_no_header_for_it() -> None:
    assert isinstance(validate(request("tools/list"), RoutingHeaders(SESSIONLESS, "tools/list", None)), Envelope)
    assert isinstance(validate(request("tools/call"), RoutingHeaders(SESSIONLESS, "tools/call", None)), Envelope)


def test_the_body_alone_says_the_era() -> None:
    version = envelope_version(request(meta={VERSION_KEY: OTHER}))
    assert version is not None
    assert bytes(version) == json.dumps(OTHER).encode()
    others: list[Any] = [request(meta=None), request(meta={}), request(meta=7), [], None]
    for other in others:
        assert envelope_version(other) is None


# --- headers


@pytest.mark.parametrize("text", ["", "x", "a b", "=?base64?", "?=", "=?BASE64?eA==?=", "=?base64?eA==?= ", "é"])
def test_a_plain_header_is_its_text(text: str) -> None:
    assert decode_header(text) == text


@pytest.mark.parametrize("broken", ["!", "eA", "eA=", "eB==", "/w==", " eA=="])
def test_a_broken_encoding_is_no_text(broken: str) -> None:
    """Not base64, not the only base64 of what it says, or not UTF-8."""
    assert decode_header(f"=?base64?{broken}?=") is None


@given(st.text())
def test_what_was_encoded_is_decoded(text: str) -> None:
    assert decode_header(encoded(text)) == text


# --- x-mcp-header


def schema(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


def mirror(kind: str, header: str = "H") -> Any:
    return {"type": kind, "x-mcp-header": header}


def test_annotated_parameters_are_found_through_properties_only() -> None:
    found = mirrored_parameters(schema(
        region=mirror("string", "Region"),
        deep=schema(count=mirror("integer", "Count"), flag=mirror("boolean", "Flag")),
        plain={"type": "string"},
        listed={"type": "array", "items": mirror("string", "Not")},
    ))  # fmt: skip
    assert {(each.path, each.header, each.kind) for each in found} == {
        (("region",), "Region", "string"),
        (("deep", "count"), "Count", "integer"),
        (("deep", "flag"), "Flag", "boolean"),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        mirror("number"), mirror("object"), mirror("string", "not a token"), mirror("string", ""),
        {"type": ["string"], "x-mcp-header": "H"}, {"x-mcp-header": "H"}, {"type": "string", "x-mcp-header": 7},
    ],
)  # fmt: skip
def test_a_tool_with_a_wrong_annotation_mirrors_nothing(wrong: Any) -> None:
    assert mirrored_parameters(schema(good=mirror("string", "Good"), bad=wrong)) == []


def test_a_tool_that_uses_a_header_twice_mirrors_nothing() -> None:
    assert mirrored_parameters(schema(a=mirror("string", "H"), b=mirror("string", "h"))) == []


@pytest.mark.parametrize("nonsense", [None, 7, [], {"properties": 7}, {"properties": {"a": 7}}, mirror("string")])
def test_a_schema_that_is_none_mirrors_nothing(nonsense: Any) -> None:
    assert mirrored_parameters(nonsense) == []


def test_a_schema_that_is_very_deep_ends() -> None:
    deep: Any = mirror("string")
    for _ in range(5000):
        deep = schema(a=deep)
    assert mirrored_parameters(deep) == []


BIG = 2**53


@pytest.mark.parametrize(
    ("kind", "argument", "header", "fits"),
    [
        ("string", "eu", "eu", True),
        ("string", "eu", "EU", False),
        ("string", "grüße", encoded("grüße"), True),
        ("string", "x", "=?base64?!?=", False),
        ("string", "", "", True),
        ("string", "eu", None, False),
        ("string", None, None, True),
        ("string", None, "eu", False),
        ("boolean", True, "true", True),
        ("boolean", False, "false", True),
        ("boolean", True, "True", False),
        ("boolean", True, "1", False),
        ("integer", 7, "7", True),
        ("integer", 7, "7.0", True),
        ("integer", 7.0, "7", True),
        ("integer", 7, "07e0", True),
        ("integer", 7, "8", False),
        ("integer", 7, "", False),
        ("integer", 10, "1_0", False),
        ("integer", 7, encoded("\u0667"), False),
        ("integer", BIG + 1, str(BIG + 1), True),
        ("integer", BIG + 1, str(BIG), False),
        ("integer", BIG, str(BIG + 1), False),
        ("integer", -BIG - 1, str(-BIG), False),
        ("integer", -BIG - 1, str(-BIG - 1), True),
        ("integer", BIG + 1, f"{BIG}.0", False),
        ("integer", 2**64 + 1, str(2**64 + 1), True),
        ("integer", 2**64 + 1, str(2**64), False),
        ("integer", 7, "inf", False),
        ("integer", 7, "nan", False),
        ("integer", 7, "9" * 5000, False),
        ("integer", 7, "1e9999", False),
        ("integer", [7], None, True),
        ("integer", [7], "7", False),
    ],
)
def test_an_argument_and_its_header_say_the_same(kind: str, argument: Any, header: str | None, *, fits: bool) -> None:
    mirrored = mirrored_parameters(schema(a=mirror(kind)))
    headers = {} if header is None else {"mcp-param-h": [header]}
    rejection = check_mirrors(mirrored, {"a": argument} if argument is not None else {}, headers)
    assert (rejection is None) == fits
    assert rejection is None or rejection.code == -32020


def test_a_header_that_stands_twice_fits_no_argument() -> None:
    mirrored = mirrored_parameters(schema(a=mirror("string")))
    assert check_mirrors(mirrored, {"a": "x"}, {"mcp-param-h": ["x", "x"]}) is not None
    assert check_mirrors(mirrored, {}, {"mcp-param-h": ["x", "x"]}) is not None


@pytest.mark.parametrize("arguments", [None, 7, [], {"deep": 7}, {"deep": {}}])
def test_arguments_without_the_value_need_no_header(arguments: Any) -> None:
    mirrored = mirrored_parameters(schema(deep=schema(a=mirror("string"))))
    assert check_mirrors(mirrored, arguments, {}) is None
    assert check_mirrors(mirrored, arguments, {"mcp-param-h": ["x"]}) is not None


@given(st.integers(), st.integers())
def test_integers_are_compared_exactly(argument: int, header: int) -> None:
    mirrored = mirrored_parameters(schema(a=mirror("integer")))
    fits = check_mirrors(mirrored, {"a": argument}, {"mcp-param-h": [str(header)]}) is None
    assert fits == (argument == header)


# --- params, and refusals


def test_the_envelope_stays_with_us() -> None:
    meta = {**ENVELOPE, CLIENT_INFO_KEY: {}, LOG_LEVEL_KEY: "info", "progressToken": 1, "traceparent": "00-a"}
    params = request(meta=meta, name="x", inputResponses={}, requestState="s").params
    rest = without_envelope(params)
    assert rest is not None
    assert json.loads(msgspec.json.encode(rest)) == {"name": "x", "_meta": {"progressToken": 1, "traceparent": "00-a"}}
    assert set(without_envelope(request(name="x").params) or ()) == {"name"}
    assert without_envelope(None) is None


@pytest.mark.parametrize(
    ("line", "refuses"),
    [
        ({"error": {"code": -32022, "message": "", "data": {"supported": [SESSIONLESS]}}}, True),
        ({"error": {"code": -32022, "message": "", "data": {"supported": ["2030-01-01"]}}}, False),
        ({"error": {"code": -32602, "message": SESSIONLESS, "data": {"supported": [SESSIONLESS]}}}, False),
        ({"error": {"code": -32022, "message": SESSIONLESS}}, False),
        ({"error": 7}, False),
        ({"result": {"code": -32022, "data": SESSIONLESS}}, False),
        ({"method": "x"}, False),
    ],
)
def test_only_the_refusal_of_a_sessionless_server_means_that_it_is_sessionless(
    line: dict[str, Any], *, refuses: bool
) -> None:
    assert refuses_handshake(json.dumps({"jsonrpc": "2.0", "id": 1, **line}).encode()) == refuses


def test_noise_is_no_refusal() -> None:
    assert not refuses_handshake(b"not json")
