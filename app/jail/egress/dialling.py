"""From a host to a connection: every address of the host is checked, and a checked address is connected to."""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ipaddress import ip_address

import anyio.to_thread

from app.domain.resources.destinations import LOCALHOST, Destination
from app.jail.egress._listening import Listening
from app.jail.egress.allowed import LOOPBACK
from app.jail.egress.names import Names
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address, Network, is_public

DEADLINE_S = 10.0
MAX_ADDRESSES = 4  # of one name that are tried


def _nothing_else(address: Address) -> None:
    """What else may be required of an address."""


class Dialler:
    """Connects to public addresses which are not of this machine, to those in the networks `allow`, and where an entry
    of a backend leads.

    `own_hosts`: names and addresses of the gateway that are public: they lead back to it. Their names are resolved by
    `look_up_own_hosts`, to be called at the start and every now and then; until it has returned once, connections wait.
    `own_ports`: on which the gateway is reached there and on this machine, where no entry of `allow` leads. `parts`:
    hosts and ports of what belongs to the gateway, such as its database: nothing leads there.
    """

    def __init__(
        self,
        names: Names,
        allow: Iterable[Network] = (),
        own_hosts: Iterable[Address | str] = (),
        own_ports: Iterable[int] = (),
        parts: Iterable[tuple[Address | str, int]] = (),
    ) -> None:
        self._names, self._own_ports = names, frozenset(own_ports)
        self._parts = frozenset(parts)
        self._addresses_of_parts: Mapping[tuple[Address | str, int], Collection[Address]] = {}
        self._listening = Listening()
        self._allow = tuple(allow)
        self._own_hosts = frozenset(own_hosts)
        self._own_addresses: frozenset[Address] = frozenset()
        self._knows_own = asyncio.Event()

    async def look_up_own_hosts(self) -> None:
        """Those whose names are not resolved for now keep the addresses they had."""
        found = set[Address]()
        for host in self._own_hosts:
            found |= await self._found(host, self._own_addresses)
        known = self._addresses_of_parts
        self._addresses_of_parts = {part: await self._found(part[0], known.get(part, ())) for part in self._parts}
        self._own_addresses = frozenset(found)
        self._knows_own.set()

    async def _found(self, host: Address | str, before: Iterable[Address]) -> set[Address]:
        if not isinstance(host, str):
            return {host}
        try:
            return {_real(ip_address(each)) for each in await self._names.resolve("", host)}
        except (Refused, ValueError):
            return set(before)

    async def connect(
        self,
        outgoing: Outgoing,
        also: Callable[[Address], None] = _nothing_else,
        entries: Sequence[Destination] = (),
    ) -> socket.socket:
        """A connection to one of the host's addresses.

        Raises:
            Refused: one of its addresses is not allowed, or none answers. `also` may raise another error for one.
        """
        return await self.dial(await self.addresses(outgoing, also, entries), outgoing)

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
        if (outgoing.host, outgoing.port) in self._parts:
            raise _of_the_gateway(outgoing)

    async def addresses(
        self,
        outgoing: Outgoing,
        also: Callable[[Address], None] = _nothing_else,
        entries: Sequence[Destination] = (),
        *,
        is_granted: bool = False,
    ) -> Sequence[Address]:
        """The host's addresses, which may be connected to. All are checked, also by `also`: a name that also points
        into a private network is not to be trusted. With `entries` each has to be where one of these leads.
        `is_granted`: they may be anywhere but where the gateway and its parts are.

        Raises:
            Refused: one of them is not allowed, or there is none.
        """
        await self._knows_own.wait()
        if outgoing.host in self._own_hosts and not entries:
            raise _not_public(outgoing)
        if (outgoing.host, outgoing.port) in self._parts:
            raise _of_the_gateway(outgoing)
        addresses = await self._addresses(outgoing, entries)
        for address in addresses:
            also(address)
            if self._is_part(address, outgoing.port):
                raise _of_the_gateway(outgoing)
            if entries:
                await self._require_led_to(address, outgoing, entries)
            elif not self._is_allowed(address, outgoing.port, is_granted=is_granted):
                raise _not_public(outgoing)
        return addresses

    async def _addresses(self, outgoing: Outgoing, entries: Sequence[Destination]) -> Sequence[Address]:
        if not isinstance(outgoing.host, str):
            return [outgoing.host]
        if entries and outgoing.host == LOCALHOST:
            return LOOPBACK
        found = await self._names.resolve(outgoing.tenant, outgoing.host)
        try:
            return [ip_address(each) for each in found]
        except ValueError:  # an IPv6 zone that this Python does not know
            raise _not_public(outgoing) from None

    def _is_allowed(self, address: Address, port: int, *, is_granted: bool) -> bool:
        real = _real(address)
        if port in self._own_ports and (real in self._own_addresses or _is_here(real, port)):
            return False
        if is_granted or any(address in network for network in self._allow):
            return True
        return is_public(address) and address not in self._own_addresses and not _is_of_this_machine(address, port)

    def _is_part(self, address: Address, port: int) -> bool:
        """Whether something of the gateway's is there, however the address is spelled."""
        found = [each for part, known in self._addresses_of_parts.items() if part[1] == port for each in known]
        real = _real(address)
        return real in found or (any(_is_here(each, port) for each in found) and _is_here(real, port))

    async def _require_led_to(self, address: Address, outgoing: Outgoing, entries: Sequence[Destination]) -> None:
        """Raises Refused: no entry leads there, or another backend listens there."""
        real, port = _real(address), outgoing.port
        is_here = real in self._own_addresses or _is_here(real, port)
        if not any(each.leads_to(real, is_public=is_public(real), is_here=is_here) for each in entries):
            raise _not_led_to(outgoing)
        if is_here and await anyio.to_thread.run_sync(self._listening.is_of_a_backend, real, port):
            raise Refused(Reason.ADDRESS, f"another backend listens at {outgoing.destination}")


def _real(address: Address) -> Address:
    return getattr(address, "ipv4_mapped", None) or address


def _not_public(outgoing: Outgoing) -> Refused:
    where = "is at an address that is" if isinstance(outgoing.host, str) else "is"
    return Refused(Reason.ADDRESS, f"{outgoing.host} {where} not public, or of the gateway itself")


def _of_the_gateway(outgoing: Outgoing) -> Refused:
    return Refused(Reason.ADDRESS, f"{outgoing.destination} is of the gateway itself")


def _not_led_to(outgoing: Outgoing) -> Refused:
    """Without the address of a name: it is nothing for the program."""
    if isinstance(outgoing.host, str):
        return Refused(
            Reason.ADDRESS, f"{outgoing.host} leads to an address that is not public: its entry must name that"
        )
    return Refused(Reason.ADDRESS, f"{outgoing.destination} is an address that must be named by itself")


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
