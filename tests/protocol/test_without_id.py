"""Which errors without an id may be the only call's."""

import json

import pytest

from app.protocol.jsonrpc import Response, parse_backend
from app.protocol.without_id import may_be_of_a_call


def parsed(**members: object) -> Response:
    message = parse_backend(json.dumps({"jsonrpc": "2.0", **members}).encode())
    assert isinstance(message, Response)
    return message


@pytest.mark.parametrize("code", [-32700, -32600, -32603, -32000])
def test_an_error_of_a_server_that_could_not_read_the_id_may_be_a_call_s(code: int) -> None:
    assert may_be_of_a_call(parsed(id=None, error={"code": code, "message": "?"}))
    assert may_be_of_a_call(parsed(error={"code": code, "message": "?"}))


def test_who_does_not_know_a_method_has_read_the_message_and_refuses_a_notification() -> None:
    assert not may_be_of_a_call(parsed(id=None, error={"code": -32601, "message": "Method not found"}))
    assert not may_be_of_a_call(parsed(error={"code": -32601, "message": "Method not found"}))


def test_what_has_an_id_or_is_a_result_is_something_else() -> None:
    assert not may_be_of_a_call(parsed(id=5, error={"code": -32700, "message": "?"}))
    assert not may_be_of_a_call(parsed(id=None, result={}))
