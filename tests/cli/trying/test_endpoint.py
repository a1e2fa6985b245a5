"""What the command line says to an endpoint, and what it makes of the answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.cli.rest import Rest
from app.cli.trying.endpoint import Endpoint
from app.errors import GatewayError

TOOL = {
    "name": "grüße",
    "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
}


def endpoint(answer: Callable[[httpx2.Request], httpx2.Response]) -> Endpoint:
    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return Endpoint(Rest("https://gw.example.com", client), "acme", "time")


def answered(body: object, status: int = 200) -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda request: httpx2.Response(status, json=body)


def stream(*messages: object) -> Callable[[httpx2.Request], httpx2.Response]:
    text = ": ping\n\n" + "".join(f"event: message\ndata: {json.dumps(each)}\n\n" for each in messages)
    return lambda request: httpx2.Response(200, text=text, headers={"Content-Type": "text/event-stream"})


def nothing(_: object) -> None:
    """Is told of progress."""


def test_a_call_is_one_request_with_everything_in_its_headers() -> None:
    seen = list[httpx2.Request]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": {"content": []}})

    assert endpoint(answer).call(TOOL, {"region": "eu"}, nothing) == {"content": []}
    (request,) = seen
    assert str(request.url) == "https://gw.example.com/t/acme/time/mcp"
    headers = {name: value for name, value in request.headers.items() if name.startswith("mcp-")}
    assert headers == {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?Z3LDvMOfZQ==?=",
        "mcp-param-region": "eu",
    }
    params = json.loads(request.content)["params"]
    assert (params["name"], params["arguments"]) == ("grüße", {"region": "eu"})
    assert params["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_lists_are_read_to_their_end() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        cursor = json.loads(request.content)["params"].get("cursor")
        page: dict[str, Any] = {"tools": [{"name": cursor or "first"}, "odd"]}
        return httpx2.Response(200, json={"id": 1, "result": page | ({} if cursor else {"nextCursor": "second"})})

    assert endpoint(answer).tools() == [{"name": "first"}, {"name": "second"}]


def test_progress_comes_before_the_answer() -> None:
    told = list[object]()
    progress = {"method": "notifications/progress", "params": {"progress": 1, "total": 2}}
    answer = stream(progress, {"id": 7, "result": {"x": 1}}, "odd", {"id": 1, "result": {"content": [1]}})
    assert endpoint(answer).call(TOOL, {}, told.append) == {"content": [1]}
    assert told == [{"progress": 1, "total": 2}]


def error(message: str, **data: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message, "data": data}}


@pytest.mark.parametrize(
    ("answer", "words", "hint"),
    [
        (answered(error("No credential"), 401), "No credential", "--scope mcp:connect`, and put it into TRUNKLINE_KEY"),
        (answered(error("this needs a scope"), 403), "this needs a scope", "--scope mcp:connect` makes such a key"),
        (answered(error("Backend not found"), 404), "Backend not found: acme/time", "`trunkline backends list"),
        (answered(error("off", hint="ask them"), 503), "off", "ask them"),
        (answered(error("no\x1bway")), "no\\x1bway", ""),
        (answered([], 502), "https://gw.example.com/t/acme/time/mcp answers 502, and this is no MCP endpoint", ""),
        (stream({"method": "x"}), "the answer has ended too early", ""),
        (answered({"id": 1, "result": {"resultType": "input_required"}}), "grüße asks its user something", "a client"),
    ],
)
def test_a_refusal_says_what_to_do(answer, words: str, hint: str) -> None:
    with pytest.raises(GatewayError) as caught:
        endpoint(answer).call(TOOL, {}, nothing)
    assert str(caught.value).startswith(words)
    assert hint in (caught.value.hint or "")


def test_a_backend_that_is_not_there_may_be_a_mistyped_one() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.startswith("/api/"):
            return httpx2.Response(200, json={"items": [{"name": "times"}]})
        return httpx2.Response(404, json=error("Backend not found"))

    with pytest.raises(GatewayError, match="not found: acme/time; did you mean `times`"):
        endpoint(answer).tools()


def test_nobody_there_is_an_error_like_others() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(GatewayError, match=r"https://gw\.example\.com does not answer: refused"):
        endpoint(answer).tools()
