"""Streams that their clients do not read, over real sockets: they hold up nobody else of their session for long."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import Wire, rpc, wire

TORRENT = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/torrent.py")]
COUNT, SIZE = 48, 256 << 10  # 12 MiB: more than the sockets on the way and the log of the session hold
SOON_S = 20.0  # before the response that is not read is given up, after 30 s

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def torrent(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(TORRENT)


class Unread:
    """The response to a POST or GET on a connection of its own, of which nothing is read until `events`."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def events(self) -> list[Any]:
        """The messages of its events until it ends."""
        found: list[Any] = []
        with anyio.fail_after(SOON_S):
            await self._reader.readuntil(b"\r\n\r\n")
            while length := int(await self._reader.readuntil(b"\r\n"), 16):
                chunk = (await self._reader.readexactly(length + 2)).decode()
                fields = dict(line.split(": ", 1) for line in chunk.splitlines() if ": " in line)
                if fields.get("data"):
                    found.append(json.loads(fields["data"]))
        return found


@asynccontextmanager
async def unread(session: Wire, method: str, body: Any = None, **headers: str) -> AsyncIterator[Unread]:
    async with unread_at(session.url, method, body, {**session.headers, **headers}) as stream:
        yield stream


@asynccontextmanager
async def unread_at(address: str, method: str, body: Any, headers: dict[str, str]) -> AsyncIterator[Unread]:
    url = httpx2.URL(address)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {url.path} HTTP/1.1", f"Host: {url.host}:{url.port}", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (url.host, url.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        yield Unread(reader)
    finally:
        writer.transport.abort()


def flood(request_id: str = "flood") -> dict[str, Any]:
    arguments = {"count": COUNT, "size": SIZE, "text": "flooded"}
    return rpc("tools/call", request_id, {"name": "x", "arguments": arguments, "_meta": {"progressToken": "p"}})


def require_in_order(told: list[Any]) -> None:
    """Some progress, each later than the one before, and the answer, once."""
    steps = [message["params"]["progress"] for message in told[:-1]]
    assert steps == sorted(set(steps))
    assert (told[-1]["id"], told[-1]["result"]["content"][0]["text"]) == ("flood", "flooded")


async def test_a_call_is_answered_beside_a_stream_that_is_not_read(torrent: Endpoint) -> None:
    async with wire(torrent) as session, unread(session, "POST", flood()) as stream:
        with anyio.fail_after(SOON_S):
            assert await session.call("x", text="beside it") == "beside it"
        require_in_order(await stream.events())  # its client reads again


async def test_a_call_of_a_client_without_sessions_is_answered_beside_one_that_is_not_read(torrent: Endpoint) -> None:
    """One process is home to both."""
    async with httpx2.AsyncClient(timeout=60) as http:
        client = SessionlessClient(http, torrent, [torrent.mcp])
        body, headers = client.message("tools/call", flood()["params"])
        body["params"]["_meta"]["progressToken"] = "p"
        headers = {**headers, "Content-Type": "application/json"}
        async with unread_at(torrent.mcp, "POST", body, headers) as stream:
            with anyio.fail_after(SOON_S):
                assert await client.call("x", text="beside it") == "beside it"
            told = await stream.events()
    assert told[-1]["result"]["content"][0]["text"] == "flooded"
