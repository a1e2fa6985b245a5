"""One connection of a process: its request, the decision, the tunnel."""

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import Protocol

from app.egress.copying import Copier, Tunnel
from app.egress.dialling import Dialler
from app.egress.incoming import ClientGone, Incoming
from app.egress.outgoing import Outgoing, Rule
from app.egress.refusals import Reason, Refused
from app.logs import Thinned
from app.metrics import Metrics
from app.public_addresses import Address

logger = logging.getLogger(__name__)

HEAD_S = 10.0  # for the request to arrive
_GOODBYE_S = 2.0  # for a refusal to be read
_GOODBYE_BYTES = 1 << 20  # of what a refused client is still sending
_LEAST_PIECE_BYTES = 1024  # that a piece of it counts


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections of a node share."""

    dialler: Dialler
    copier: Copier
    metrics: Metrics
    log: Thinned
    is_counted: bool = True


class Owner(Protocol):
    """The process that a connection is of."""

    def asks(self, host: Address | str, port: int) -> Outgoing:
        """What is asked for, completed by who asks."""

    def full(self) -> Reason | None:
        """Which limit its connections are over."""

    def note(self, outgoing: Outgoing, reason: Reason) -> None:
        """A connection was refused, or could not be made."""


class Connection:
    """Owns its sockets: they are closed when `serve` returns. To end it, cancel it."""

    def __init__(self, services: Services, client: socket.socket, rule: Rule) -> None:
        self._services = services
        self._client = client
        self._rule = rule
        self._destination: socket.socket | None = None
        self._tunnel: Tunnel | None = None

    @property
    def active_at(self) -> float | None:
        """When bytes last went through it; None before it is a tunnel: then it has deadlines of its own."""
        return None if self._tunnel is None else self._tunnel.active_at

    def count(self) -> None:
        """Adds what was copied meanwhile to the metrics."""
        if self._tunnel is not None:
            self._tunnel.count()

    async def serve(self, owner: Owner) -> None:
        """From the first byte to the last."""
        incoming = Incoming(self._client)
        outgoing: Outgoing | None = None
        try:
            try:
                async with asyncio.timeout(HEAD_S):
                    request = await incoming.request()
            except TimeoutError:
                raise Refused(Reason.SLOW, f"the request did not arrive within {HEAD_S:.0f} s") from None
            outgoing = owner.asks(request.host, request.port)
            reason = owner.full()
            if reason is not None:
                raise Refused(reason)
            await self._rule.permit(outgoing)
            self._destination = await self._services.dialler.connect(outgoing)
            with contextlib.suppress(OSError):
                await self._begin(request.answer, request.first)
                await self._pass_on(request.body_bytes)
        except ClientGone:
            pass
        except Refused as refused:
            self._tell(refused, outgoing)
            if outgoing is not None:
                owner.note(outgoing, refused.reason)
            await self._say_goodbye(incoming.refusal(refused))
        finally:
            self._client.close()
            if self._destination is not None:
                self._destination.close()

    async def _begin(self, answer: bytes, first: bytes) -> None:
        assert self._destination is not None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(HEAD_S):
            if answer:
                await loop.sock_sendall(self._client, answer)
            if first:
                await loop.sock_sendall(self._destination, first)

    async def _pass_on(self, body_bytes: int | None) -> None:
        assert self._destination is not None
        self._tunnel = Tunnel(self._services.copier, self._client, self._destination, body_bytes, self._copied)
        is_complete = await self._tunnel.run()
        if is_complete and body_bytes:
            await self._say_goodbye()  # the answer may have come before the end of the body

    def _copied(self, sent: int, received: int) -> None:
        metrics = self._services.metrics
        if not self._services.is_counted:
            return
        metrics.egress_bytes.labels("sent").inc(sent)
        metrics.egress_bytes.labels("received").inc(received)

    def _tell(self, refused: Refused, outgoing: Outgoing | None) -> None:
        if not self._services.is_counted:
            return
        self._services.metrics.egress_refusals.labels(refused.reason.label).inc()
        if outgoing is None:
            return
        self._services.log.info(
            (outgoing.tenant, outgoing.backend, refused.reason),
            "Refused a connection of a backend",
            {
                "backend": outgoing.backend,
                "backend_tenant": outgoing.tenant,
                "backend_process": outgoing.process,
                "destination": outgoing.destination,
                "reason": refused.reason.label,
            },
        )

    async def _say_goodbye(self, answer: bytes = b"") -> None:
        """Closing while the client still sends would reset the connection, and the answer might be lost."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_GOODBYE_S):
                await loop.sock_sendall(self._client, answer)
                self._client.shutdown(socket.SHUT_WR)
                size = 0
                while size < _GOODBYE_BYTES and (piece := await loop.sock_recv(self._client, 65536)):
                    size += max(len(piece), _LEAST_PIECE_BYTES)
                    await asyncio.sleep(0)  # the next piece may be there already
