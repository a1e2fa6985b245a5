"""mcp-remote, which desktop clients start, with the address alone: a person signs in in the browser that it opens."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from tests.clients.environments import Unavailable, node
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, Gateway, running_gateway
from tests.integration.person import Person

pytestmark = pytest.mark.clients
_address = re.compile(r"https?://\S+/authorize\?\S+").search


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("clients") / "data") as gateway:
        yield gateway


async def test_mcp_remote_needs_the_address_alone(gateway: Gateway, tmp_path: Path):
    found = node("mcp_remote")
    if isinstance(found, Unavailable):
        pytest.skip(found.reason)
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    program, environment = str(found / "node_modules/.bin/mcp-remote"), {"HOME": str(tmp_path)}
    with Browser(gateway) as browser:
        person = Person(browser, endpoint.key)
        # It keeps what it gets: a desktop client starts it again and again.
        first = subprocess.Popen([program, endpoint.mcp], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={"PATH": "/usr/bin:/bin", **environment})  # fmt: skip
        with first:
            try:
                assert first.stderr is not None
                said = next(at for line in first.stderr if (at := _address(line)) is not None)
                assert httpx2.get(person.sent_to(said[0]), timeout=30).status_code == 200
                assert any("Proxy established" in line for line in first.stderr)
            finally:
                first.kill()
    server = StdioServerParameters(command=program, args=[endpoint.mcp], env=environment)
    async with Client(server, mode="legacy") as client:
        assert (await client.list_tools()).tools
    assert len(person.pages) == 1
