"""Through a proxy of a company: what is asked of it, which addresses that reaches, and which hop an error names."""

from contextlib import asynccontextmanager

import pytest

from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import Policy, UrlRefused, parse_url
from app.backends.checks.steps import Steps
from app.backends.upstreams.connecting import CannotConnect, Place
from app.backends.upstreams.upstream_check import check_upstream
from app.domain.resources.backends import Connect
from app.errors import BackendUnavailable, UpstreamRefused
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.proxies import proxying
from tests.backends.upstreams.rig import (
    LOOPBACK,
    Heard,
    good,
    line,
    make_upstreams,
    opened,
    polite,
    serving,
    spec_at,
    unused_port,
)
from tests.certificates import authority, issued

ROOT = authority()
SERVER = issued(ROOT)
NAMES = {"far.example": "127.0.0.1"}


def nobody(name):
    """Nothing resolves a name on this machine: the proxy does."""
    raise AssertionError(f"{name} was looked up here")


def through(proxy, url, headers=None, *, is_granted=True, **connect):
    return spec_at(url, headers, connect=Connect(proxy=proxy.url, proxy_is_granted=is_granted, **connect))


@asynccontextmanager
async def upstreams_without_names(allow=()):
    async with make_upstreams(Metrics("test"), allow=allow, lookup=nobody) as upstreams:
        yield upstreams


async def works(spec, allow=()) -> None:
    async with upstreams_without_names(allow) as upstreams:
        link, heard = await opened(upstreams, spec)
        link.send(line(2, "tools/list"))
        assert "result" in await heard.answer(2)
        link.release("done")


async def failure(spec, allow=()) -> BackendUnavailable:
    async with upstreams_without_names(allow) as upstreams:
        with pytest.raises(BackendUnavailable) as caught:
            await upstreams.lease(spec)
        assert upstreams._parts.connector.open == 0
    return caught.value


async def test_https_goes_through_a_tunnel_that_the_proxy_cannot_read(tmp_path):
    async with serving(polite(good), SERVER.context(tmp_path)) as server, proxying(names=NAMES) as proxy:
        url = server.url.replace("127.0.0.1", "far.example")
        await works(through(proxy, url, {"Authorization": "Bearer secret"}, ca=ROOT.pem))
    port = parse_url(url).port
    assert {first for first, _ in proxy.asked} == {f"CONNECT far.example:{port} HTTP/1.1"}
    assert not {"authorization", "proxy-authorization"} & {name for _, headers in proxy.asked for name in headers}
    assert server.asked[0].headers["host"] == f"far.example:{port}"
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    assert not any(name.startswith(("proxy-", "via")) for each in server.asked for name in each.headers)


async def test_http_is_asked_of_it_with_the_whole_url():
    async with serving(polite(good)) as server, proxying(names=NAMES, credentials="me:pass") as proxy:
        url = server.url.replace("127.0.0.1", "far.example")
        await works(through(proxy, url, proxy_auth="me:pass"))
    assert {first for first, _ in proxy.asked} >= {f"POST {url} HTTP/1.1", f"DELETE {url} HTTP/1.1"}
    assert not any("proxy-authorization" in each.headers for each in server.asked)


async def test_credentials_are_for_the_proxy_alone(tmp_path):
    async with (
        serving(polite(good), SERVER.context(tmp_path)) as server,
        proxying(names=NAMES, credentials="me:p:ass") as proxy,
    ):
        await works(through(proxy, server.url, ca=ROOT.pem, proxy_auth="me:p:ass"), allow=(LOOPBACK,))
        assert all("proxy-authorization" in headers for _, headers in proxy.asked)
        assert not any("proxy-authorization" in each.headers for each in server.asked)
        without = await failure(through(proxy, server.url, ca=ROOT.pem), allow=(LOOPBACK,))
        assert f"its proxy 127.0.0.1:{proxy.port} wants credentials (HTTP 407" in str(without)
        wrong = through(proxy, server.url, ca=ROOT.pem, proxy_auth="me:wrong")
        error = await failure(wrong, allow=(LOOPBACK,))
        assert "does not accept `connect.proxy_auth` (HTTP 407" in str(error)
        assert "connect.proxy_auth" in (error.hint or "")
        assert "wrong" not in str(error)


async def test_a_proxy_with_tls_of_its_own(tmp_path):
    async with (
        serving(polite(good), SERVER.context(tmp_path)) as server,
        proxying(issued(ROOT, "proxy.example").context(tmp_path), names=NAMES) as proxy,
    ):
        url = server.url.replace("127.0.0.1", "far.example")
        await works(through(proxy, url, ca=ROOT.pem))
        error = await failure(through(proxy, url))
        assert "the certificate of 127.0.0.1 is not accepted" in str(error)


@pytest.mark.parametrize(
    ("answer", "words", "hint"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "lets nobody through to far.example:443 (HTTP 403 Forbidden)", "allow"),
        (b"HTTP/1.1 503 \x1b[31mRed\r\n\r\n", "cannot connect to far.example:443 (HTTP 503)", "log of the proxy"),
        (b"HTTP/1.0 500\r\n\r\n", "lets nobody through to far.example:443 (HTTP 500)", "allow"),
        (b"220 mail.example ESMTP\r\n\r\n", "does not answer as an HTTP proxy does", "scheme and port"),
        (b"HTTP/1.1 200", "does not answer as an HTTP proxy does", "scheme and port"),
        (b"X" * (70 << 10) + b"\r\n\r\n", "answers with too many headers", ""),
    ],
)
async def test_what_the_proxy_says_is_said_of_it(answer, words, hint):
    async with proxying(answer=answer) as proxy:
        error = await failure(through(proxy, "https://far.example/mcp"))
    assert f"its proxy 127.0.0.1:{proxy.port} {words}" in str(error)
    assert hint in (error.hint or "")
    assert str(error).isprintable()


async def test_each_hop_is_named(tmp_path):
    async with proxying(names=NAMES) as proxy:
        error = await failure(through(proxy, "https://unknown.example/mcp"))
        assert "cannot connect to unknown.example:443 (HTTP 502 Unknown Host)" in str(error)
    gone = f"http://127.0.0.1:{unused_port()}"
    error = await failure(spec_at("https://far.example/", connect=Connect(proxy=gone, proxy_is_granted=True)))
    assert "its proxy cannot be reached: 127.0.0.1" in str(error)
    async with serving(polite(good), SERVER.context(tmp_path)) as server, proxying(names=NAMES) as proxy:
        url = server.url.replace("127.0.0.1", "far.example")
        error = await failure(through(proxy, url))
        assert "the certificate of far.example is not accepted" in str(error)


async def test_the_steps_of_a_check_have_the_proxy(tmp_path):
    async with (
        serving(polite(good), SERVER.context(tmp_path)) as server,
        proxying(names=NAMES, credentials="a:b") as proxy,
        upstreams_without_names() as upstreams,
    ):
        url = server.url.replace("127.0.0.1", "far.example")
        found = await check_upstream(upstreams, through(proxy, url, ca=ROOT.pem, proxy_auth="a:b"), Steps())
        assert [step.name for step in found.steps][:5] == ["resolve", "connect", "proxy", "tls", "initialize"]
        found = await check_upstream(upstreams, through(proxy, url, ca=ROOT.pem), Steps())
        assert found.failure is not None
        assert (found.failure.step, found.failure.reason) == ("proxy", "backend_unavailable")
        assert "connect.proxy_auth" in (found.failure.hint or "")


async def test_a_proxy_that_forwards_and_wants_credentials():
    async with proxying(credentials="me:pass", names=NAMES) as proxy, upstreams_without_names() as upstreams:
        link, heard = await upstreams.lease(through(proxy, "http://far.example:9/mcp")), Heard()
        link.attach(heard)
        link.send(line(1, "initialize"))
        error = await heard.failure(1)
        assert isinstance(error, UpstreamRefused)
        assert "a proxy before far.example:9 answered HTTP 407" in str(error)
        assert "connect.proxy_auth" in (error.hint or "")
        link.release("done")


# --- which addresses


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("http://127.0.0.1:3128", "http is allowed only in a network that is listed in TRUNKLINE_UPSTREAM_ALLOW"),
        ("https://10.0.0.1", "is at an address that is not public"),
        ("https://8.8.8.8:3128", "ports other than"),
    ],
)
async def test_the_address_of_a_proxy_is_checked_as_that_of_a_server(proxy, words):
    error = await failure(spec_at("https://far.example/mcp", connect=Connect(proxy=proxy)))
    assert words in str(error)


async def test_a_proxy_in_a_listed_network_is_for_every_tenant():
    async with proxying(names=NAMES) as proxy:
        error = await failure(through(proxy, "https://far.example/", is_granted=False), allow=(LOOPBACK,))
        assert "its proxy" in str(error)  # which was asked
    assert proxy.asked


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/mcp",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://10.1.2.3/",
        "http://8.8.8.8/",
    ],
)
async def test_no_proxy_leads_to_a_private_address(url):
    async with proxying() as proxy:
        await failure(through(proxy, url))
    assert proxy.asked == []


@pytest.mark.parametrize(
    "url", ["http://far.example/", "https://far.example:5432/", "http://far.example:443/", "https://intranet/"]
)
def test_a_name_that_a_proxy_resolves_is_reached_as_if_it_was_public(url):
    policy = Policy([LOOPBACK])
    policy.check_by_proxy("https://far.example:8443/", is_granted=False)
    policy.check_by_proxy(url, is_granted=True)
    with pytest.raises(UrlRefused, match=r"a platform administrator has given the backend its `connect.proxy`"):
        policy.check_by_proxy(url, is_granted=False)
    for own in ("https://localhost/", "https://a.localhost:8443/"):
        with pytest.raises(UrlRefused, match="own machine"):
            policy.check_by_proxy(own, is_granted=True)


async def test_the_gateway_itself_is_not_reached_by_a_proxy_either():
    async with (
        proxying(names={"gw.example": "127.0.0.1"}) as proxy,
        make_upstreams(Metrics("test"), allow=(), lookup=lambda _: ["8.8.8.8"]) as upstreams,
    ):
        dialler = upstreams._parts.dialler
        dialler._own_hosts, dialler._own_ports = frozenset({"gw.example"}), frozenset({proxy.port})
        connect = Connect(proxy="http://127.0.0.1:1", proxy_is_granted=True)
        with pytest.raises(CannotConnect, match="of the gateway itself"):
            await upstreams._parts.connector.connect(Place(parse_url("https://gw.example/"), "acme", "far", connect))
        own = Connect(proxy=proxy.url, proxy_is_granted=True)
        with pytest.raises(CannotConnect, match=r"its proxy cannot be reached: .*of the gateway itself"):
            await upstreams._parts.connector.connect(Place(parse_url("https://far.example/"), "acme", "far", own))
    assert proxy.asked == []


# --- the node's own


async def test_a_backend_without_one_goes_through_that_of_the_node(tmp_path):
    async with (
        serving(polite(good), SERVER.context(tmp_path)) as server,
        proxying(names=NAMES, credentials="me:pass") as proxy,
    ):
        for login, works_so in (("me:pass", True), (None, False)):
            node = NodeProxy(proxy.url, login)
            async with make_upstreams(
                Metrics("test"), allow=(LOOPBACK,), lookup=nobody, proxy=node, ca=ROOT.pem
            ) as upstreams:
                if works_so:
                    link, _ = await opened(upstreams, spec_at(server.url))
                    link.release("done")
                else:
                    with pytest.raises(BackendUnavailable, match=r"the gateway's proxy 127.* wants credentials"):
                        await upstreams.lease(spec_at(server.url))
    assert proxy.asked[0][0].startswith("CONNECT 127.0.0.1:")


async def test_what_is_near_is_reached_without_it(tmp_path):
    async with serving(polite(good), SERVER.context(tmp_path)) as server, proxying() as proxy:
        node = NodeProxy(proxy.url, direct=("example",))
        async with make_upstreams(
            Metrics("test"), lookup=lambda name: ["127.0.0.1"], proxy=node, ca=ROOT.pem
        ) as upstreams:
            link, _ = await opened(upstreams, spec_at(server.url.replace("127.0.0.1", "far.example")))
            link.release("done")
    assert proxy.asked == []


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "https://10.0.0.1/", "https://far.example:5432/"])
async def test_that_of_the_node_leads_to_no_private_address_either(url):
    async with (
        proxying(names=NAMES) as proxy,
        make_upstreams(Metrics("test"), allow=(), lookup=nobody, proxy=NodeProxy(proxy.url)) as upstreams,
    ):
        with pytest.raises(BackendUnavailable):
            await upstreams.lease(spec_at(url))
    assert proxy.asked == []
