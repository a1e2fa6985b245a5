"""A stdio server in a company's network: its connections go through the company's proxy, and it believes the company's
certificate authority."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backends.upstreams.proxies import Proxy, proxying
from tests.backends.upstreams.rig import Asked, serving
from tests.certificates import authority, issued
from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.integration.wire import wire
from tests.jail.sandbox.inside import needs_bubblewrap

pytestmark = needs_bubblewrap

# In such a network the node finds no names of the outside.
NO_NAMES = """
import socket
from app.jail.egress import names
def system_lookup(name): raise socket.gaierror(-2, "Name or service not known")
names.system_lookup = system_lookup
"""
COMPANY = authority()
SERVER = [sys.executable, str(ROOT / "tests/servers/fetches.py")]


class WithoutNames(Gateway):
    FIRST = NO_NAMES


async def document(asked: Asked) -> None:
    await asked.whole("from outside")


@pytest.fixture
async def company(tmp_path: Path) -> AsyncIterator[Proxy]:
    """Its proxy, behind which there is a server of https with a certificate of the company's own."""
    server_side = issued(COMPANY, "api.example").context(tmp_path)
    async with serving(document, server_side) as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        async with proxying(names={"api.example": "127.0.0.1"}, ports={443: port}, credentials="me:s3cret") as proxy:
            yield proxy


async def test_a_process_with_web_reaches_what_is_outside_as_the_node_does(company: Proxy, tmp_path: Path) -> None:
    (tmp_path / "company.pem").write_text(COMPANY.pem)
    settings = {
        "OUTBOUND_PROXY": company.url.replace("//", "//me:s3cret@"),
        "OUTBOUND_NO_PROXY": "near.example",
        "OUTBOUND_CA": str(tmp_path / "company.pem"),
    }
    with running_gateway(tmp_path / "data", WithoutNames, **settings) as gateway:
        said = await fetched(gateway, "https://api.example/", "https://169.254.169.254/", "https://near.example/")
        asked = [first for first, _ in company.asked]
        log = gateway.log.read_text()
    assert said[0] == "from outside"
    assert "Address Not Public" in said[1]
    assert "Name Not Resolved" in said[2]
    assert asked == ["CONNECT api.example:443 HTTP/1.1"]
    assert "s3cret" not in log + "".join(said)


async def fetched(gateway: Gateway, *urls: str) -> list[str]:
    """What its tool says of each."""
    found = list[str]()
    async with wire(gateway.endpoint(SERVER, sandbox={"network": "web"})) as session:
        for url in urls:
            result = await session.request("tools/call", {"name": "fetch", "arguments": {"url": url}})
            found.append(result["content"][0]["text"])
    return found
