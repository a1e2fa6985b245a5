"""ByProxy: the connections of npm and uv to registries, led through the node's HTTP proxy."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread

from app.auth.outbound_proxy import NodeProxy, client_context
from app.auth.outbound_urls import OutboundUrl, parse_url
from app.backends.packages.registries import Source
from app.backends.upstreams.proxies import NoTunnel, tunnel
from app.domain.resources.backends import Connect
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Reason, Refused

CONNECT_S = 10.0  # to the proxy, with TLS
_PIECE_BYTES = 64 << 10

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ByProxy:
    """Fulfils `jail.egress.outgoing.Detour`. Used as `async with`: leaving the block ends every connection. The proxy
    itself is where the settings say: nobody checks its address."""

    def __init__(self, proxy: NodeProxy, ca: str | None, source: Source) -> None:
        self._proxy, self._ca, self._source = proxy, ca, source
        self._tasks: anyio.abc.TaskGroup | None = None
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._tasks = await self._resources.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._resources.aclose()

    def serves(self, outgoing: Outgoing) -> bool:
        """As the node's proxy: only what is reached by https, and not what its settings except."""
        scheme = "http" if (str(outgoing.host), outgoing.port) in self._source.plain else "https"
        return self._proxy.serves(OutboundUrl(scheme, str(outgoing.host), outgoing.port, outgoing.destination, "/"))

    async def connect(self, outgoing: Outgoing) -> socket.socket:
        """A connection to what the proxy connects to. Raises Refused."""
        self._require_elsewhere(outgoing)
        far = await self._tunnelled(outgoing)
        theirs, ours = socket.socketpair()
        theirs.setblocking(False)
        try:
            near = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            far[1].transport.abort()
            theirs.close()
            ours.close()
            raise
        if self._tasks is None:
            for _, writer in (far, near):
                writer.transport.abort()
            theirs.close()
            raise Refused(Reason.UNREACHABLE, f"{outgoing.destination}: the installation has ended")
        self._tasks.start_soon(_pass_on, far, near)
        return theirs

    def _require_elsewhere(self, outgoing: Outgoing) -> None:
        """Of a name that the proxy resolves nobody here knows the address: what a registry names for its files must be
        public, as far as a name can say that. Raises Refused."""
        host = str(outgoing.host)
        if (host, outgoing.port) in self._source.places:
            return
        if "." not in host or f".{host}".endswith(".localhost"):
            raise Refused(Reason.ADDRESS, f"{outgoing.destination} means something else behind a proxy")

    async def _tunnelled(self, outgoing: Outgoing) -> _Streams:
        url = parse_url(self._proxy.url)
        try:
            tls = await anyio.to_thread.run_sync(client_context, self._ca) if url.scheme == "https" else None
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(url.host, url.port, ssl=tls)
        except OSError as error:
            words = f"the gateway's proxy {url.authority} cannot be reached: {str(error) or 'it does not answer'}"
            raise Refused(Reason.UNREACHABLE, words) from None
        try:
            await tunnel(*streams, outgoing.destination, Connect(proxy=self._proxy.url, proxy_auth=self._proxy.login))
        except BaseException as error:
            streams[1].transport.abort()
            if isinstance(error, NoTunnel):
                raise Refused(Reason.UNREACHABLE, f"the gateway's proxy {url.authority} {error}") from None
            raise
        return streams


async def _pass_on(far: _Streams, near: _Streams) -> None:
    """Until both directions have ended, or one has failed."""
    try:
        async with anyio.create_task_group() as directions:
            directions.start_soon(_copy, far[0], near[1], directions.cancel_scope)
            directions.start_soon(_copy, near[0], far[1], directions.cancel_scope)
    finally:
        for _, writer in (far, near):
            writer.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: anyio.CancelScope) -> None:
    try:
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
    except OSError:  # who waits at the other end sees that it has ended
        both.cancel()
        return
    end: Callable[[], None] = sink.write_eof if sink.can_write_eof() else sink.close
    end()
