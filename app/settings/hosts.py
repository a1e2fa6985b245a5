"""Parsers of hosts, node names and networks: text in, value out; a ValueError says what is allowed."""

import ipaddress
import re

SHOWN = 100  # characters of a value, in messages
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?", re.IGNORECASE)
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def host(text: str) -> str:
    """An IP address or a host name."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if _HOST_NAME.fullmatch(text):
            return text
    raise ValueError(f"{text[:SHOWN]!r} is not an IP address or a host name")


def node_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is not a node name: allowed are up to 63 of a-z, 0-9 and -, with no - at either end"
        )
    return text


def networks(text: str) -> tuple[IpNetwork, ...]:
    """Addresses and networks, separated by commas."""
    items = (part.strip() for part in text.split(","))
    try:
        return tuple(ipaddress.ip_network(item) for item in items if item)
    except ValueError as error:
        raise ValueError(f"{str(error)[:SHOWN]}; allowed are addresses and networks like 10.0.0.0/8") from None


def names_and_networks(text: str) -> tuple[str | IpNetwork, ...]:
    """Names of hosts, with or without a dot before them, addresses and networks, separated by commas."""
    return tuple(_name_or_network(item.strip()) for item in text.split(",") if item.strip())


def _name_or_network(text: str) -> str | IpNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        name = text.removeprefix(".").lower()
        if _HOST_NAME.fullmatch(name):
            return name
    raise ValueError(f"{text[:SHOWN]!r} is not a host name, an address or a network; like corp.example,10.0.0.0/8")


def is_wildcard(host: str) -> bool:
    """Whether it means every address of this machine, so that others cannot connect to it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
