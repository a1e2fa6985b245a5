"""Bodies that are wrong in one way, or just right: each gets its exact status, and no more than its time."""

import json
from collections.abc import AsyncIterator

import anyio
import httpx2
import pytest

from tests.integration.gateway import Endpoint, Gateway
from tests.integration.wire import Wire, error_of, in_time, rpc, wire

BODY_LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize("body", [b"{", b"", b"nonsense", b'{"jsonrpc":"2.0","id":1', b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_not_json_is_a_parse_error(session: Wire, body: bytes) -> None:
    with in_time():
        response = await session.post(body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32700
    assert response.json()["id"] is None


@pytest.mark.parametrize(
    "body",
    [
        b"42",
        b'"text"',
        b"null",
        b"{}",
        b'{"id":1,"method":"ping"}',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1.0,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1e3,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":7}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":7}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"crash"}}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 31 + b',"method":"ping"}',
        b'{"jsonrpc":"2.0","id":"' + b"x" * 257 + b'","method":"ping"}',
    ],
)
async def test_json_that_is_no_message_is_an_invalid_request(session: Wire, body: bytes) -> None:
    with in_time():
        response = await session.post(body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == -32600


@pytest.mark.parametrize(
    "written",
    [
        "1",
        '"1"',
        "9007199254740993",
        "18446744073709551617",
        "-5",
        "1" * 30,
        '"a\\u00e9\\n\\"b"',
        '"é"',
        '"' + "x" * 256 + '"',
        '""',
    ],
)
async def test_request_ids_come_back_byte_for_byte(session: Wire, written: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":{written},"method":"tools/list"}}'.encode()
    with in_time():
        response = await session.post(body)
    assert response.status_code == 200, response.text
    assert response.content.startswith(b'{"jsonrpc":"2.0","id":' + written.encode() + b",")


async def test_a_body_declared_over_four_mebibytes_is_refused_before_it_is_sent(
    gateway: Gateway, session: Wire
) -> None:
    headers = {**session.headers, "Host": gateway.host, "Content-Length": str(BODY_LIMIT + 1)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    host, _, port = gateway.host.partition(":")
    with in_time():
        async with await anyio.connect_tcp(host, int(port)) as connection:
            await connection.send(f"POST {httpx2.URL(session.url).path} HTTP/1.1\r\n{head}\r\n".encode())
            answered = b"".join([chunk async for chunk in connection])
    assert answered.startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_over_the_limit_is_refused_before_it_ends(session: Wire) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * 1024 * 1024:
            sent += 65536
            yield b" " * 65536

    with anyio.fail_after(10):
        try:
            response = await session.http.post(session.url, content=endless(), headers=session.headers)
        except httpx2.TransportError:
            pass  # the connection was closed while we still wrote
        else:
            assert response.status_code == 413
    assert sent < 48 * 1024 * 1024


async def test_a_large_answer_just_under_the_limit_passes(session: Wire) -> None:
    assert len(await session.call("payload", bytes=4_000_000)) == 4_000_000


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_batch_is_refused_since_2025_06_18(echo: Endpoint, version: str) -> None:
    async with wire(echo, version=version) as session:
        with in_time():
            response = await session.post([rpc("ping", 1), rpc("ping", 2)])
        assert response.status_code == 400
        assert error_of(response).code == -32600


async def test_a_batch_at_2025_03_26_is_answered_message_by_message(echo: Endpoint) -> None:
    async with wire(echo, version="2025-03-26") as session:
        batch = [
            rpc("tools/call", "a", {"name": "echo", "arguments": {"text": "one"}}),
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            rpc("tools/call", 2, {"name": "echo", "arguments": {"text": "two"}}),
        ]
        response = await session.post(batch)
        assert response.status_code == 200, response.text
        if response.headers["content-type"].startswith("application/json"):
            answers = response.json()
        else:
            lines = [line[5:] for line in response.text.splitlines() if line.startswith("data:")]
            answers = [json.loads(line) for line in lines if line.strip()]
        texts = {each["id"]: each["result"]["content"][0]["text"] for each in answers}
        assert texts == {"a": "one", 2: "two"}
        only_notifications = await session.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}])
        assert only_notifications.status_code == 202


async def test_a_batch_with_an_id_twice_is_refused_whole(echo: Endpoint) -> None:
    async with wire(echo, version="2025-03-26") as session:
        batch = [rpc("tools/call", "a", {"name": "echo", "arguments": {"text": text}}) for text in ("one", "two")]
        response = await session.post(batch)
        assert response.status_code == 400, response.text
        assert error_of(response).code == -32600


async def test_an_unknown_method_is_the_backends_to_refuse(session: Wire) -> None:
    response = await session.post(rpc("no/such/method", "x"))
    assert response.status_code == 200
    assert error_of(response).code == -32601
    assert response.json()["id"] == "x"
