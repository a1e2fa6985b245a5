"""Whose word about a client's address counts."""

import ipaddress
from typing import Any

import httpx2
import pytest

from app.http.client_address import TrustedProxies, client_address, is_loopback, limited_address, scheme_before
from app.http.edge.connections import Connections
from tests.http.edge.serving import serving

PROXIES = TrustedProxies([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")])


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"a"), *((b"x-forwarded-for", value.encode()) for value in values)]


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["203.0.113.9, 192.0.2.1"], "192.0.2.1"),  # the left one is the client's own word
        (["203.0.113.9", "192.0.2.1"], "192.0.2.1"),  # in two headers as in one
        (["203.0.113.9, 192.0.2.1, 10.0.0.7,10.1.1.1"], "192.0.2.1"),  # our other proxies are passed over
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:DB8:0::1"], "2001:db8::1"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["10.0.0.7"], "10.0.0.7"),  # a proxy's own request
        (["192.0.2.1, nonsense"], "10.0.0.1"),
        (["192.0.2.1, nonsense, 10.0.0.7"], "10.0.0.7"),
        (["192.0.2.1,"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_right_most_address_that_is_no_proxy_is_the_client(values: list[str], client: str) -> None:
    assert PROXIES.client_behind("10.0.0.1", forwarded(*values)) == client


def test_proxies_are_known_by_their_network() -> None:
    assert "10.2.3.4" in PROXIES
    assert "::ffff:10.2.3.4" in PROXIES  # as a socket of both families has it
    assert "fd00::1" in PROXIES
    for stranger in ("192.0.2.1", "2001:db8::1", "", "unknown"):
        assert stranger not in PROXIES
    assert "127.0.0.1" not in TrustedProxies()


def test_limits_count_an_ipv4_address_or_the_network_of_one_client() -> None:
    assert limited_address("192.0.2.1") == limited_address("::ffff:192.0.2.1") == "192.0.2.1"
    assert limited_address("2001:db8:1:2::1") == limited_address("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert limited_address("2001:db8:1:3::1") != limited_address("2001:db8:1:2::1")
    assert limited_address("fe80::1%eth0") == "fe80::/64"
    assert limited_address("/run/socket") == "unknown"


def test_loopback_is_known_in_every_form() -> None:
    assert all(is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"))
    assert not any(is_loopback(each) for each in ("192.0.2.1", "2001:db8::1", "unknown"))


def test_the_scheme_counts_where_it_is_said_once() -> None:
    assert scheme_before([(b"x-forwarded-proto", b"https")]) == "https"
    assert scheme_before([(b"x-forwarded-proto", b"HTTP")]) == "http"
    assert scheme_before([(b"x-forwarded-proto", b"gopher")]) is None
    assert scheme_before([(b"x-forwarded-proto", b"https"), (b"x-forwarded-proto", b"http")]) is None
    assert scheme_before([]) is None


def test_a_scope_without_a_client_has_no_address() -> None:
    assert client_address({"client": None}) == client_address({}) == "unknown"


@pytest.mark.real
@pytest.mark.parametrize("trusted", [True, False])
async def test_requests_have_the_address_behind_a_trusted_proxy_and_nobody_elses_word(trusted: bool) -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((client_address(scope), scope["scheme"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    proxies = TrustedProxies([ipaddress.ip_network("127.0.0.0/8")] if trusted else [])
    async with (
        serving(app, connections=Connections(proxies=proxies)) as host,
        httpx2.AsyncClient(base_url=f"http://{host}", timeout=30, trust_env=False) as http,
    ):
        for address in ("192.0.2.1", "192.0.2.2"):  # on one connection
            await http.get("/", headers={"X-Forwarded-For": address, "X-Forwarded-Proto": "https"})
        await http.get("/", headers={"Forwarded": "for=192.0.2.3", "X-Real-IP": "192.0.2.3"})
    proxy = ("127.0.0.1", "http")
    assert seen == ([("192.0.2.1", "https"), ("192.0.2.2", "https"), proxy] if trusted else [proxy] * 3)
