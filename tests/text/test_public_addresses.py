"""What is public, and what every parser reads as the same host."""

from ipaddress import ip_address

import pytest

from app.text.public_addresses import is_public, parse_host, split_authority


@pytest.mark.parametrize(("address", "expected"), [("1.1.1.1", True), ("2606:4700::1111", True), ("192.0.2.1", False)])
def test_public_is_what_anybody_can_reach(address, expected):
    assert is_public(ip_address(address)) is expected


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "168.63.129.16",
        "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "192.88.99.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1",
        "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:10::1", "2001:db8::1", "2002:7f00:1::",
        "2002:a9fe:a9fe::", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
        "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a9fe:a9fe",
    ],
)  # fmt: skip
def test_what_is_private_reserved_or_contains_another_address_is_not(address):
    assert not is_public(ip_address(address))


def test_names_are_lower_case_and_addresses_are_addresses():
    assert split_authority("Example.COM:443") == ("example.com", 443)
    assert split_authority("[2606:4700:0::1111]") == (ip_address("2606:4700::1111"), None)
    assert parse_host("1.1.1.1") == ip_address("1.1.1.1")


@pytest.mark.parametrize(
    "text",
    [
        "", "a b", "user@host", "host:0", "host:65536", "host:", "2130706433", "0x7f000001", "0177.0.0.1", "127.1",
        "1.2.3.4.5", "1.1.1.1.", "host.", "::1", "[::1", "[fe80::1%eth0]", "[::1]x", "ⓛocalhost", "127。0。0。1", "a/b",
        "1.1.1.01", "0x", "a" * 254,
    ],
)  # fmt: skip
def test_what_could_be_read_twice_is_no_authority(text):
    with pytest.raises(ValueError, match=r"must be|must have|is not"):
        split_authority(text)
