"""WebServer: uvicorn in front of a node's application. Half of what a node imports is behind this module; `serve` has
it imported while the gateway opens."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import anyio
import uvicorn

from app.http.client_address import TrustedProxies
from app.http.edge.connections import ConnectionLimits, Connections, descriptors_for_connections
from app.http.edge.handshake import Handshake
from app.http.edge.http_protocol import HttpProtocol
from app.http.scope import BY_NODE, LET_IN
from app.http.transports.access_lines import AccessLines
from app.limits.descriptors import free_descriptor, soft_limit
from app.node.application import create_app
from app.node.certificate_files import CertificateFiles
from app.node.gateway import Gateway
from app.node.listeners import BACKLOG, take_all
from app.settings.settings import Settings
from app.telemetry import logs
from app.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between two looks whether clients have left
CLOSED_S = 0.01  # until the event loop has closed its own copy of the listeners: one iteration
LAST_RESPONSES_S = 5  # for writing responses that were cut off
TICKS_PER_SWEEP = 10  # of a tenth of a second each


class WebServer(uvicorn.Server):
    """uvicorn without its own signal handling: it would close the listeners before the drain."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, inside: Callable[..., asyncio.Protocol]
    ) -> None:
        """`inside` makes the protocol of the second listener, which other nodes of a fleet use."""
        super().__init__(config)
        self.listening = asyncio.Event()
        self.connections, self._inside = connections, inside

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        first, *inside = sockets or []
        await super().startup([first])
        for listener in inside:
            make = self._makers()[1]
            self.servers.append(await asyncio.get_running_loop().create_server(make, sock=listener, backlog=BACKLOG))
        self.listening.set()

    async def stop_listening(self) -> None:
        """Takes no new connections; open ones go on, and have been told to close after their next answer.

        Connections in the backlog are accepted first: closing a listener would reset them.
        """
        # One of each server; none where uvicorn has closed them, because it was told again to stop.
        listeners = [listener.dup() for server in self.servers for listener in server.sockets]
        for server in self.servers:
            server.close()
        await asyncio.sleep(CLOSED_S)
        waiting = [(make, take_all(each)) for make, each in zip(self._makers(), listeners, strict=False)]
        for make, connection in [(make, each) for make, taken in waiting for each in taken]:
            await asyncio.get_running_loop().connect_accepted_socket(make, connection)

    async def nodes_have_left(self, seconds: float) -> None:
        """Waits until no other node has a connection to this one, or the time is over. They close idle ones when they
        hear that this node leaves, and the others after their answers."""
        with anyio.move_on_after(seconds):
            while any(map(_is_of_a_node, self.server_state.connections)):  # noqa: ASYNC110 - once, at the end
                await anyio.sleep(CLOSED_S)

    async def clients_have_left(self, seconds: float) -> None:
        """Waits until no client keeps an idle connection, or the time is over. A client that uses one all the time has
        closed it by then; one that is cut in the moment it is used has an answer to miss."""
        with anyio.move_on_after(seconds):
            while self.connections.has_kept:  # noqa: ASYNC110 - once, at the end
                await anyio.sleep(LOOK_S)

    def _makers(self) -> tuple[Callable[[], asyncio.BaseProtocol], ...]:
        """What makes the protocol of a connection, for each listener."""
        options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        first = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return partial(first, **options), partial(self._inside, **options)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            self.connections.sweep()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(gateway: Gateway, lines: AccessLines, certificate: CertificateFiles | None) -> WebServer:
    """Serves the gateway, over TLS if there is a certificate."""
    connections = _connections(gateway.settings, gateway.metrics)
    plain = partial(HttpProtocol, connections=connections)
    over_tls = None if certificate is None else _over_tls(certificate, connections, gateway.metrics)
    config = uvicorn.Config(
        create_app(gateway, lines),
        http=cast("type[asyncio.Protocol]", over_tls or plain),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_RESPONSES_S,
    )
    return WebServer(config, connections, plain)


def _over_tls(
    certificate: CertificateFiles, connections: Connections, metrics: Metrics
) -> Callable[..., asyncio.BaseProtocol]:
    """The protocol of clients' connections."""
    metrics.tls_certificate_expires.set_function(lambda: certificate.expires_at)
    return partial(Handshake, http=HttpProtocol, context=lambda: certificate.context, connections=connections)


def _connections(settings: Settings, metrics: Metrics) -> Connections:
    """The limits of connections; fewer than MAX_CONNECTIONS where the limit on open files is too low for them."""
    descriptors, last_descriptor = descriptors_for_connections(soft_limit())
    limits = ConnectionLimits(
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        descriptors=descriptors,
        last_descriptor=last_descriptor,
    )
    thinned = logs.Thinned(log)

    def refused(reason: str, client: str, request: str) -> None:
        metrics.connections_refused.labels(reason).inc()
        fields = {"reason": reason, "client": client, **({"request": request} if request else {})}
        thinned.info(reason, "connection refused or ended", fields)

    connections = Connections(
        limits, TrustedProxies(settings.trusted_proxies), free_descriptor=free_descriptor, on_refused=refused
    )
    metrics.connections.set_function(connections.__len__)
    metrics.descriptors_lent.set_function(connections.lent)
    return connections


def _is_of_a_node(connection: Any) -> bool:
    """Whether another node has sent the last request on this connection of uvicorn's."""
    return connection.scope is not None and connection.scope.get(LET_IN) is BY_NODE
