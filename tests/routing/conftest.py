"""The end of a link that asks."""

from collections.abc import AsyncIterator

import pytest

from app.routing.peers import PeerClient
from tests.routing.peer_servers import NOTHING, proof_of, until


@pytest.fixture
async def client() -> AsyncIterator[PeerClient]:
    client = PeerClient(proof_of("node-a"))
    yield client
    await client.aclose()
    await until(lambda: repr(client) == NOTHING)
