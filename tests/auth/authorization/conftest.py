"""The authorization server, and its clock."""

from collections.abc import AsyncIterator

import pytest

from app.auth.jwks import KeySets
from tests.auth.authorization.rig import Rig
from tests.auth.tokens import Rig as Provider


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    provider = Provider()
    async with KeySets(provider.host.fetch, provider.host.clock) as sets:
        rig = Rig(provider, sets)
        rig.client()
        yield rig
