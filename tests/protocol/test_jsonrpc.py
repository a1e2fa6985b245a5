"""Envelopes: what is checked is what is forwarded (basic/index, "Messages")."""

import json

import pytest

from app.errors import InvalidMessage, ParseError
from app.http.errors import rpc_error
from app.protocol.jsonrpc import (
    MAX_BATCH,
    Notification,
    Request,
    Response,
    dump,
    dump_response,
    error_response,
    parse_backend,
    parse_client,
    several,
)
from app.protocol.tolerant import MAX_MESSAGES

PREFIX = b'{"jsonrpc":"2.0",'


def request(id_bytes: bytes = b"1", params: bytes = b"{}") -> bytes:
    return PREFIX + b'"id":%b,"method":"tools/call","params":%b}' % (id_bytes, params)


@pytest.mark.parametrize(
    "id_bytes",
    [
        b"1",
        b"0",
        b"-5",
        b'"1"',
        b'""',
        b"9007199254740993",
        b"9" * 30,
        '"é"'.encode(),
        b'"\\u00e9"',
        b'"' + b"x" * 256 + b'"',
    ],
)
def test_an_id_keeps_its_bytes(id_bytes: bytes) -> None:
    message = parse_client(request(id_bytes))
    assert isinstance(message, Request)
    assert message.id == id_bytes
    assert b'"id":' + id_bytes + b"," in dump(message)


@pytest.mark.parametrize(
    "id_bytes", [b"1.0", b"1e3", b"null", b"true", b"[1]", b"{}", b"9" * 31, b'"' + b"x" * 257 + b'"']
)
def test_what_is_no_id_is_refused(id_bytes: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_client(request(id_bytes))


@pytest.mark.parametrize("id_bytes", [b'"id":1,', b""])
def test_a_method_has_at_most_200_characters(id_bytes: bytes) -> None:
    for length in (200, 201):
        body = b'{"jsonrpc":"2.0",%b"method":"%b"}' % (id_bytes, b"m" * length)
        if length == 200:
            parse_client(body)
        else:
            with pytest.raises(InvalidMessage, match="at most 200"):
                parse_client(body)


def test_an_escaped_id_is_measured_in_characters() -> None:
    assert isinstance(parse_client(request(b'"' + b"\\u0041" * 256 + b'"')), Request)
    with pytest.raises(InvalidMessage):
        parse_client(request(b'"' + b"\\u0041" * 257 + b'"'))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"jsonrpc":"2.0","id":1,"method":"x"} trailing',
        request(params=b'{"a":NaN}'),
        request(params=b'{"a":01}'),
        request(params=b'{"a":"line\nbreak"}'),
        request(params=b'{"a":"\xff"}'),
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        request(params=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_client(body)


@pytest.mark.parametrize("space", ["", " ", "\n"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b'"cut \\ud83d"', id="an emoji that was cut in two"),
        pytest.param(b"[" * 1500 + b"]" * 1500, id="deep"),
    ],
)
def test_json_that_msgspec_refuses_travels_as_the_bytes_it_came_in(value: bytes, space: str) -> None:
    body = request(params=b'{"a":%b}' % value).replace(b",", b"," + space.encode())
    message = parse_client(body)
    assert isinstance(message, Request)
    assert message.params is not None
    assert bytes(message.params["a"]) == value
    assert dump(message) == request(params=b'{"a":%b}' % value)
    assert parse_client(b"[%b]" % body) == [message]


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\\ud83d"},"params":{}}',
        request(params=b'{"a":"\\ud83d","a":1}'),
        request(params=b'{"\\ud83d":1}'),
        request(id_bytes=b'"%b\\ud83d"' % (b"x" * 300)),
        b'{"jsonrpc":"2.0","id":1,"method":"\\ud83d"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":["\\ud83d"]}',
    ],
)
def test_what_msgspec_refuses_is_checked_no_less(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_client(body)


@pytest.mark.parametrize("body", [request(params=b'{"a":"x\ny","b":"\\ud83d"}'), b'["x\ny","\\ud83d"]'])
def test_a_line_end_within_a_string_is_not_taken_for_space(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_client(body)


def test_params_that_are_null_are_none() -> None:
    message = parse_client(request(params=b"null"))
    assert isinstance(message, Request)
    assert message.params is None


@pytest.mark.parametrize(
    "body",
    [
        b"1",
        b'"text"',
        b"null",
        b'{"id":1,"method":"x"}',
        b'{"jsonrpc":"1.0","id":1,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":7}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        request(params=b"[1,2]"),
        request(params=b"7"),
    ],
)
def test_json_that_is_no_message_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_client(body)
    assert not isinstance(caught.value, ParseError)


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}',
        b'{"jsonrpc":"2.0","id":1,"m\\u0065thod":"x","method":"y"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{},"params":{}}',
        request(params=b'{"name":"a","name":"b"}'),
        request(params=b'{"name":"a","n\\u0061me":"b"}'),
        b'{ "jsonrpc" : "2.0" , "id" : 1 , "method" : "x" , "params" : { "a" : 1 , "a" : 2 } }',
        b'{"jsonrpc":"2.0","id":1,"method":"x","other":1,"other":2}',
    ],
)
def test_a_key_that_stands_twice_is_refused_on_the_two_checked_levels(body: bytes) -> None:
    with pytest.raises(InvalidMessage, match="duplicate key"):
        parse_client(body)


def test_a_key_that_stands_twice_deeper_is_passed_on_as_it_came() -> None:
    body = request(params=b'{"arguments":{"a":1,"a":2}}')
    message = parse_client(body)
    assert not isinstance(message, list)
    assert dump(message) == body


def test_unknown_members_of_the_envelope_are_not_forwarded() -> None:
    message = parse_client(b'{"jsonrpc":"2.0","id":1,"Method":"evil","method":"x","extra":{"a":1}}')
    assert not isinstance(message, list)
    assert json.loads(dump(message)) == {"jsonrpc": "2.0", "id": 1, "method": "x"}


def test_numbers_and_strings_inside_travel_as_the_bytes_they_came_in() -> None:
    params = '{"arguments":{"n":1.0e5,"big":18446744073709551616,"s":"\\u0041é\\/"}}'.encode()
    message = parse_client(request(params=params))
    assert not isinstance(message, list)
    assert params in dump(message)


def test_whitespace_between_tokens_never_reaches_a_line() -> None:
    pretty = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": {"b": [1, 2]}}}, indent=2)
    message = parse_client(pretty.replace("\n", "\r\n").encode())
    assert not isinstance(message, list)
    assert dump(message) == b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":{"b":[1,2]}}}'


def test_a_batch_is_a_list_of_messages() -> None:
    batch = parse_client(
        b" [" + request() + b',{"jsonrpc":"2.0","method":"n"}, {"jsonrpc":"2.0","id":"a","result":null}]'
    )
    assert isinstance(batch, list)
    assert [type(message) for message in batch] == [Request, Notification, Response]


def test_a_backend_may_say_a_key_twice_but_not_write_bad_utf8() -> None:
    answer = parse_backend(b'{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}')
    assert isinstance(answer, Response)
    assert dump_response(b'"theirs"', answer) == b'{"jsonrpc":"2.0","id":"theirs","result":{"a":1,"a":2}}'
    with pytest.raises(ParseError):
        parse_backend(b'{"jsonrpc":"2.0","id":7,"result":"\xff"}')


def test_an_error_of_our_own_is_json() -> None:
    assert json.loads(error_response(b"null", -32600, 'said "no"', {"reason": "x"})) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": 'said "no"', "data": {"reason": "x"}},
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'[{"id":1},{"x":[{}]}, 7]', [b'{"id":1}', b'{"x":[{}]}']),
        (b' [{"x":"\\ud83d"}]', [b'{"x":"\\ud83d"}']),
        (b'[{"x":"' + b"y" * (5 << 20) + b'"}]', [b'{"x":"' + b"y" * (5 << 20) + b'"}']),
        (b'{"id":1}{"id":2}', [b'{"id":1}', b'{"id":2}']),
        (b'[{"id":1}', []),
        (b"[" + b"{}," * MAX_BATCH + b"{}]", []),
        (b"{}" * (MAX_MESSAGES + 1), []),
        (b'{"id":1}', []),
    ],
)
def test_the_messages_of_a_line_or_a_batch(line: bytes, expected: list[bytes]) -> None:
    assert several(line) == expected


def test_what_only_repeats_or_adds_a_key_is_read_quickly_however_much_there_is() -> None:
    body = request(params=b'{"a":[' + b"[]," * 100_000 + b"1]}")[:-1] + b',"_x":1}'
    assert isinstance(parse_client(body), Request)


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled", "notifications/vendor"])
def test_a_notification_whose_id_is_null_is_the_notification_it_is_meant_to_be(method: str) -> None:
    body = PREFIX + b'"id":null,"method":"%b"}' % method.encode()
    for parse in (parse_client, parse_backend):
        message = parse(body)
        assert message == Notification(method, None)
        assert dump(message) == PREFIX + b'"method":"%b"}' % method.encode()


@pytest.mark.parametrize("params", [b"null", b"[]", b"[ ]"])
def test_params_that_name_nothing_are_none(params: bytes) -> None:
    """Also of a request: clients in PHP write an empty object as `[]`."""
    message = parse_client(PREFIX + b'"method":"notifications/initialized","params":%b}' % params)
    assert message == Notification("notifications/initialized", None)
    asked = parse_client(PREFIX + b'"id":3,"method":"tools/list","params":%b}' % params)
    assert asked == Request(b"3", "tools/list", None)


@pytest.mark.parametrize(
    ("rest", "request_id"),
    [
        (b'"id":3,"method":"ping","params":[1]}', b"3"),
        (b'"id":"a","method":"ping","params":"x"}', b'"a"'),
        (b'"id":3,"method":"%b"}' % (b"m" * 201), b"3"),
        (b'"id":3.5,"method":"ping","params":[1]}', b"null"),
        (b'"id":"\\ud83d","method":"ping","params":[1]}', b"null"),
        (b'"method":"ping","params":[1]}', b"null"),
    ],
)
def test_a_request_that_is_none_is_refused_with_its_id_where_that_is_certain(rest: bytes, request_id: bytes) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_client(PREFIX + rest)
    assert caught.value.request_id == request_id
    assert b'"id":%b,' % request_id in rpc_error(caught.value)


def test_a_byte_order_mark_before_a_body_is_ignored() -> None:
    assert parse_client(b"\xef\xbb\xbf" + request()) == parse_client(request())
    batch = parse_client(b"\xef\xbb\xbf[" + request() + b"]")
    assert batch == [parse_client(request())]
    with pytest.raises(ParseError):
        parse_client(b"\xef\xbb\xbf" * 2 + request())
