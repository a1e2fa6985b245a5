"""Lines that are odd, from a real server to a real client: what is JSON arrives as it is, what is broken ends the call
that it belongs to, at once, and no other call ever."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.parked import WITHIN_S, states
from tests.integration.wire import Wire, in_time, last_message, rpc, wire

ODD_LINES = [sys.executable, str(ROOT / "tests/servers/odd_lines.py")]
REFUSES = [sys.executable, str(ROOT / "tests/servers/refuses_notifications.py")]
PAYLOADS = {
    "an emoji that was cut in two": b'{"text":"cut \\ud83d"}',
    "deep": b'{"deep":' + b"[" * 1500 + b"]" * 1500 + b"}",
}


@pytest.fixture(scope="module", params=["session", "shared"])
def odd(gateway: Gateway, request: pytest.FixtureRequest) -> Endpoint:
    """One call may be parked in it; it would wait for a minute."""
    return gateway.endpoint(ODD_LINES, isolation=request.param)


def saying(line: bytes) -> dict[str, object]:
    return rpc("tools/call", "say", {"name": "say", "arguments": {"hex": line.hex()}})


@asynccontextmanager
async def with_a_parked_call(odd: Endpoint) -> AsyncIterator[Wire]:
    """A session with a call in flight, which must be answered with its own answer at the end."""
    async with wire(odd) as session, anyio.create_task_group() as tasks:
        answers: list[httpx2.Response] = []

        async def park() -> None:
            answers.append(await session.post(rpc("tools/call", "parked", {"name": "park", "arguments": {}})))

        tasks.start_soon(park)
        with anyio.fail_after(20):
            while not (await session.request("tools/call", {"name": "is_parked", "arguments": {}}))["is_parked"]:
                await anyio.sleep(0.01)
        yield session
        assert answers == []
        await session.request("tools/call", {"name": "release", "arguments": {}})
        with in_time():
            while not answers:
                await anyio.sleep(0.005)
        assert last_message(answers[0])["result"]["content"][0]["text"] == "released"


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_json_of_any_kind_arrives_as_the_bytes_it_was_written_in(odd: Endpoint, payload: bytes) -> None:
    async with wire(odd) as session:
        with in_time():
            response = await session.post(saying(b'{"jsonrpc":"2.0","id":%ID%,"result":' + payload + b"}"))
        assert response.content == b'{"jsonrpc":"2.0","id":"say","result":' + payload + b"}"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"jsonrpc":"2.0","id":%ID%,"result":{"x":NaN}}', id="NaN"),
        pytest.param(b'{"result":{"x":NaN},"jsonrpc":"2.0","id":%ID%}', id="NaN, and the id last"),
        pytest.param(b'{"jsonrpc":"2.0","id":%ID%,"result":{"x":"caf\xe9"}}', id="Latin-1"),
        pytest.param(b'{"jsonrpc":"2.0","id":%ID%,"result":{"x":"a\tb"}}', id="a raw tab"),
        pytest.param(b'{"jsonrpc":"2.0","id":%ID%,"result":{"x":"the end', id="broken off"),
        pytest.param(b'{"jsonrpc":"2.0","id":%ID%}', id="neither"),
    ],
)
async def test_a_broken_answer_ends_its_own_call_at_once(odd: Endpoint, line: bytes) -> None:
    async with with_a_parked_call(odd) as session:
        with in_time():
            response = await session.post(saying(line))
        assert last_message(response)["error"]["data"]["reason"] == "invalid_response"


async def test_an_answer_over_the_limit_whose_id_comes_last_ends_its_own_call(odd: Endpoint) -> None:
    """As the TypeScript SDK writes them."""
    line = b'{"result":{"content":[{"type":"text","text":"%LONG%"}]},"jsonrpc":"2.0","id":%ID%}'
    async with with_a_parked_call(odd) as session:
        response = await session.post(saying(line))
        assert last_message(response)["error"]["data"]["reason"] == "response_too_large"


async def test_an_argument_that_was_cut_inside_an_emoji_reaches_the_server(odd: Endpoint) -> None:
    body = json.dumps(rpc("tools/call", 1, {"name": "echo", "arguments": {"text": "cut \ud83d"}})).encode()
    async with wire(odd) as session:
        with in_time():
            response = await session.post(body)
        assert last_message(response)["result"]["content"][0]["text"] == "cut \ud83d"


@pytest.mark.parametrize("isolation", ["session", "shared"])
async def test_a_server_that_refuses_notifications_refuses_no_call(gateway: Gateway, isolation: str) -> None:
    """Its error has no id: before, it ended the call that happened to run, as that of an unknown method."""
    endpoint = gateway.endpoint(REFUSES, isolation=isolation, recovery="respawn", timeouts={"park_s": 1})
    async with wire(endpoint) as session, wire(endpoint) as other, anyio.create_task_group() as tasks:

        async def cancel_soon() -> None:
            await anyio.sleep(0.3)
            for _ in range(3):
                await session.post(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')

        tasks.start_soon(cancel_soon)
        assert await session.call("wait", seconds=1) == "done"
        await until(lambda: states(endpoint) == ["parked"] * 2, WITHIN_S)
        assert await session.call("wait") == await other.call("wait") == "done"  # after the next handshake
