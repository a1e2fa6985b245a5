"""The end of a hop that asks."""

from collections.abc import AsyncIterator

import pytest

from app.cluster.peers.client import PeerClient
from tests.cluster.peers.rig import NOTHING, PATIENT, credentials, until


@pytest.fixture
async def client() -> AsyncIterator[PeerClient]:
    client = PeerClient(credentials(), PATIENT)
    yield client
    await client.aclose()
    await until(lambda: repr(client) == NOTHING)
