"""What clients send is not kept: long values of every kind, to a real node, and its resident memory afterwards."""

import json
from collections.abc import Callable, Mapping

import httpx2
import psutil
import pytest

from tests.integration.gateway import Endpoint, Gateway

MIB = 1 << 20
LONG = 30_000  # a header that fits below every limit of a head
TIMES = 256  # as many as the largest table of header values has places


def growth(gateway: Gateway, send: Callable[[int], None], times: int) -> float:
    """MiB that the node has more after `times` sends than after the first few."""
    process = psutil.Process(gateway.pid)
    for number in range(4):
        send(number)
    before = process.memory_info().rss
    for number in range(4, times):
        send(number)
    return (process.memory_info().rss - before) / MIB


HEADERS: Mapping[str, Callable[[str], str]] = {
    "Host": lambda digits: "127.0.0.1:" + digits,
    "Origin": lambda digits: "http://127.0.0.1:" + digits,
    "Accept": lambda digits: "application/json, text/x" + digits,
    "Content-Type": lambda digits: "application/json; x=" + digits,
    "MCP-Protocol-Version": lambda digits: digits,
    "Mcp-Session-Id": lambda digits: digits,
}


@pytest.mark.parametrize("name", HEADERS)
def test_long_headers_are_not_kept(echo: Endpoint, name: str) -> None:
    headers = {"Authorization": f"Bearer {echo.key}", "Accept": "application/json", "Content-Type": "application/json"}
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    with httpx2.Client(timeout=30) as http:

        def send(number: int) -> None:
            value = HEADERS[name](f"{number:06}" + "7" * LONG)
            assert http.post(echo.mcp, content=body, headers={**headers, name: value}).status_code < 500

        # Kept, they would be 7.3 MiB, and what is made of them again as much.
        assert growth(echo.gateway, send, TIMES) < 5


def test_long_names_of_methods_are_not_kept(echo: Endpoint) -> None:
    headers = {"Authorization": f"Bearer {echo.key}", "Accept": "application/json", "Content-Type": "application/json"}
    with httpx2.Client(timeout=30) as http:

        def send(number: int) -> None:
            method = f"{number:06}" + "m" * MIB
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode()
            assert http.post(echo.mcp, content=body, headers=headers).status_code == 400

        assert growth(echo.gateway, send, 40) < 24  # kept, they would be 72 MiB
