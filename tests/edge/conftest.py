"""The edge before an application of the test's own."""

from collections.abc import AsyncIterator

import pytest

from tests.edge.rig import Edge, open_edge


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with open_edge() as edge:
        yield edge
