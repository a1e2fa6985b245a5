"""Where processes may connect to: what a backend's `network.allow` and a tenant's `reach` name, one by one. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated

from msgspec import Meta

from app.domain.resources.fields import Unfit

MAX_DESTINATIONS = 32  # of one backend: each port takes a descriptor of the node
LOCALHOST = "localhost"
# Names in the sandbox get addresses of this network (RFC 2544: in no real one).
NAMED = IPv4Network("198.18.0.0/16")

_FORM = (
    "{text} is not HOST:PORT: a name or an address, like db.internal:5432, 10.20.0.7:443 or [2001:db8::7]:443; a "
    "network like 10.20.0.0/16:443; or a name with the network that it leads into, like "
    "db.example.com:5432@10.20.0.0/16"
)
_entry = re.compile(
    r"(?P<name>[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(?:/(?P<bits>[0-9]{1,3}))?"
    r":(?P<port>[1-9][0-9]{0,4})(?:@(?P<within>[0-9a-f.:/]{2,49}))?"
).fullmatch
_is_number = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)").fullmatch  # what inet_aton reads as an address
# Top-level names that no public resolver has (RFC 6761, 6762, 8375, ICANN's `internal`), or that networks use as such.
_is_private_name = re.compile(
    r"[^.]+|.+\.(?:internal|local|localdomain|lan|intranet|private|corp|home|home\.arpa|test)"
).fullmatch

# Where machines of a cloud are given settings and credentials. Only who names such an address gets it.
_METADATA = tuple(
    ip_network(each)
    for each in ("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128")
)
_LINK_LOCAL = _METADATA[0]
_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
# What is no destination, or has another address in it.
_NOWHERE = tuple(map(ip_network, ("0.0.0.0/8", "198.18.0.0/15", "224.0.0.0/3")))
_V6 = tuple(map(ip_network, ("2000::/3", "fc00::/7", "::1/128")))
_WITH_V4 = tuple(map(ip_network, ("2001::/32", "2002::/16")))
_WIDEST = {4: 8, 6: 32}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Destination:
    """`name`, or else all addresses of `network`. A name with a `network` has its addresses there."""

    port: int
    name: str = ""
    network: Network | None = None

    @property
    def is_private_name(self) -> bool:
        """Whether a name says of itself that it is of a private network."""
        return bool(self.name) and _is_private_name(self.name) is not None

    @property
    def is_exact(self) -> bool:
        """Whether it is one address."""
        return not self.name and self.network is not None and self.network.num_addresses == 1

    @property
    def is_of_loopback(self) -> bool:
        """Whether its network is nothing else."""
        return self.network is not None and _is_within(self.network, _LOOPBACK)

    def leads_to(self, address: Address, *, is_public: bool, is_here: bool) -> bool:
        """Whether this entry allows a connection to an address, which its name has been resolved to. `is_here`: it is
        one of this machine. The one rule of where `allow` leads:

        1. To metadata services only by their very address.
        2. To loopback only by an address or a network of loopback, or by `localhost`.
        3. With a network only into it; a private name (`is_private_name`) without one also to private addresses.
        4. Any other name to public addresses only: whoever has it may let it lead anywhere at any time.
        """
        is_within = self.network is not None and address in self.network
        if is_metadata(address):
            return is_within and self.is_exact
        if address.is_loopback:
            return self.name == LOCALHOST or (is_within and self.is_of_loopback)
        if any(address in each for each in _NOWHERE) or (address.version == 6 and not _is_plain(address)):
            return False
        if self.network is not None:
            return is_within
        return self.is_private_name or (is_public and not is_here)

    def covers(self, other: "Destination") -> bool:
        """Whether the other entry allows nothing that this one does not."""
        if self.port != other.port or self.name != other.name:
            return False
        if self.network is None or other.network is None:
            return self.network is other.network
        is_exact = any(_overlap(other.network, each) for each in _METADATA)
        return other.network == self.network if is_exact else _is_within(other.network, (self.network,))


def parse(text: str) -> Destination:
    """
    Raises:
        Unfit: it is none, or too much at once.
    """
    match = _entry(text)
    if match is None or int(match["port"]) > 65535:
        raise Unfit("destination", _FORM, text=ascii(text[:100]))
    host, port, within = match["name"], int(match["port"]), match["within"]
    if not host.startswith("[") and _is_number(host) is None:
        if match["bits"] is not None:
            raise Unfit("destination", _FORM, text=ascii(text[:100]))
        return Destination(port, host, None if within is None else _network(within, text, of_name=True))
    if within is not None:
        raise Unfit("destination", "{text}: only a name leads into a network", text=ascii(text[:100]))
    bits = "" if match["bits"] is None else f"/{match['bits']}"
    return Destination(port, "", _network(host.strip("[]") + bits, text))


def is_metadata(address: Address) -> bool:
    """Whether a cloud may tell settings and credentials of its machines there."""
    return any(address in each for each in _METADATA) or address.is_link_local


def port_of(text: str) -> int:
    return parse(text).port


def is_destination(text: str) -> str:
    """Raises Unfit: it is none."""
    parse(text)
    return text


def not_covered(wanted: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Which of these entries allow something that none of the others allows."""
    known = [parse(each) for each in allowed]
    return [each for each in wanted if not any(one.covers(parse(each)) for one in known)]


def _network(text: str, entry: str, *, of_name: bool = False) -> Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise Unfit("destination", "{text}: {why}", text=ascii(entry[:100]), why=str(error)) from None
    why = _why_not(network, of_name=of_name)
    if why is not None:
        raise Unfit("destination", "{text}: {why}", text=ascii(entry[:100]), why=why)
    return network


def _why_not(network: Network, *, of_name: bool) -> str | None:
    if network.prefixlen < _WIDEST[network.version]:
        return f"a network of IPv{network.version} has at least /{_WIDEST[network.version]}"
    if any(_overlap(network, each) for each in _NOWHERE):
        return "nobody has such an address, or the sandbox has it itself"
    if network.version == 6 and not _is_plain(network.network_address):
        return "of IPv6 there are 2000::/3, fc00::/7 and ::1; an address that contains one of IPv4 is written as that"
    is_wide = network.num_addresses > 1
    if (is_wide or of_name) and _overlap(network, _LINK_LOCAL):
        return "link-local addresses are named one by one, without a name"
    if is_wide and _overlap(network, _LOOPBACK[0]) and not _is_within(network, _LOOPBACK):
        return "loopback is named by itself: 127.0.0.1"
    return None


def _is_plain(address: Address) -> bool:
    is_isatap = (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE
    return any(address in each for each in _V6) and not is_isatap and not any(address in each for each in _WITH_V4)


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def _is_within(network: Network, outer: Iterable[Network]) -> bool:
    return any(network[0] in each and network[-1] in each for each in outer)


Place = Annotated[str, Meta(max_length=350), is_destination]
