"""Which errors without an id may be the only call's."""

import json

import pytest

from app.protocol.jsonrpc import Response, may_be_of_a_call, parse_backend


def parsed(**members: object) -> Response:
    message = parse_backend(json.dumps({"jsonrpc": "2.0", **members}).encode())
    assert isinstance(message, Response)
    return message


def error(code: object, **members: object) -> Response:
    return parsed(error={"code": code, "message": "?"}, **members)


@pytest.mark.parametrize("code", [-32700, -32600])
def test_an_error_of_a_server_that_could_not_read_the_id_may_be_a_call_s(code: int) -> None:
    assert may_be_of_a_call(error(code, id=None), "tools/call")
    assert may_be_of_a_call(error(code), "tools/call")


@pytest.mark.parametrize("code", [-32601, -32603, -32000, 1, "text", None])
def test_any_other_is_about_something_else_than_the_call(code: object) -> None:
    """As of a notification, or of what the server does by itself."""
    assert not may_be_of_a_call(error(code, id=None), "tools/call")
    assert not may_be_of_a_call(error(code), "tools/call")


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
def test_but_before_the_first_message_of_a_process_there_is_nothing_else(method: str) -> None:
    assert may_be_of_a_call(error(-32603, id=None), method)
    assert may_be_of_a_call(error(-32601), method)


def test_what_has_an_id_or_is_a_result_is_something_else() -> None:
    assert not may_be_of_a_call(error(-32700, id=5), "initialize")
    assert not may_be_of_a_call(parsed(id=None, result={}), "initialize")
