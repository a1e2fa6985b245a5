"""The node's own proxy and authorities: which URLs go through it, and what it is told."""

import asyncio
from ipaddress import ip_address, ip_network

import pytest

from app.auth.outbound import Outbound
from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import FetchFailed, UrlRefused, parse_url
from tests.backends.upstreams.proxies import proxying
from tests.backends.upstreams.rig import serving
from tests.certificates import authority, issued

pytestmark = pytest.mark.real

ROOT = authority()
LOOPBACK = ip_network("127.0.0.0/8")


async def document(asked):
    await asked.whole("{}")


async def never(host, port):
    raise AssertionError(f"{host} was looked up here")


@pytest.mark.parametrize(
    ("url", "is_served"),
    [
        ("https://idp.example/jwks", True),
        ("https://8.8.8.8/", True),
        ("http://idp.example/", False),
        ("https://corp.example/", False),
        ("https://idp.corp.example:8443/", False),
        ("https://notcorp.example/", True),
        ("https://10.1.2.3/", False),
        ("https://[::1]/", True),
    ],
)
def test_what_goes_through_it(url, is_served):
    proxy = NodeProxy.of("http://proxy:3128", ("corp.example", ip_network("10.0.0.0/8")))
    assert proxy is not None
    assert proxy.serves(parse_url(url)) is is_served


def test_what_is_reached_without_it_whatever_the_scheme():
    proxy = NodeProxy("http://proxy:3128", direct=("corp.example", ip_network("10.0.0.0/8")))
    names = ("corp.example", "a.corp.example", "notcorp.example")
    assert [proxy.is_direct(each) for each in names] == [True, True, False]
    assert [proxy.is_direct(ip_address(each)) for each in ("10.1.2.3", "11.1.2.3", "::1")] == [True, False, False]


def test_credentials_are_taken_from_its_url():
    proxy = NodeProxy.of("https://me%40here:p%3Ass@proxy.example:3128")
    assert (proxy, proxy and proxy.login) == (NodeProxy("https://proxy.example:3128", "me@here:p:ss"), "me@here:p:ss")
    assert "p:ss" not in repr(proxy)
    assert NodeProxy.of(None) is None


def test_a_program_is_told_of_it_in_its_environment():
    proxy = NodeProxy.of("https://me%40here:p%3Ass@proxy.example:3128", ("corp.example", ip_network("10.0.0.0/8")))
    assert proxy is not None
    told = proxy.environment()
    assert NodeProxy.of(told["HTTPS_PROXY"]) == NodeProxy("https://proxy.example:3128", "me@here:p:ss")
    assert told["NO_PROXY"] == "corp.example,10.0.0.0/8"
    assert {name.lower() for name in told} == {"https_proxy", "no_proxy", "npm_config_noproxy"}


async def test_keys_are_fetched_through_it(tmp_path, monkeypatch):
    """It resolves the name; nobody else does."""
    monkeypatch.setattr("app.auth.outbound_urls.PORTS", range(65536))
    server_side = issued(ROOT, "idp.example").context(tmp_path)
    async with (
        serving(document, server_side) as server,
        proxying(names={"idp.example": "127.0.0.1"}, credentials="me:pass") as proxy,
    ):
        url = server.url.replace("127.0.0.1", "idp.example")
        node = NodeProxy(proxy.url, "me:pass")
        assert await Outbound(resolve=never, proxy=node, ca=ROOT.pem).get(url) == b"{}"
        assert proxy.asked[0][0] == f"CONNECT idp.example:{parse_url(url).port} HTTP/1.1"
        with pytest.raises(FetchFailed, match="407"):
            await Outbound(resolve=never, proxy=NodeProxy(proxy.url), ca=ROOT.pem).get(url)
        with pytest.raises(FetchFailed, match=r"(?i)certificate"):
            await Outbound(resolve=never, proxy=node).get(url)


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "https://169.254.169.254/", "https://idp.example:6379/"])
async def test_it_leads_to_no_private_address(url):
    async with proxying(names={"idp.example": "127.0.0.1"}) as proxy:
        with pytest.raises(UrlRefused):
            await Outbound(resolve=never, proxy=NodeProxy(proxy.url)).get(url)
    assert proxy.asked == []


async def test_what_is_near_is_reached_without_it(tmp_path):
    server_side = issued(ROOT, "idp.corp.example").context(tmp_path)

    async def here(host, port):
        await asyncio.sleep(0)
        return ["127.0.0.1"]

    async with serving(document, server_side) as server, proxying() as proxy:
        node = NodeProxy(proxy.url, direct=("corp.example",))
        out = Outbound([LOOPBACK], resolve=here, proxy=node, ca=ROOT.pem)
        assert await out.get(server.url.replace("127.0.0.1", "idp.corp.example")) == b"{}"
    assert proxy.asked == []
