"""The edge; and the REST API as the tests of its resources have it, on SQLite alone: these tests are about HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.admin.conftest import rig, untouched, url, url_for_many
from tests.http.edges import Edge, open_edge

__all__ = ["dialect", "rig", "untouched", "url", "url_for_many"]


@pytest.fixture(scope="module")
def dialect() -> str:
    return "sqlite"


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with open_edge() as edge:
        yield edge
