"""Destinations: what an entry says, where it leads, and what it covers."""

from ipaddress import ip_address

import pytest

from app.domain.resources.destinations import is_destination, not_covered, parse
from app.domain.resources.fields import Unfit
from app.text.public_addresses import is_public

PUBLIC, PRIVATE, LOOPBACK = "93.184.215.14", "10.20.3.4", "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "name", "network", "port"),
    [
        ("db.internal:5432", "db.internal", None, 5432),
        ("db:1", "db", None, 1),
        ("10.20.0.7:443", "", "10.20.0.7/32", 443),
        ("10.20.0.0/16:443", "", "10.20.0.0/16", 443),
        ("[2001:db8:1::7]:65535", "", "2001:db8:1::7/128", 65535),
        ("[fd00:1::]/32:1", "", "fd00:1::/32", 1),
        ("[::1]:5432", "", "::1/128", 5432),
        ("127.0.0.0/8:5432", "", "127.0.0.0/8", 5432),
        ("169.254.169.254:80", "", "169.254.169.254/32", 80),
        ("db.example.com:5432@10.20.0.0/16", "db.example.com", "10.20.0.0/16", 5432),
        ("db.example.com:5432@fd00::7", "db.example.com", "fd00::7/128", 5432),
    ],
)
def test_an_entry_is_a_name_an_address_or_a_network_with_a_port(text, name, network, port):
    found = parse(text)
    assert (found.name, found.network and str(found.network), found.port) == (name, network, port)
    assert is_destination(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "is not HOST:PORT") for text in (
            "", "db", ":5432", "db:", "db:0", "db:05", "db:65536", "DB:1", "db:1 ", "a b:1", "http://a:1", "db:1/x",
            "user@db:1", "-a:1", "a-:1", "::1:5432", "db/24:1", "*.example.com:443", "db:1@", "a:1,b:2", "d\u00f6:1",
        )),
        ("10.20.0.7/16:443", "host bits"),
        ("256.1.1.1:1", "256.1.1.1"),
        ("2130706433:1", "does not appear"),
        ("0x7f.1:1", "does not appear"),
        ("10.0.0.1:5432@10.0.0.0/8", "only a name"),
        ("0.0.0.0/0:443", "at least /8"),
        ("[2000::]/3:443", "at least /32"),
        ("0.0.0.0:1", "nobody has"),
        ("224.0.0.1:1", "nobody has"),
        ("255.255.255.255:1", "nobody has"),
        ("198.18.0.1:1", "nobody has"),
        ("198.0.0.0/8:1", "nobody has"),
        ("[::]:1", "of IPv6 there are"),
        ("[::ffff:7f00:1]:1", "of IPv6 there are"),
        ("[64:ff9b::7f00:1]:1", "of IPv6 there are"),
        ("[2002:7f00:1::]:1", "of IPv6 there are"),
        ("[2001:0:7f00::1]:1", "of IPv6 there are"),
        ("[2001:db8::5efe:7f00:1]:1", "of IPv6 there are"),
        ("[fe80::1]:1", "of IPv6 there are"),
        ("169.254.0.0/16:80", "one by one"),
        ("169.0.0.0/8:80", "one by one"),
        ("meta.internal:80@169.254.169.254", "one by one"),
    ],
)  # fmt: skip
def test_what_is_none_is_said_and_why(text, words):
    with pytest.raises(Unfit, match=words):
        parse(text)


def leads(entry: str, address: str, *, is_here: bool = False) -> bool:
    found = ip_address(address)
    return parse(entry).leads_to(found, is_public=is_public(found), is_here=is_here)


def test_a_name_that_anybody_may_have_leads_to_public_addresses_only():
    assert leads("api.example.com:443", PUBLIC)
    for address in (PRIVATE, LOOPBACK, "::1", "100.64.0.1", "fd00::1", "169.254.169.254", "0.0.0.0", "224.0.0.1"):
        assert not leads("api.example.com:443", address)
    assert not leads("api.example.com:443", PUBLIC, is_here=True)


@pytest.mark.parametrize(
    "name", ["db", "db.internal", "db.lan", "a.b.corp", "nas.local", "x.home.arpa", "db.svc.local"]
)
def test_a_name_of_private_networks_leads_into_them_but_not_to_loopback_and_metadata(name):
    assert leads(f"{name}:1", PRIVATE)
    assert leads(f"{name}:1", PRIVATE, is_here=True)
    assert leads(f"{name}:1", PUBLIC)
    for address in (LOOPBACK, "127.0.1.1", "::1", "169.254.169.254", "100.100.100.200", "fd00:ec2::254", "0.0.0.0"):
        assert not leads(f"{name}:1", address)


@pytest.mark.parametrize("name", ["db.example.com", "internal.example", "arpa.example", "db.internal.example.com"])
def test_a_name_that_only_looks_like_one_is_public(name):
    assert not leads(f"{name}:1", PRIVATE)


def test_with_a_network_a_name_leads_into_that_only():
    assert leads("db.example.com:1@10.20.0.0/16", PRIVATE)
    assert not leads("db.example.com:1@10.20.0.0/16", "10.21.0.1")
    assert not leads("db.example.com:1@10.20.0.0/16", PUBLIC)
    assert leads("db.example.com:1@127.0.0.0/8", LOOPBACK)
    assert not leads("db.example.com:1@127.0.0.0/8", "::1")


def test_loopback_and_metadata_are_reached_by_who_names_them():
    assert leads("127.0.0.1:1", LOOPBACK)
    assert leads("localhost:1", LOOPBACK)
    assert leads("localhost:1", "::1")
    assert not leads("127.0.0.1:1", "127.0.0.2")
    assert leads("169.254.169.254:80", "169.254.169.254")
    assert leads("100.100.100.200:80", "100.100.100.200")
    assert not leads("100.64.0.0/10:80", "100.100.100.200")
    assert leads("100.64.0.0/10:80", "100.64.0.1")


@pytest.mark.parametrize(
    ("wanted", "allowed", "is_covered"),
    [
        ("db.internal:5432", "db.internal:5432", True),
        ("db.internal:5432", "db.internal:5433", False),
        ("other.internal:5432", "db.internal:5432", False),
        ("db.internal:5432@10.0.0.0/8", "db.internal:5432", False),
        ("db.internal:5432", "db.internal:5432@10.0.0.0/8", False),
        ("db.internal:5432@10.1.0.0/16", "db.internal:5432@10.0.0.0/8", True),
        ("10.20.3.0/24:443", "10.20.0.0/16:443", True),
        ("10.0.0.0/8:443", "10.20.0.0/16:443", False),
        ("10.20.0.7:443", "10.20.0.0/16:443", True),
        ("10.20.0.7:443", "db.internal:443", False),
        ("db.internal:443", "10.0.0.0/8:443", False),
        ("[fd00:1::7]:443", "[fd00:1::]/32:443", True),
        ("[fd00:1::7]:443", "10.0.0.0/8:443", False),
        ("127.0.0.1:1", "127.0.0.0/8:1", True),
        ("localhost:1", "127.0.0.0/8:1", False),
        ("100.100.100.200:80", "100.64.0.0/10:80", False),
        ("100.100.100.200:80", "100.100.100.200:80", True),
    ],
)
def test_an_entry_covers_what_allows_nothing_more(wanted, allowed, is_covered):
    assert not_covered([wanted], [allowed]) == ([] if is_covered else [wanted])
