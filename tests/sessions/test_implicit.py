"""ImplicitSessions: what a client that opens no session is told of a backend and of its tools."""

import json

import anyio
import pytest

from app.protocol.modern import SUPPORTED
from tests.sessions.modern_client import Client
from tests.sessions.servers import (
    FakeServer,
    ServerPool,
    legacy_server,
)


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


async def test_discover_says_what_the_handshake_said(client: Client, pool: ServerPool) -> None:
    _, envelope = client.message("server/discover")
    found = json.loads(await client.implicit.discover(client.caller, envelope))
    assert found["supportedVersions"] == list(SUPPORTED)
    assert set(found["capabilities"]) == {"tools", "resources", "logging"}
    assert (found["instructions"], found["resultType"], found["cacheScope"]) == ("hi", "complete", "private")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "fake"


MIRRORED = {"name": "t", "inputSchema": {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}}


async def test_the_tools_are_asked_for_once_for_many_calls_and_again_when_they_change(
    client: Client, pool: ServerPool
) -> None:
    pages = {None: {"tools": ["no tool"], "nextCursor": "2"}, "2": {"tools": [MIRRORED]}}

    class Paged(FakeServer):
        def send(self, line: bytes) -> None:
            message = json.loads(line)
            if message.get("method") == "tools/list":
                self.answers["tools/list"] = pages[message["params"].get("cursor")]
            super().send(line)

    pool.make = lambda: Paged(legacy_server().answers)
    _, envelope = client.message("tools/call", name="t")
    found: list[list[str]] = []

    async def look() -> None:
        found.append([each.header for each in await client.implicit.mirrored(client.caller, envelope, "t")])

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(look)
    assert found == [["Region"]] * 100
    server = pool.servers[0]
    assert len(server.sent_with("tools/list")) == 2
    await look()
    assert len(server.sent_with("tools/list")) == 2
    server.say(method="notifications/tools/list_changed")
    await look()
    assert len(server.sent_with("tools/list")) == 4


async def test_a_backend_that_lists_nonsense_has_no_mirrored_parameters(client: Client, pool: ServerPool) -> None:
    _, envelope = client.message("tools/call", name="t")
    for nonsense in ("text", {"tools": 7}, {"tools": [7, {"name": 7, "inputSchema": 7}]}, {"tools": "[" * 9000}):
        pool.make = lambda answer=nonsense: FakeServer({**legacy_server().answers, "tools/list": answer})  # type: ignore[misc]
        assert await client.implicit.mirrored(client.caller, envelope, "t") == []
        client.implicit.forget("acme")
