"""Host and Origin allow-lists (basic/transports, "Security Warning")."""

import pytest

from app.http.errors import HttpRefusal
from app.http.hosts import HostPolicy


@pytest.fixture
def policy() -> HostPolicy:
    return HostPolicy(["gw.example.com", "other.example.com:8443"], ["https://app.example.org"])


@pytest.mark.parametrize(
    "host",
    [b"127.0.0.1:8080", b"localhost", b"[::1]:99", b"gw.example.com", b"GW.example.com:443", b"other.example.com:8443"],
)
def test_our_own_hosts_are_served(policy: HostPolicy, host: bytes) -> None:
    policy.require_host(host)
    policy.require_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        b"",
        b"evil.example.com",
        b"other.example.com",
        b"127.0.0.1.evil.com",
        b"localhost:80:80",
        "localhost:\u00b2".encode("latin-1"),
        b"gw.example.com.",
        b"127.0.0.1:" + b"7" * 6,
        b"127.0.0.1:" + b"7" * 60_000,
        b"\xff",
    ],
)
def test_other_hosts_are_not(policy: HostPolicy, host: bytes | None) -> None:
    with pytest.raises(HttpRefusal) as caught:
        policy.require_host(host)
    assert caught.value.status == 421


@pytest.mark.parametrize(
    "host",
    [
        b"10.0.0.5:8080",
        b"203.0.113.9",
        b"[2001:db8::1]:8080",
        b"[::1]",
        b"gateway-1:8080",
        b"gw.example.com",
        b"localhost",
    ],
)
def test_a_node_is_asked_for_its_metrics_by_address_by_its_own_name_and_by_those_allowed(host: bytes) -> None:
    policy = HostPolicy(["gw.example.com"], [], "http://gateway-1:8080")
    policy.require_host_or_address(host)


@pytest.mark.parametrize(
    "host",
    [
        None, b"", b"evil.example.com", b"evil.example.com:8080", b"10.0.0.5.evil.com", b"gateway-1", b"gateway-1:80",
        b"2001:db8::1", b"[10.0.0.5]", b"0x7f000001", b"2130706433", b"127.1", b"10.0.0.5:123456",
    ],
)  # fmt: skip
@pytest.mark.parametrize("node_url", [None, "http://gateway-1:8080"])
def test_and_by_no_other_name(host: bytes | None, node_url: str | None) -> None:
    with pytest.raises(HttpRefusal) as caught:
        HostPolicy(["gw.example.com"], [], node_url).require_host_or_address(host)
    assert caught.value.status == 421


@pytest.mark.parametrize(
    "origin",
    [b"https://app.example.org", b"http://127.0.0.1:5173", b"https://gw.example.com", b"HTTPS://APP.example.org"],
)
def test_listed_origins_and_our_own_may_call(policy: HostPolicy, origin: bytes) -> None:
    policy.require_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        b"null",
        b"https://evil.example.com",
        b"http://app.example.org",
        b"file://127.0.0.1",
        b"https://app.example.org.evil",
        b"http://127.0.0.1:" + b"7" * 60_000,
        b"http://127.0.0.1/x",
        b"http://evil@127.0.0.1",
        b"",
    ],
)
def test_other_origins_may_not(policy: HostPolicy, origin: bytes) -> None:
    with pytest.raises(HttpRefusal) as caught:
        policy.require_origin(origin)
    assert caught.value.status == 403


def test_a_refusal_names_the_setting_and_leaves_both_names_for_the_log(policy: HostPolicy) -> None:
    with pytest.raises(HttpRefusal, match="TRUNKLINE_ALLOWED_HOSTS") as caught:
        policy.require_host(b"evil.example.com\x1b[2J" + b"e" * 1000)
    facts = caught.value.facts
    assert (facts["rule"], facts["expected"]) == ("host", sorted(policy._hosts))
    assert str(facts["actual"]).startswith("evil.example.com\\x1b[2Jeee")
    assert len(str(facts["actual"])) < 300
    with pytest.raises(HttpRefusal, match="TRUNKLINE_ALLOWED_ORIGINS") as caught:
        policy.require_origin(b"https://evil.example.com")
    assert caught.value.facts["actual"] == "https://evil.example.com"
    assert "https://app.example.org" in str(caught.value.facts["expected"])
    assert "example.org" not in str(caught.value)
