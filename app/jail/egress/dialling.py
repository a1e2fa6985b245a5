"""From a host to a connection: every address of the host is checked, and a checked address is connected to."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

from app.jail.egress.names import Names
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address, Network, is_public

DEADLINE_S = 10.0
MAX_ADDRESSES = 4  # of one name that are tried


def _nothing_else(address: Address) -> None:
    """What else may be required of an address."""


class Dialler:
    """Connects to public addresses which are not of this machine, and to those in the networks `allow`.

    `own_hosts`: names and addresses of the gateway that are public: they lead back to it. Their names are resolved by
    `look_up_own_hosts`, to be called at the start and every now and then; until it has returned once, connections wait.
    `own_ports`: on which the gateway is reached there and on this machine, where no entry of `allow` leads.
    """

    def __init__(
        self,
        names: Names,
        allow: Iterable[Network] = (),
        own_hosts: Iterable[Address | str] = (),
        own_ports: Iterable[int] = (),
    ) -> None:
        self._names, self._own_ports = names, frozenset(own_ports)
        self._allow = tuple(allow)
        self._own_hosts = frozenset(own_hosts)
        self._own_addresses: frozenset[Address] = frozenset()
        self._knows_own = asyncio.Event()

    async def look_up_own_hosts(self) -> None:
        """Those whose names are not resolved for now keep the addresses they had."""
        found: set[Address] = {each for each in self._own_hosts if not isinstance(each, str)}
        for name in self._own_hosts - found:
            try:
                found |= {ip_address(each) for each in await self._names.resolve("", str(name))}
            except (Refused, ValueError):
                found |= self._own_addresses
        self._own_addresses = frozenset(found)
        self._knows_own.set()

    async def connect(self, outgoing: Outgoing, also: Callable[[Address], None] = _nothing_else) -> socket.socket:
        """A connection to one of the host's addresses.

        Raises:
            Refused: one of its addresses is not allowed, or none answers. `also` may raise another error for one.
        """
        return await self.dial(await self.addresses(outgoing, also), outgoing)

    async def dial(self, addresses: Sequence[Address], outgoing: Outgoing) -> socket.socket:
        """A connection to the first of these addresses that answers. Raises Refused: none does."""
        until = time.monotonic() + DEADLINE_S
        *others, last = addresses[:MAX_ADDRESSES]
        for tried, address in enumerate(others):
            try:
                return await _dial(address, outgoing, (until - time.monotonic()) / (len(others) + 1 - tried))
            except Refused:
                continue
        return await _dial(last, outgoing, until - time.monotonic())

    async def require_elsewhere(self, outgoing: Outgoing) -> None:
        """For a name that somebody else resolves. Raises Refused: it is the gateway's own."""
        await self._knows_own.wait()
        if outgoing.host in self._own_hosts:
            raise _not_public(outgoing)

    async def addresses(
        self, outgoing: Outgoing, also: Callable[[Address], None] = _nothing_else, *, is_granted: bool = False
    ) -> Sequence[Address]:
        """The host's addresses, which may be connected to. All are checked, also by `also`: a name that also points
        into a private network is not to be trusted. `is_granted`: they may be anywhere but where the gateway is.

        Raises:
            Refused: one of them is not allowed, or there is none.
        """
        host = outgoing.host
        await self.require_elsewhere(outgoing)
        if isinstance(host, str):
            found = await self._names.resolve(outgoing.tenant, host)
            try:
                addresses = [ip_address(each) for each in found]
            except ValueError:  # an IPv6 zone that this Python does not know
                raise _not_public(outgoing) from None
        else:
            addresses = [host]
        for address in addresses:
            also(address)
            if not self._is_allowed(address, outgoing.port, is_granted=is_granted):
                raise _not_public(outgoing)
        return addresses

    def _is_allowed(self, address: Address, port: int, *, is_granted: bool) -> bool:
        real = getattr(address, "ipv4_mapped", None) or address
        if port in self._own_ports and (real in self._own_addresses or _is_here(real, port)):
            return False
        if is_granted or any(address in network for network in self._allow):
            return True
        return is_public(address) and address not in self._own_addresses and not _is_of_this_machine(address, port)


def _not_public(outgoing: Outgoing) -> Refused:
    where = "is at an address that is" if isinstance(outgoing.host, str) else "is"
    return Refused(Reason.ADDRESS, f"{outgoing.host} {where} not public, or of the gateway itself")


def _is_here(address: Address, port: int) -> bool:
    """Whether the kernel does not send it away: all of loopback is this machine, and so is no address at all."""
    return address.is_loopback or address.is_unspecified or _is_of_this_machine(address, port)


def _is_of_this_machine(address: Address, port: int) -> bool:
    """To an address of its own the kernel sends from that address. Nothing is sent here: it is UDP."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), port))
            return bool(ip_address(probe.getsockname()[0]) == address)
    except OSError:
        return False  # there is no way to it at all


async def _dial(address: Address, outgoing: Outgoing, seconds: float) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(Reason.UNREACHABLE, f"{outgoing.destination}: {error.strerror}") from None
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), outgoing.port))
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise Refused(Reason.TIMEOUT, f"{outgoing.destination} did not answer in time") from None
        if isinstance(error, ConnectionRefusedError):
            raise Refused(Reason.REFUSED, f"{outgoing.destination} refuses connections") from None
        if isinstance(error, OSError):
            raise Refused(Reason.UNREACHABLE, f"{outgoing.destination}: {error.strerror}") from None
        raise
    return connection
