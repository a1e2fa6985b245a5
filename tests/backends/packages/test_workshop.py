"""Registries behind the node's outgoing proxy, which alone knows their names, with an authority of the company's."""

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from app.auth.outbound_proxy import NodeProxy
from app.backends.packages.packages import RegistrySettings
from app.backends.packages.workshop import WayOut
from app.domain import BackendSpec
from app.errors import InvalidRequest
from app.jail.sandbox.tiers import Tier
from tests.backends.packages.rig import add_wheel, bench, index, needs_npm, npm_registry, pypi_index, unconfigured
from tests.backends.upstreams.proxies import proxying
from tests.certificates import authority, issued
from tests.jail.sandbox.inside import IS_ROOT, needs_bubblewrap

__all__ = ["index", "unconfigured"]  # fixtures

pytestmark = needs_bubblewrap
TIER = Tier.ASSISTED if IS_ROOT else Tier.NAMESPACES
TIERS = pytest.mark.parametrize("tier", [TIER, Tier.KERNEL])
ROOT = authority()
HOST = "registry.example"
NAMES = {HOST: "127.0.0.1"}


@pytest.fixture(autouse=True)
def without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a network in which only the proxy resolves names of the outside."""
    resolve = socket.getaddrinfo

    def look_up(host: object, *args: object, **options: object) -> object:
        if host == HOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    return issued(ROOT, HOST).context(tmp_path)


@pytest.fixture
def pypi(index: Path, tls: ssl.SSLContext) -> Iterator[RegistrySettings]:
    add_wheel(index, "mcp-notes", "1.0")
    with pypi_index(index, tls) as port:
        yield RegistrySettings(pypi=f"https://{HOST}:{port}/")


def spec(command: str, *args: str) -> BackendSpec:
    return BackendSpec("acme", "notes", command, args=args)


def said(ready: BackendSpec) -> list:
    done = subprocess.run([ready.command, *ready.args], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@TIERS
async def test_pypi_is_reached_through_it_in_each_tier(tmp_path, pypi, tier):
    async with proxying(names=NAMES, credentials="node:s3cr:t") as proxy:
        through = NodeProxy.of(proxy.url.replace("://", "://node:s3cr%3At@"))
        here = bench(tmp_path / "data", tier, pypi, way_out=WayOut(through, ROOT.pem))
        made = await here.packages.resolved(spec("uvx", "mcp-notes", "x"))
        assert said(await here.packages.ready(made))[0] == ["x"]
    assert {first for first, _ in proxy.asked} == {f"CONNECT {pypi.pypi[8:-1]} HTTP/1.1"}


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


async def test_the_authority_counts_without_a_proxy_and_what_is_excepted_is_reached_directly(tmp_path, index, tls):
    add_wheel(index, "mcp-notes", "1.0")
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


@pytest.mark.parametrize("members", [{"names": {}}, {"names": NAMES, "credentials": "node:secret"}])
async def test_what_it_does_not_reach_is_said(tmp_path, pypi, members):
    async with proxying(**members) as proxy:
        here = bench(tmp_path / "data", TIER, pypi, way_out=WayOut(NodeProxy.of(proxy.url), ROOT.pem))
        with pytest.raises(InvalidRequest, match=r"not reached: registry\.example:\d+ \(proxy\)"):
            await here.packages.resolved(spec("uvx", "mcp-notes"))
    assert here.installed == []
