"""Connector: connections to upstreams. Names are resolved, every address is checked, and a checked address is dialled;
TLS is verified for the name. No proxies; a redirect never leads to another server (`statuses.py`).
"""

import asyncio
import contextlib
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import httpcore2
import httpx2

from app.auth.outbound_urls import OutboundUrl, Policy, UrlRefused
from app.backends.checks.steps import Steps
from app.jail.egress.dialling import Dialler
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Refused
from app.text.public_addresses import parse_host

TLS_S = 10.0  # for a handshake
MAX_OF_TENANT, MAX_OF_NODE = 512, 2048  # connections
WRITE_S = 30.0  # without a byte accepted
_READ_BYTES = 64 << 10
LINES_A_READ = 256  # more that have come are read after a turn of the loop: each may be a chunk, or end an event
MAX_HEAD_LINES = 1024  # of an answer, with those of interim answers before it
# A peer that is gone without a word is noticed after two minutes: streams may be silent for longer.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class CannotConnect(Exception):
    """No connection, in words. `is_refused`: it is not allowed, so that another attempt makes no difference."""

    def __init__(self, message: str, *, is_refused: bool = False, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_refused, self.is_full = is_refused, is_full


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream is, and whose backend asks for it."""

    url: OutboundUrl
    tenant: str
    backend: str


STEPS = ("resolve", "connect", "tls")  # to a connection; the last one only with https


class Connector:
    """Connects to upstreams, under limits of each tenant and of the node.

    `tls`: by default the certificate authorities of this machine, read with the first connection.
    """

    def __init__(self, dialler: Dialler, policy: Policy, tls: ssl.SSLContext | None = None) -> None:
        self._dialler, self._policy, self._tls = dialler, policy, tls
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
        url = place.url
        outgoing = Outgoing(place.tenant, place.backend, "", url.literal or parse_host(url.host), url.port)
        with steps.timed("resolve"):
            addresses = await self._dialler.addresses(outgoing, lambda address: self._policy.require(address, url))
        with steps.timed("connect"):
            dialled = await self._dialler.dial(addresses, outgoing)
        try:
            keep_alive(dialled)
            if url.scheme == "https":
                with steps.timed("tls"):
                    reader, writer = await self._opened(dialled, await self.tls_context(), url.host)
            else:
                reader, writer = await self._opened(dialled, None, url.host)
        except BaseException:
            dialled.close()
            raise
        return Connection(reader, writer, lambda: self._closed(place.tenant))

    async def _opened(
        self, dialled: socket.socket, tls: ssl.SSLContext | None, host: str
    ) -> "tuple[Reader, asyncio.StreamWriter]":
        name = host if tls is not None else None
        try:
            async with asyncio.timeout(TLS_S):
                loop, reader = asyncio.get_running_loop(), Reader(limit=_READ_BYTES)
                protocol = asyncio.StreamReaderProtocol(reader)
                transport, _ = await loop.create_connection(
                    lambda: protocol, sock=dialled, ssl=tls, server_hostname=name,
                    ssl_handshake_timeout=None if tls is None else TLS_S + 1,
                )  # fmt: skip
                return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        except TimeoutError:
            raise CannotConnect(f"{host} did not answer the TLS handshake within {TLS_S:.0f} s") from None
        except ssl.SSLCertVerificationError as error:
            raise CannotConnect(f"the certificate of {host} is not accepted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise CannotConnect(f"{host} does not speak TLS as it should: {error.reason}") from None
        except OSError as error:
            raise CannotConnect(f"{host} closed the connection in the TLS handshake: {error.strerror}") from None

    async def tls_context(self) -> ssl.SSLContext:
        """For all connections. Reading the certificate authorities takes 90 ms, too long for the event loop."""
        if self._tls is None:
            self._tls = await anyio.to_thread.run_sync(httpx2.create_ssl_context)
        return self._tls


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

    def set_exception(self, exc: BaseException) -> None:
        self.broken = exc
        self.feed_eof()


class Connection(httpcore2.AsyncNetworkStream):
    """One connection, with TLS already where it is needed."""

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter, on_closed: Callable[[], None]) -> None:
        self._reader, self._writer, self._on_closed = reader, writer, on_closed
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
        if not data and self._reader.broken is not None:
            raise httpcore2.ReadError(str(self._reader.broken))
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
