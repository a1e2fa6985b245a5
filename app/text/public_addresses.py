"""Which addresses are public, and authorities of URLs that every parser reads in the same way."""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_authority = re.compile(
    r"(?P<host>[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
).fullmatch
# What inet_aton reads as an address: the last label is a number, decimal, octal or hex.
_is_number = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)").fullmatch

# Not public, whatever `is_global` of this Python says. IPv6 is public in 2000::/3 only, which excludes mapped, NAT64,
# unique local, link-local and multicast addresses; the IPv6 networks below contain IPv4 addresses, or are reserved.
# 168.63.129.16 looks public, but is the host of a virtual machine in Azure, which hands out its settings and secrets.
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
)  # fmt: skip
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


def is_public(address: Address) -> bool:
    """Whether the address is on the public Internet, and contains no other address."""
    if not address.is_global or address.is_multicast or any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, IPv4Address):
        return True
    return address in _PUBLIC_V6 and (int(address) >> 32) & 0xFFFFFFFF not in _ISATAP


def split_authority(text: str) -> tuple[Address | str, int | None]:
    """Host, as an address if it is one, and port.

    Raises:
        ValueError: two parsers could read it differently.
    """
    match = _authority(text.lower())
    if match is None:
        raise ValueError("a URL must have a host, perhaps a port, and no user name")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise ValueError("the port must be 1 to 65535")
    return parse_host(match["host"]), port


def parse_host(host: str) -> Address | str:
    """The address, or the name in lower case; IPv6 is in brackets.

    Raises:
        ValueError: two parsers could read it differently.
    """
    match = _authority(host.lower())
    if match is None or match["port"]:
        raise ValueError("it is not the name or address of a host")
    try:
        if match["host"].startswith("["):
            return IPv6Address(match["host"][1:-1])
        if _is_number(match["host"]):
            return IPv4Address(match["host"])
    except ValueError:
        raise ValueError("an address must be written as 192.0.2.1 or [2001:db8::1]") from None
    return match["host"]
