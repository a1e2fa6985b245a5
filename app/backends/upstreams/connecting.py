"""Connector: connections to upstreams. Names are resolved, every address is checked, and a checked address is dialled;
TLS is verified for the name. Or a proxy resolves the name and connects, if there is one: then its address is checked. A
redirect never leads to another server (`_statuses.py`).
"""

import asyncio
import contextlib
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpcore2

from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import OutboundUrl, Policy, UrlRefused, parse_url
from app.backends.checks.steps import Steps
from app.backends.upstreams.proxies import NoTunnel, tunnel
from app.backends.upstreams.tls import MAYBE_GIVE_ONE, TlsContexts, is_about_certificate, words_of
from app.domain.resources.backends import Connect
from app.jail.egress.dialling import Dialler
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Refused
from app.text.public_addresses import Address, parse_host

TLS_S = 10.0  # for a handshake
MAX_OF_TENANT, MAX_OF_NODE = 512, 2048  # connections
WRITE_S = 30.0  # without a byte accepted
_READ_BYTES = 64 << 10
LINES_A_READ = 256  # more that have come are read after a turn of the loop: each may be a chunk, or end an event
MAX_HEAD_LINES = 1024  # of an answer, with those of interim answers before it
# A peer that is gone without a word is noticed after two minutes: streams may be silent for longer.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class CannotConnect(Exception):
    """No connection, in words. `is_refused`: it is not allowed, so that another attempt makes no difference. `hint`:
    what an administrator can do."""

    def __init__(
        self, message: str, *, is_refused: bool = False, is_full: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.is_refused, self.is_full, self.hint = is_refused, is_full, hint


_DIRECT = Connect()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream is, whose backend asks for it, and how it is connected to, with its secrets open."""

    url: OutboundUrl
    tenant: str
    backend: str
    connect: Connect = _DIRECT

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy reads the requests and forwards them, instead of what goes through it being closed to it."""
        return self.connect.proxy is not None and self.url.scheme == "http"

    def outgoing(self, url: OutboundUrl) -> Outgoing:
        """For the guard."""
        return Outgoing(self.tenant, self.backend, "", url.literal or parse_host(url.host), url.port)


@dataclass(frozen=True, slots=True)
class _Hop:
    """The proxy of a connection."""

    url: OutboundUrl
    connect: Connect  # what it is asked with
    words: str


# To a connection: with a proxy the first two are to it; the last two only with https.
STEPS = ("resolve", "connect", "proxy", "tls")


class Connector:
    """Connects to upstreams, under limits of each tenant and of the node. `proxy`: for backends without one."""

    def __init__(
        self, dialler: Dialler, policy: Policy, tls: TlsContexts | None = None, proxy: NodeProxy | None = None
    ) -> None:
        self._dialler, self._policy, self._tls, self._proxy = dialler, policy, tls or TlsContexts(), proxy
        self._open = Counter[str]()

    @property
    def open(self) -> int:
        """Connections, of all tenants."""
        return self._open.total()

    async def connect(self, place: Place, steps: Steps | None = None) -> "Connection":
        """A connection; the caller closes it.

        Raises:
            CannotConnect: it is not allowed, or there is none.
        """
        self._require_room(place.tenant)
        self._open[place.tenant] += 1
        try:
            return await self._connect(place, Steps() if steps is None else steps)
        except BaseException as error:
            self._closed(place.tenant)
            if isinstance(error, UrlRefused):
                raise CannotConnect(str(error), is_refused=True) from None
            if isinstance(error, Refused):
                raise CannotConnect(str(error)) from None
            raise

    def _require_room(self, tenant: str) -> None:
        if self._open[tenant] >= MAX_OF_TENANT:
            raise CannotConnect(f"{MAX_OF_TENANT} connections to servers are open for this tenant", is_full=True)
        if self.open >= MAX_OF_NODE:
            raise CannotConnect(f"{MAX_OF_NODE} connections to servers are open on this node", is_full=True)

    def _closed(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]

    async def _connect(self, place: Place, steps: Steps) -> "Connection":
        hop = self._hop(place)
        if hop is not None:
            await self._require_by_proxy(place)
        dialled = await self._dialled(place, hop, steps)
        try:
            keep_alive(dialled)
            if hop is None:
                reader, writer = await self._direct(dialled, place, steps)
            else:
                reader, writer = await self._by_proxy(dialled, place, hop, steps)
        except BaseException:
            dialled.close()
            raise
        return Connection(reader, writer, lambda: self._closed(place.tenant), partial(_refusal_in, place))

    def _hop(self, place: Place) -> "_Hop | None":
        own, nodes = place.connect, self._proxy
        if own.proxy is not None:
            return _Hop(parse_url(own.proxy), own, "its proxy")
        if nodes is None or not nodes.serves(place.url):
            return None
        by_platform = Connect(proxy=nodes.url, proxy_auth=nodes.login, proxy_is_granted=True)
        return _Hop(parse_url(nodes.url), by_platform, "the gateway's proxy")

    async def _require_by_proxy(self, place: Place) -> None:
        """Raises UrlRefused, Refused: the server may not be reached by a proxy."""
        url, outgoing = place.url, place.outgoing(place.url)
        self._policy.require_by_proxy(url, is_granted=place.connect.proxy_is_granted)
        if url.literal is None:
            await self._dialler.require_elsewhere(outgoing)
        else:
            await self._dialler.addresses(outgoing)

    async def _dialled(self, place: Place, hop: "_Hop | None", steps: Steps) -> socket.socket:
        """A connection to the server, or to the proxy."""
        url, is_granted = (place.url, False) if hop is None else (hop.url, hop.connect.proxy_is_granted)
        outgoing = place.outgoing(url)

        def require(address: Address) -> None:
            if not is_granted:
                self._policy.require(address, url)

        try:
            with steps.timed("resolve"):
                addresses = await self._dialler.addresses(outgoing, require, is_granted=is_granted)
            with steps.timed("connect"):
                return await self._dialler.dial(addresses, outgoing)
        except (Refused, UrlRefused) as error:
            if hop is None:
                raise
            words = f"{hop.words} cannot be reached: {error}"
            raise CannotConnect(words, is_refused=isinstance(error, UrlRefused)) from None

    async def _direct(self, dialled: socket.socket, place: Place, steps: Steps) -> "_Streams":
        if place.url.scheme == "http":
            return await self._opened(dialled, None, place.url.host, place.connect)
        with steps.timed("tls"):
            return await self._opened(dialled, await self._tls.of(place.connect), place.url.host, place.connect)

    async def _by_proxy(self, dialled: socket.socket, place: Place, hop: "_Hop", steps: Steps) -> "_Streams":
        with steps.timed("proxy"):
            under = await self._at_proxy(dialled, place, hop)
        if place.is_forwarded:
            return under
        try:
            with steps.timed("tls"):
                tls = await self._tls.of(place.connect)
                reader, writer = await self._opened(under[1].transport, tls, place.url.host, place.connect)
        except BaseException:
            under[1].transport.abort()
            raise
        reader.keep(under[1])
        return reader, writer

    async def _at_proxy(self, dialled: socket.socket, place: Place, hop: "_Hop") -> "_Streams":
        """Streams to the proxy, which has connected to the server if it is to be a tunnel."""
        of_proxy = Connect(ca=hop.connect.ca)
        tls = await self._tls.of(of_proxy) if hop.url.scheme == "https" else None
        streams = await self._opened(dialled, tls, hop.url.host, of_proxy)
        if place.is_forwarded:
            return streams
        try:
            await tunnel(*streams, place.outgoing(place.url).destination, hop.connect)
        except BaseException as error:
            streams[1].transport.abort()
            if isinstance(error, NoTunnel):
                raise CannotConnect(f"{hop.words} {hop.url.authority} {error}", hint=error.hint) from None
            raise
        return streams

    async def _opened(
        self, under: socket.socket | asyncio.WriteTransport, tls: ssl.SSLContext | None, host: str, connect: Connect
    ) -> "_Streams":
        """Streams over a socket, or over what goes through a proxy, with TLS if there is a context."""
        try:
            async with asyncio.timeout(TLS_S):
                return await _streams(under, tls, host)
        except TimeoutError:
            raise CannotConnect(f"{host} did not answer the TLS handshake within {TLS_S:.0f} s") from None
        except ssl.SSLError as error:
            words, hint = words_of(error, host, connect)
            raise CannotConnect(words, hint=hint) from None
        except OSError as error:
            hint = MAYBE_GIVE_ONE if connect.certificate is None else None
            words = f"{host} closed the connection in the TLS handshake: {error.strerror or type(error).__name__}"
            raise CannotConnect(words, hint=hint) from None


async def _streams(under: socket.socket | asyncio.WriteTransport, tls: ssl.SSLContext | None, host: str) -> "_Streams":
    loop, reader = asyncio.get_running_loop(), Reader(limit=_READ_BYTES)
    protocol, seconds = asyncio.StreamReaderProtocol(reader), None if tls is None else TLS_S + 1
    transport: asyncio.Transport | None
    if isinstance(under, socket.socket):
        transport, _ = await loop.create_connection(
            lambda: protocol, sock=under, ssl=tls, server_hostname=host if tls is not None else None,
            ssl_handshake_timeout=seconds,
        )  # fmt: skip
    else:
        assert tls is not None
        transport = await loop.start_tls(under, protocol, tls, server_hostname=host, ssl_handshake_timeout=seconds)
        if transport is None:
            raise ConnectionResetError
        protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _refusal_in(place: Place, error: BaseException) -> CannotConnect | None:
    """In TLS 1.3 a server refuses the client's certificate after the handshake, and with it every request."""
    if not (isinstance(error, ssl.SSLError) and is_about_certificate(error)):
        return None
    words, hint = words_of(error, place.url.host, place.connect)
    return CannotConnect(words, hint=hint)


def keep_alive(connection: socket.socket) -> None:
    """Has the kernel notice a peer that is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Reader(asyncio.StreamReader):
    """What has come before a reset is read before the reset is told: a server that refuses a request by its head closes
    while the body is still being sent, and its answer counts."""

    broken: BaseException | None = None
    _under: asyncio.StreamWriter | None = None

    def set_exception(self, exc: BaseException) -> None:
        self.broken = exc
        self.feed_eof()

    def keep(self, under: asyncio.StreamWriter) -> None:
        """As long as there is this one: a writer that is forgotten closes what it writes to, a tunnel here."""
        self._under = under


_Streams = tuple[Reader, asyncio.StreamWriter]


class Connection(httpcore2.AsyncNetworkStream):
    """One connection, with TLS already where it is needed."""

    def __init__(
        self,
        reader: Reader,
        writer: asyncio.StreamWriter,
        on_closed: Callable[[], None],
        refusal_in: Callable[[BaseException], CannotConnect | None] = lambda _: None,
    ) -> None:
        """`refusal_in`: why the server wants no connection, if that is what the end of this one says."""
        self._reader, self._writer, self._on_closed, self._refusal_in = reader, writer, on_closed, refusal_in
        self._is_closed = False
        self._unread = b""  # of what has come
        self._head_lines: int | None = 0  # so far; None within a body
        self._is_cut = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As httpcore2 wants it: a few lines at once, with a turn of the loop before each, as what has come is there
        without waiting. The socket is not read on while nobody asks."""
        if not self._unread:
            self._unread = await self._received(max_bytes, timeout)
        await asyncio.sleep(0)
        size = few_lines(self._unread) if self._is_cut else len(self._unread)
        data, self._unread = self._unread[:size], self._unread[size:]
        if self._head_lines is not None:
            self._head_lines += data.count(b"\n")
            if self._head_lines > MAX_HEAD_LINES:
                raise httpcore2.RemoteProtocolError(f"more than {MAX_HEAD_LINES} lines of headers and interim answers")
        return data

    def head_was_read(self, *, is_cut: bool) -> None:
        """A body follows. `is_cut`: something is done for each of its lines."""
        self._head_lines, self._is_cut = None, is_cut

    async def _received(self, max_bytes: int, timeout: float | None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                data = await self._reader.read(max_bytes)
        except TimeoutError:
            raise httpcore2.ReadTimeout from None
        broken = self._reader.broken
        if not data and broken is not None:
            refusal = self._refusal_in(broken)
            raise httpcore2.ReadError(str(broken)) if refusal is None else httpcore2.ConnectError(refusal)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As httpcore2 wants it."""
        if self._writer.is_closing():
            raise httpcore2.WriteError("the connection is closed")
        self._head_lines, self._is_cut = 0, True
        try:
            async with asyncio.timeout(WRITE_S if timeout is None else timeout):
                self._writer.write(buffer)
                await self._writer.drain()
        except TimeoutError:
            raise httpcore2.WriteTimeout from None
        except (OSError, ssl.SSLError) as error:
            raise httpcore2.WriteError(str(error)) from None

    async def aclose(self) -> None:
        """Closes it at once, without a goodbye in TLS: a peer that does not read could hold it up. Idempotent."""
        self.abort()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """As `aclose`, without waiting for the loop to have done it."""
        if not self._is_closed:
            self._is_closed = True
            self._writer.transport.abort()
            self._on_closed()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """It has TLS already."""
        return self

    def get_extra_info(self, info: str) -> Any:
        """Whether an idle connection is of no use any more."""
        if info != "is_readable":
            return None
        return bool(self._unread) or self._writer.is_closing() or self._reader.at_eof() or self._is_left()

    def _is_left(self) -> bool:
        """Whether the server has closed it: asked of the kernel, as this node's loop may not have looked yet."""
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))


def few_lines(data: bytes) -> int:
    """The bytes of the first LINES_A_READ lines, or of all."""
    if data.count(b"\n") <= LINES_A_READ:
        return len(data)
    end = 0
    for _ in range(LINES_A_READ):
        end = data.index(b"\n", end) + 1
    return end


class Network(httpcore2.AsyncNetworkBackend):
    """The connections of one upstream session. The first one may be made before it is needed (`prepare`)."""

    def __init__(self, connector: Connector, place: Place) -> None:
        self._connector, self._place = connector, place
        self._prepared: Connection | None = None

    async def prepare(self, steps: Steps | None = None) -> None:
        """Makes a connection for the first request. Raises CannotConnect."""
        self._prepared = await self._connector.connect(self._place, steps)

    def forget(self) -> None:
        """Closes the connection that was prepared, unless it has been used."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.abort()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the upstream, whatever the host."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            if not prepared.get_extra_info("is_readable"):
                return prepared
            prepared.abort()
        try:
            return await self._connector.connect(self._place)
        except CannotConnect as error:
            raise httpcore2.ConnectError(error) from error

    async def sleep(self, seconds: float) -> None:
        """As httpcore2 wants it; there are no retries."""
        await asyncio.sleep(seconds)
