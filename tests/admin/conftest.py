"""One API for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.admin.rig import Rig, open_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as rig:
        yield rig
