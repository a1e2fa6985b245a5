"""Onward: from what a process asks for to a connection, direct or through the HTTP proxy of the node.

That proxy resolves names itself. So a name is resolved here first, and must lead to public addresses only; one that has
no address here is the proxy's to find, unless it says of itself that it is of a private network. What an entry of
`allow` leads to is near, unless it is a public name on a port of the web.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from app.domain.resources.destinations import Destination
from app.jail.egress._incoming import Request
from app.jail.egress.dialling import Dialler
from app.jail.egress.http_proxies import MAX_ANSWER_BYTES, answer_of, forwarded_request, tunnel_request
from app.jail.egress.outgoing import WEB_PORTS, Outgoing
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address, parse_host

TUNNEL_S = 20.0  # within which the proxy has found the server, and connected to it
_PIECE_BYTES = 16384
_HTTP_PORT = 80
_NO_PROXY_OF_HTTP = "the gateway's own proxy does not answer as an HTTP proxy does"


class NodeProxy(Protocol):
    """The HTTP proxy through which the node reaches what is outside. As `auth.outbound_proxy.NodeProxy`."""

    @property
    def url(self) -> str:
        """Scheme, host and port."""

    @property
    def login(self) -> str | None:
        """NAME:PASSWORD."""

    def is_direct(self, host: Address | str) -> bool:
        """Whether this host is reached without it."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection, which the caller closes. `first` is to be sent there before all else, `answer` to the client."""

    connection: socket.socket
    answer: bytes
    first: bytes


class Onward:
    """Without a `proxy` every connection is direct."""

    def __init__(self, dialler: Dialler, proxy: NodeProxy | None = None) -> None:
        self._dialler, self._proxy = dialler, proxy

    async def reach(self, outgoing: Outgoing, entries: Sequence[Destination], request: Request) -> Reached:
        """Where this request is to go.

        Raises:
            Refused: it may not go there, or there is no connection.
        """
        proxy = self._proxy
        if proxy is None or _are_near(outgoing, entries) or proxy.is_direct(outgoing.host):
            connection = await self._dialler.connect(outgoing, entries=entries)
            return Reached(connection, request.answer, request.first)
        there = _at(proxy, outgoing)
        await self._require_public(outgoing, entries, there)
        connection = await self._to_proxy(there)
        try:
            if request.body_bytes is not None:  # plain HTTP, which many proxies give no tunnel for
                return Reached(connection, request.answer, forwarded_request(request.first, proxy.login))
            early = await _tunnel(connection, outgoing.destination, proxy.login)
        except BaseException:
            connection.close()
            raise
        return Reached(connection, request.answer + early, request.first)

    async def _require_public(self, outgoing: Outgoing, entries: Sequence[Destination], there: Outgoing) -> None:
        """Raises Refused: as for a direct connection, but for a name that only the proxy may know."""
        known: Sequence[Address] = ()
        if outgoing.port == there.port:  # who speaks to the proxy itself is not asked where to
            known = await self._addresses_of_proxy(there)

        def require_other(address: Address) -> None:
            if address in known:
                raise _is_the_proxy(outgoing)

        if (outgoing.host, outgoing.port) == (there.host, there.port):
            raise _is_the_proxy(outgoing)
        try:
            await self._dialler.addresses(outgoing, require_other, entries)
        except Refused as refused:
            is_private = isinstance(outgoing.host, str) and Destination(outgoing.port, outgoing.host).is_private_name
            if refused.reason is not Reason.NAME or is_private:
                raise

    async def _to_proxy(self, there: Outgoing) -> socket.socket:
        addresses = await self._addresses_of_proxy(there)
        try:
            return await self._dialler.dial(addresses, there)
        except Refused:
            raise _no_proxy() from None

    async def _addresses_of_proxy(self, there: Outgoing) -> Sequence[Address]:
        try:
            return await self._dialler.addresses(there, is_granted=True)
        except Refused:
            raise _no_proxy() from None


def _are_near(outgoing: Outgoing, entries: Sequence[Destination]) -> bool:
    """Whether an entry leads elsewhere than `web` would."""
    are_of_web = outgoing.port in WEB_PORTS and all(
        each.name and each.network is None and not each.is_private_name for each in entries
    )
    return bool(entries) and not are_of_web


def _at(proxy: NodeProxy, outgoing: Outgoing) -> Outgoing:
    """The proxy in the place of the destination."""
    parts = urlsplit(proxy.url)
    host = parse_host(parts.netloc.removesuffix(f":{parts.port}"))
    return replace(outgoing, host=host, port=parts.port or _HTTP_PORT)


def _no_proxy() -> Refused:
    """Where it is, is nothing for the program."""
    return Refused(Reason.PROXY, "the gateway's own proxy cannot be reached")


def _is_the_proxy(outgoing: Outgoing) -> Refused:
    return Refused(Reason.ADDRESS, f"{outgoing.destination} is of the gateway itself")


async def _tunnel(connection: socket.socket, destination: str, login: str | None) -> bytes:
    """Has the proxy connect to HOST:PORT. Returns what the server has sent already. Raises Refused."""
    loop, read = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(TUNNEL_S):
            await loop.sock_sendall(connection, tunnel_request(destination, login))
            while b"\r\n\r\n" not in read:
                piece = await loop.sock_recv(connection, _PIECE_BYTES)
                read += piece
                if not piece or len(read) > MAX_ANSWER_BYTES:
                    raise Refused(Reason.PROXY, _NO_PROXY_OF_HTTP)
                await asyncio.sleep(0)  # the next piece may be there already
    except TimeoutError:
        words = f"the gateway's own proxy did not connect to {destination} within {TUNNEL_S:.0f} s"
        raise Refused(Reason.PROXY, words) from None
    except OSError:
        raise Refused(Reason.PROXY, "the gateway's own proxy broke the connection") from None
    head, _, early = read.partition(b"\r\n\r\n")
    found = answer_of(head)
    if found is None:
        raise Refused(Reason.PROXY, _NO_PROXY_OF_HTTP)
    status, said = found
    if not 200 <= status < 300:
        raise Refused(Reason.PROXY, f"the gateway's own proxy does not connect to {destination} ({said})")
    return early
