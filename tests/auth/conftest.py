"""The gateway's side of one issuer."""

from collections.abc import AsyncIterator

import pytest

from app.auth.jwks import KeySets
from app.auth.tokens import Tokens
from tests.auth.tokens import Rig, sealer


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with KeySets(rig.host.fetch, rig.host.clock) as sets:
        rig.tokens = Tokens(rig, sealer, sets, rig.now)
        yield rig
