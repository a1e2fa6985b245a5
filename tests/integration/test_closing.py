"""The official Python client closes while a call of its own is open: one that timed out at the client goes on here."""

import pytest
from mcp import MCPError

from tests.integration.gateway import Endpoint
from tests.integration.servers import TRANSPORTS, Transport, python_client


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_closes_without_an_exception(
    echo: Endpoint, transport: Transport, request: pytest.FixtureRequest
) -> None:
    """Answered as JSON, it crashed now and then."""
    for _ in range(50 if request.config.getoption("--long") else 5):
        async with python_client(echo, transport) as client:
            with pytest.raises(MCPError):
                await client.call_tool("sleep", {"ms": 3000}, read_timeout_seconds=0.05)
