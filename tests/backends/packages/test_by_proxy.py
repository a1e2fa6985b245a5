"""Registries behind the node's outgoing proxy, which alone knows their names, with an authority of the company's."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from app.auth.outbound_proxy import NodeProxy
from app.backends.packages._by_proxy import ByProxy
from app.backends.packages.packages import RegistrySettings
from app.backends.packages.registries import Source
from app.backends.packages.workshop import WayOut
from app.domain import BackendSpec
from app.errors import InvalidRequest
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Refused
from app.jail.sandbox.tiers import Tier
from tests.backends.packages.rig import add_wheel, bench, npm_registry, pypi_index
from tests.backends.upstreams.proxies import proxying
from tests.certificates import authority, issued
from tests.jail.sandbox.inside import IS_ROOT, needs_bubblewrap

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed (Debian: apt-get install npm)")
TIER = Tier.ASSISTED if IS_ROOT else Tier.NAMESPACES
TIERS = pytest.mark.parametrize("tier", [TIER, Tier.KERNEL])
ROOT = authority()
HOST = "registry.example"
NAMES = {HOST: "127.0.0.1"}


@pytest.fixture(autouse=True)
def environment(no_package_settings: None) -> None:
    """Nothing of how this machine gets packages."""


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    return issued(ROOT, HOST).context(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    place = tmp_path / "index"
    place.mkdir()
    add_wheel(place, "mcp-notes", "1.0")
    return place


@pytest.fixture
def pypi(index: Path, tls: ssl.SSLContext) -> Iterator[RegistrySettings]:
    with pypi_index(index, tls) as port:
        yield RegistrySettings(pypi=f"https://{HOST}:{port}/")


def spec(command: str, *args: str) -> BackendSpec:
    return BackendSpec("acme", "notes", command, args=args)


def said(ready: BackendSpec) -> list:
    done = subprocess.run([ready.command, *ready.args], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@needs_bubblewrap
@TIERS
async def test_pypi_is_reached_through_it_in_each_tier(tmp_path, pypi, tier):
    async with proxying(names=NAMES, credentials="node:s3cr:t") as proxy:
        through = NodeProxy.of(proxy.url.replace("://", "://node:s3cr%3At@"))
        here = bench(tmp_path / "data", tier, pypi, way_out=WayOut(through, ROOT.pem))
        made = await here.packages.resolved(spec("uvx", "mcp-notes", "x"))
        assert said(await here.packages.ready(made))[0] == ["x"]
    assert {first for first, _ in proxy.asked} == {f"CONNECT {pypi.pypi[8:-1]} HTTP/1.1"}


@needs_bubblewrap
@needs_npm
@TIERS
async def test_npm_is_reached_through_it_in_each_tier(tmp_path, tls, tier):
    with npm_registry(tls, f"https://{HOST}") as npm:
        npm.add("notes", "1.0.0")
        async with proxying(names=NAMES) as proxy:
            through = WayOut(NodeProxy.of(proxy.url), ROOT.pem)
            here = bench(tmp_path / "data", tier, RegistrySettings(npm=npm.url), way_out=through)
            made = await here.packages.resolved(spec("npx", "notes", "x"))
            assert said(await here.packages.ready(made))[0] == ["x"]
        assert {first for first, _ in proxy.asked} == {f"CONNECT {HOST}:{npm.port} HTTP/1.1"}


@needs_bubblewrap
async def test_a_proxy_with_tls_is_believed_by_the_same_authority(tmp_path, pypi):
    async with proxying(issued(ROOT, "proxy.example").context(tmp_path), names=NAMES) as proxy:
        here = bench(tmp_path / "data", TIER, pypi, way_out=WayOut(NodeProxy.of(proxy.url), ROOT.pem))
        made = await here.packages.resolved(spec("uvx", "mcp-notes"))
    assert made.package.version == "1.0"


@needs_bubblewrap
async def test_the_authority_counts_without_a_proxy_and_what_is_excepted_is_reached_directly(tmp_path, index, tls):
    with pypi_index(index, tls) as port:
        settings = RegistrySettings(pypi=f"https://127.0.0.1:{port}/")
        stranger = bench(tmp_path / "stranger", TIER, settings)
        with pytest.raises(InvalidRequest, match=r"(?i)certificate|issuer"):
            await stranger.packages.resolved(spec("uvx", "mcp-notes"))
        async with proxying() as proxy:
            direct = NodeProxy.of(proxy.url, [ip_network("127.0.0.0/8")])
            for number, way_out in enumerate((WayOut(None, ROOT.pem), WayOut(direct, ROOT.pem))):
                here = bench(tmp_path / f"data{number}", TIER, settings, way_out=way_out)
                assert (await here.packages.resolved(spec("uvx", "mcp-notes"))).package.version == "1.0"
        assert proxy.asked == []


@needs_bubblewrap
@pytest.mark.parametrize(("members", "words"), [
    ({"names": {}}, "not reached: registry.example:"),
    ({"names": NAMES, "credentials": "node:secret"}, "not reached: registry.example:"),
])  # fmt: skip
async def test_what_it_does_not_reach_is_said(tmp_path, pypi, members, words):
    async with proxying(**members) as proxy:
        here = bench(tmp_path / "data", TIER, pypi, way_out=WayOut(NodeProxy.of(proxy.url), ROOT.pem))
        with pytest.raises(InvalidRequest, match=words):
            await here.packages.resolved(spec("uvx", "mcp-notes"))
    assert here.installed == []


def asks(host: str, port: int = 443) -> Outgoing:
    return Outgoing("packages", "packages", "", host, port)


async def test_http_goes_past_it_and_a_name_without_a_domain_is_not_asked_of_it():
    source = Source(frozenset({("near", 80), (HOST, 443), ("inside", 443)}), plain=frozenset({("near", 80)}))
    async with proxying(names=NAMES) as proxy, ByProxy(NodeProxy(proxy.url), None, source) as way:
        assert not way.serves(asks("near", 80))
        assert way.serves(asks(HOST))
        assert way.serves(asks("inside"))
        for name in ("intranet", "localhost", "x.localhost"):
            with pytest.raises(Refused, match="means something else behind a proxy"):
                await way.connect(asks(name))
        assert proxy.asked == []
        with pytest.raises(Refused, match="cannot connect to inside:443"):
            await way.connect(asks("inside"))


async def upper(reader, writer):
    """A server that says everything louder."""
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


async def test_what_comes_through_it_is_passed_on_until_both_have_ended():
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = Source(frozenset({(HOST, port)}))
    async with server, proxying(names=NAMES) as proxy, ByProxy(NodeProxy(proxy.url), None, source) as way:
        connection = await way.connect(asks(HOST, port))
        loop = asyncio.get_running_loop()
        for _ in range(10):
            await loop.sock_sendall(connection, b"notes" * 5000)
            heard = b""
            while len(heard) < 25_000 and (piece := await loop.sock_recv(connection, 65536)):
                heard += piece
            assert heard == b"NOTES" * 5000
        connection.shutdown(socket.SHUT_WR)
        assert await loop.sock_recv(connection, 1) == b""
        connection.close()


async def test_leaving_it_ends_what_is_open():
    server = await asyncio.start_server(upper, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = Source(frozenset({(HOST, port)}))
    async with server, proxying(names=NAMES) as proxy:
        async with ByProxy(NodeProxy(proxy.url), None, source) as way:
            connection = await way.connect(asks(HOST, port))
        assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        connection.close()
        with pytest.raises(Refused, match="the installation has ended"):
            await way.connect(asks(HOST, port))
