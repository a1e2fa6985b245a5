"""What ACCESS_LOG=all sees of an answer, whichever way that goes out."""

import io
import json
import logging
from typing import Any

import msgspec
import pytest

from app.http.scope import AT_ONCE, LEFT
from app.http.transports.access_lines import AccessLines
from app.http.transports.request import McpRequest
from app.http.transports.request_log import ALL, ERRORS, OFF, RequestLog
from app.protocol.commands import Answer, Call
from app.protocol.jsonrpc import Request, Response
from app.sessions._calls import error_type_of
from app.sessions.streams.streams import Reply
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics


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

    def request(self, method: str = "POST", tenant: str = "acme", *, leaves: bool = False) -> McpRequest:
        """With a body of twelve bytes in two parts, whatever its head says."""
        headers = [(b"host", b"127.0.0.1"), (b"content-length", b"99")]
        scope: Any = {"type": "http", "method": method, "path": f"/t/{tenant}/echo/mcp", "headers": headers}
        scope |= {"query_string": b"", AT_ONCE: self.take_at_once, **({LEFT: True} if leaves else {})}
        parts = iter((b"1234567", b"89012"))

        async def receive() -> Any:
            part = next(parts)
            return {"type": "http.request", "body": part, "more_body": part.startswith(b"1")}

        return McpRequest(scope, receive, self.send, (tenant, "echo", "mcp"))


async def line_of(request: McpRequest, status: int) -> dict[str, Any]:
    stream = io.BytesIO()
    lines = AccessLines({"node": "n"}, stream)
    requests = RequestLog(Metrics("test"), ALL, lines)
    seen = requests.watch(request)
    if request.method == "POST":
        await request.body(100)
    await request.answer(status, b"12345")
    requests.over(request, seen)
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


async def test_of_a_body_that_was_not_read_nothing_is_counted_and_of_one_that_was_not_sent() -> None:
    line = await line_of(Client().request("HEAD"), 405)
    assert (line["status"], line["bytes_in"], line["bytes_out"]) == (405, 0, 0)


@pytest.mark.parametrize("status", [200, 202])
async def test_who_left_before_the_answer_has_left_though_it_was_made(status: int) -> None:
    client = Client()
    client.take_at_once = lambda scope, body: False  # type: ignore[method-assign]
    line = await line_of(client.request(leaves=True), status)
    assert (line["outcome"], line["status"], line["bytes_out"]) == ("left", status, 0)


async def test_who_left_while_the_answer_was_being_written_has_left() -> None:
    client = Client()

    async def leave(message: Any) -> None:
        if message["type"] == "http.response.body":
            request.scope[LEFT] = True

    client.send = leave  # type: ignore[method-assign]
    request = client.request()
    assert (await line_of(request, 404))["outcome"] == "left"


async def test_what_clients_make_up_is_cut_wherever_it_stands() -> None:
    request = Client().request(tenant="é" * 5000)
    request.message = Request(b"1", "m" * 5000, None)
    line = await line_of(request, 404)
    assert (line["tenant"], line["method"]) == ("é" * 128, "m" * 128)
    assert line["backend"] == "echo"
    assert request.log_fields()["tenant"] == "é" * 128


def test_kinds_of_a_backends_errors_are_few(caplog: pytest.LogCaptureFixture) -> None:
    """It says what numbers it likes; of each kind some lines a second are written."""
    requests = RequestLog(Metrics("test"), ERRORS, AccessLines({}))
    with caplog.at_level(logging.INFO):
        for number in range(Thinned.PER_S // 2):
            request = Client().request()
            request.outcome = f"{70_000 + number}"
            requests.backend_error(request)
            request.outcome = "tool_error"
            requests.backend_error(request)
    outcomes = [vars(record)["outcome"] for record in caplog.records]
    assert outcomes[:3] == ["70000", "tool_error", "70001"]
    assert len(requests._thinned._lines) == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(b'{"code":70001,"message":"m"}', "70001"), (b'{"code":-32603}', "-32603"), (b'{"code":4294967296}', "_OTHER"),
     (b'{"code":"x"}', "_OTHER"), (b"[]", "_OTHER")],
)  # fmt: skip
async def test_the_outcome_is_the_code_that_the_backend_sent(error: bytes, outcome: str) -> None:
    response = Response(b"1", "error", msgspec.Raw(error))
    reply = Reply(1, may_stream=False, make_stream=no_stream)
    call = Call(b"1", b"1", "tools/call", reply, False, 0.0, 0.0)
    call.error_type = error_type_of("tools/call", response)
    reply.answer(Answer(call, response))
    assert reply.failure == outcome
    assert call.error_type in ("-32603", "_OTHER")


def no_stream() -> Any:
    raise AssertionError("nobody asks for a stream")


async def test_an_answer_that_somebody_adds_headers_to_is_not_written_at_once() -> None:
    """Such as those for a web page."""
    client, begun = Client(), []
    request = client.request()

    async def with_headers(message: Any) -> None:
        begun.append(message["type"])
        await client.send(message)

    request.answer_through(with_headers)
    line = await line_of(request, 200)
    assert not client.at_once
    assert begun == ["http.response.start", "http.response.body"]
    assert line["bytes_out"] == 5


def test_below_all_nobody_looks_at_what_goes_out() -> None:
    looks = {
        level: RequestLog(Metrics("test"), level, AccessLines({})).has_every_request for level in (OFF, ERRORS, ALL)
    }
    assert looks == {OFF: False, ERRORS: False, ALL: True}
