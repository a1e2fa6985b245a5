"""Which messages are read here, and which by the node that has their session."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import NodeLost
from app.transports.streamable_http import StreamableHttp
from tests.transports.conftest import Http

MCP = "/t/acme/echo/mcp"
SESSION: dict[str, Any] = {"mcp_session_id": "0123456789abcdef.nowhere", "mcp_protocol_version": "2025-06-18"}
ENVELOPE = '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}'
MODERN = '{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":' + ENVELOPE + "}}"


class There:
    """Another node, which answers whatever it gets, or fails at it."""

    def __init__(self, streamable: StreamableHttp, failure: Exception | None) -> None:
        self.bodies: list[bytes] = []
        self._failure = failure
        streamable._elsewhere = SimpleNamespace(session=self.session)  # type: ignore[assignment]

    async def session(self, request: Any, session_id: str, body: bytes = b"") -> None:
        self.bodies.append(body)
        if self._failure is not None:
            raise self._failure
        await request.answer(200, b"{}")


def there(http: Http, failure: Exception | None = None) -> There:
    return There(http.app._endpoints["mcp"]["POST"].__self__, failure)


@pytest.mark.parametrize(
    "body", [b'{"jsonrpc":"2.0","id":7,"method":"ping"}', b'{"jsonrpc":"2.0","method":"x"}', b"[", b""]
)
async def test_what_is_for_a_session_elsewhere_is_read_there(http: Http, body: bytes) -> None:
    other = there(http)
    assert (await http.ask("POST", MCP, body, **SESSION)).status == 200
    assert other.bodies == [body]


@pytest.mark.parametrize(
    "body", [MODERN, MODERN.replace("_meta", "\\u005fmeta"), MODERN.replace("_meta", "_m\\u0065ta")]
)
async def test_a_message_of_the_modern_era_is_read_here_whatever_its_headers_say(http: Http, body: str) -> None:
    other = there(http)
    answer = await http.ask("POST", MCP, body.encode(), **SESSION)
    assert (answer.status, json.loads(answer.body)["id"]) == (400, 7)  # the header's version is another than its own
    assert not other.bodies


async def test_a_request_that_is_lost_elsewhere_fails_under_its_own_id(http: Http) -> None:
    there(http, NodeLost())
    answer = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","id":"a","method":"ping"}', **SESSION)
    got = json.loads(answer.body)
    assert (answer.status, got["id"], got["error"]["code"]) == (200, "a", -32012)


async def test_an_unknown_session_is_not_found_and_what_is_no_message_is_worse(http: Http) -> None:
    request = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","id":7,"method":"ping"}', **SESSION)
    assert (request.status, json.loads(request.body)["id"]) == (404, 7)
    notice = await http.ask("POST", MCP, b'{"jsonrpc":"2.0","method":"notifications/x"}', **SESSION)
    assert (notice.status, json.loads(notice.body)["id"]) == (404, None)
    assert (await http.ask("POST", MCP, b"[", **SESSION)).status == 400
