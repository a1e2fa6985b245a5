"""One API for each test, or one for many."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.admin.rig import Rig, open_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as rig:
        yield rig


@pytest.fixture(scope="module")
async def untouched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """For tests that change nothing but add keys: made once for each file."""
    async with open_rig(tmp_path_factory.mktemp("untouched")) as rig:
        yield rig
