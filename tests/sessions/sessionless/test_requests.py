"""SessionlessRequests: what a client that opens no session is told of a backend."""

import json

import pytest

from app.protocol.eras.sessionless_envelope import SUPPORTED
from tests.sessions.sessionless.client import Client
from tests.sessions.sessionless.servers import ServerPool


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


async def test_discover_says_what_the_handshake_said(client: Client, pool: ServerPool) -> None:
    _, envelope = client.message("server/discover")
    found = json.loads(await client.sessionless.discover(client.caller, envelope))
    assert found["supportedVersions"] == list(SUPPORTED)
    assert set(found["capabilities"]) == {"tools", "resources", "logging"}
    assert (found["instructions"], found["resultType"], found["cacheScope"]) == ("hi", "complete", "private")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "fake"
