"""What a process reaches without a proxy: the `allow` of its backend, and the addresses that stand for it there.

In the process's network a name has an address of `NAMED`, which only its hosts file knows; the other addresses are what
they are outside. So whatever a connection there was meant for follows from its address.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from app.domain.resources.destinations import LOCALHOST, NAMED, Destination, parse
from app.jail.egress.outgoing import Outgoing, Rule
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address

_V6_LOOPBACK = (IPv6Network("::1/128"),)
LOOPBACK: Sequence[Address] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class Allowed:
    """The entries of one backend."""

    def __init__(self, allow: Sequence[str]) -> None:
        self._entries = [parse(each) for each in allow]
        names = dict.fromkeys(each.name for each in self._entries if each.name not in ("", LOCALHOST))
        self._address_of: dict[str, Address] = {name: NAMED[at] for at, name in enumerate(names, 1)}
        self._name_of = {address: name for name, address in self._address_of.items()}

    @property
    def ports(self) -> list[int]:
        """At which the process's network has listeners."""
        return sorted({each.port for each in self._entries})

    @property
    def networks(self) -> list[str]:
        """Whose addresses are local there, besides those of loopback, which always are."""
        named = [each.network for each in self._entries if each.network is not None and not each.name]
        found = [str(each) for each in named if not each.is_loopback]
        return list(dict.fromkeys([*found, *(f"{each}/32" for each in self._name_of)]))

    @property
    def hosts(self) -> str:
        """The hosts file. Who is sent to ::1 in vain may not try 127.0.0.1: his connection was accepted."""
        six = any(each.name == LOCALHOST or each.network in _V6_LOOPBACK for each in self._entries)
        own = f"127.0.0.1 {LOCALHOST}\n::1 ip6-localhost ip6-loopback{f' {LOCALHOST}' if six else ''}\n"
        return own + "".join(f"{address} {name}\n" for name, address in self._address_of.items())

    def host_at(self, address: Address, port: int) -> Address | str:
        """What a connection to this address was meant for."""
        real: Address = getattr(address, "ipv4_mapped", None) or address
        if real in LOOPBACK and self.entries(LOCALHOST, port):
            return LOCALHOST
        return self._name_of.get(real, real)

    def entries(self, host: Address | str, port: int) -> Sequence[Destination]:
        """Those that name this host, or a network that it is in."""
        if isinstance(host, str):
            return [each for each in self._entries if each.port == port and each.name == host]
        return [
            each
            for each in self._entries
            if each.port == port and not each.name and each.network is not None and host in each.network
        ]


class AllowedRule:
    """What `allowed` has, and what another rule permits besides."""

    def __init__(self, allowed: Allowed, otherwise: Rule) -> None:
        self._allowed, self._otherwise = allowed, otherwise

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        found = self._allowed.entries(outgoing.host, outgoing.port)
        return found or await self._otherwise.permit(outgoing)


class NothingElse:
    """Refuses everything, where there is no `web` besides."""

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        raise Refused(Reason.RULE, f"{outgoing.destination} is not in `allow` of this backend's network")
