"""Sessions with an HTTP API: what is answered here, and one request for each call."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from app.errors import CallCutOff, InvalidResponse, ResponseTooLarge, UpstreamRefused
from app.protocol.openapi.making import api_of
from app.protocol.openapi.results import MAX_ERROR_BYTES
from app.protocol.openapi.serving import ApiServer
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import HELLO, Heard, line, make_upstreams, serving, spec_at
from tests.protocol.openapi.documents import SHOP

SERVER = ApiServer(api_of(SHOP))
KEY = "s3cret-of-the-shop"
GET = line(7, "tools/call", name="items_get", arguments={"id": 5})


async def api_of_backend(spec):
    assert spec.openapi == "sha256:x"
    return SERVER


@asynccontextmanager
async def session(answer, *, limit_bytes=1 << 20):
    async with serving(answer) as server:
        async with make_upstreams(Metrics("test"), limit_bytes=limit_bytes, api_of=api_of_backend) as upstreams:
            spec = spec_at(
                f"{server.url.rpartition('/')[0]}/v1",
                {"Authorization": f"Bearer {KEY}", "key": KEY},
                openapi="sha256:x",
            )
            link, heard = await upstreams.lease(spec), Heard()
            link.attach(heard)
            yield server, link, heard
            link.release("done")
        await server.until_quiet()


async def never(asked):
    raise AssertionError("nothing is asked")


async def test_what_the_tools_are_is_said_without_a_connection():
    async with session(never) as (server, link, heard):
        for number, (method, params) in enumerate(
            [("initialize", HELLO), ("ping", {}), ("tools/list", {}), ("prompts/list", {})], 1
        ):
            link.send(line(number, method, **params))
        hello = (await heard.answer(1))["result"]
        assert hello["serverInfo"] == {"name": "Shop", "version": "7"}
        assert hello["capabilities"] == {"tools": {}}
        assert hello["instructions"] == "Sells things."
        assert (await heard.answer(2))["result"] == {}
        assert len((await heard.answer(3))["result"]["tools"]) == 6
        assert (await heard.answer(4))["error"]["code"] == -32601
        link.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        assert server.ever_connected == 0


async def test_a_call_is_one_request_whose_answer_shows_no_credential():
    async def answer(asked):
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        await asked.whole(json.dumps({"target": asked.target}))

    async with session(answer) as (server, link, heard):
        link.send(GET)
        result = (await heard.answer(7))["result"]
        assert result["structuredContent"] == {"target": "/v1/items/5?key=***"}
        link.send(line(8, "tools/call", name="items_get", arguments={"id": ".."}))
        assert (await heard.answer(8))["result"]["isError"] is True
        link.send(line(9, "tools/call", name="items_get", arguments=[1]))
        assert (await heard.answer(9))["error"]["code"] == -32602
    (asked,) = server.asked
    assert asked.target == f"/v1/items/5?key={KEY}"


async def test_a_cancelled_call_is_closed_at_once():
    begun = asyncio.Event()

    async def answer(asked):
        begun.set()
        await asked.gone()

    async with session(answer) as (server, link, heard):
        link.send(GET)
        await begun.wait()
        link.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}')
        async with asyncio.timeout(4):  # calm: less than what a server of MCP has to end a call
            while server.connections:
                await asyncio.sleep(0.01)
        assert heard.lines == heard.failed == []


@pytest.mark.parametrize("size", [3000, 1200])
async def test_an_answer_has_a_limit_also_where_it_grows(size):
    """In a text of JSON a quote takes two bytes."""

    async def answer(asked):
        await asked.whole(b'"' * size, kind="text/plain")

    async with session(answer, limit_bytes=2000) as (_, link, heard):
        link.send(GET)
        assert isinstance(await heard.failure(7), ResponseTooLarge)


async def test_of_a_long_error_the_beginning_is_told_and_the_rest_not_read():
    async def answer(asked):
        await asked.send("HTTP/1.1 500 X\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n" + "x" * 20_000)
        await asked.gone()

    async with session(answer) as (_, link, heard):
        link.send(GET)
        (content,) = (await heard.answer(7))["result"]["content"]
        assert content["text"] == f"The API answered HTTP 500 Internal Server Error.\n\n{'x' * MAX_ERROR_BYTES}…"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_document_that_wants_a_credential_is_to_be_given_as_its_text(status):
    """No `headers` are sent for it: it may be elsewhere than the API."""

    async def answer(asked):
        await asked.whole(b"", status)

    async with serving(answer) as server, make_upstreams(Metrics("test")) as upstreams:
        with pytest.raises(UpstreamRefused, match=f"HTTP {status}: it is asked for without credentials") as caught:
            await upstreams.fetch(("acme", "shop"), server.url, 1 << 20)
        assert "give its text" in str(caught.value)
        await server.until_quiet()


@pytest.mark.parametrize(
    ("head", "error"),
    [
        ("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{", CallCutOff),
        ("HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", InvalidResponse),
        ("HTTP/1.1 301 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", InvalidResponse),
        ("nonsense\r\n\r\n", InvalidResponse),
    ],
)
async def test_what_is_no_answer_is_an_error(head, error):
    async def answer(asked):
        await asked.send(head)
        asked.writer.close()

    async with session(answer) as (_, link, heard):
        link.send(GET)
        assert isinstance(await heard.failure(7), error)
