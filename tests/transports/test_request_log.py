"""What ACCESS_LOG=all sees of an answer, whichever way that goes out."""

import io
import json
from typing import Any

import pytest

from app.http.scope import AT_ONCE
from app.metrics import Metrics
from app.transports.access_lines import AccessLines
from app.transports.request import McpRequest
from app.transports.request_log import ALL, ERRORS, RequestLog


class Client:
    """The other end of one request."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.at_once: list[bytes] = []

    async def send(self, message: Any) -> None:
        self.heard.append(message)

    def take_at_once(self, scope: Any, body: bytes) -> bool:
        self.at_once.append(body)
        return True

    def request(self) -> McpRequest:
        headers = [(b"host", b"127.0.0.1"), (b"content-length", b"12")]
        scope = {"type": "http", "method": "POST", "headers": headers, "query_string": b"", AT_ONCE: self.take_at_once}

        async def receive() -> Any:
            raise AssertionError("nobody asks")

        return McpRequest(scope, receive, self.send, "acme", "echo", "mcp")


async def line_of(request: McpRequest, status: int) -> dict[str, Any]:
    stream = io.BytesIO()
    lines = AccessLines({"node": "n"}, stream)
    seen = RequestLog(Metrics("test"), ALL, lines).watch(request)
    assert seen is not None
    await request.answer(status, b"12345")
    seen.over(request)
    lines.close()
    return dict(json.loads(stream.getvalue()))


@pytest.mark.parametrize("status", [200, 400])
async def test_the_line_has_the_sizes_of_an_answer_at_once_and_of_another(status: int) -> None:
    client = Client()
    line = await line_of(client.request(), status)
    assert (bool(client.at_once), bool(client.heard)) == (status == 200, status != 200)
    assert (line["status"], line["bytes_in"], line["bytes_out"]) == (status, 12, 5)
    assert (line["level"], line["message"], line["node"]) == ("info", "request", "n")
    assert line["outcome"] == ("ok" if status == 200 else "refused")


async def test_an_answer_that_somebody_adds_headers_to_is_not_written_at_once() -> None:
    """Such as `connection: close` on a node that stops."""
    client, begun = Client(), []
    request = client.request()

    async def with_headers(message: Any) -> None:
        begun.append(message["type"])
        await client.send(message)

    request.send = with_headers
    line = await line_of(request, 200)
    assert not client.at_once
    assert begun == ["http.response.start", "http.response.body"]
    assert line["bytes_out"] == 5


def test_below_all_nobody_looks_at_what_goes_out() -> None:
    request = Client().request()
    assert RequestLog(Metrics("test"), ERRORS, AccessLines({})).watch(request) is None
    assert request.send is request._plain_send
