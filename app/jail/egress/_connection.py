"""One connection of a process: its request, the decision, the tunnel.

Bytes are copied by a task for each direction: a piece is read when the one before it has been accepted. So a reader
that is slow stops the sender, and costs the node one piece.
"""

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from app.domain.resources.destinations import Destination
from app.jail.egress._incoming import Beginning, ClientGone
from app.jail.egress.dialling import Dialler
from app.jail.egress.outgoing import Detour, Outgoing, Rule
from app.jail.egress.refusals import Reason, Refused
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics
from app.text.public_addresses import Address

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 16
HEAD_S = 10.0  # for the request to arrive
_GOODBYE_S = 2.0  # for a refusal to be read
_GOODBYE_BYTES = 1 << 20  # of what a refused client is still sending
_LEAST_PIECE_BYTES = 1024  # that a piece of it counts
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, so that a part is not taken for the whole


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections of a node share."""

    dialler: Dialler
    metrics: Metrics
    log: Thinned
    is_counted: bool = True
    detour: Detour | None = None

    async def connect(self, outgoing: Outgoing, entries: Sequence[Destination]) -> socket.socket:
        """A connection there. Raises Refused."""
        if self.detour is not None and self.detour.serves(outgoing):
            return await self.detour.connect(outgoing)
        return await self.dialler.connect(outgoing, entries=entries)


class Owner(Protocol):
    """The process that a connection is of."""

    def asks(self, host: Address | str, port: int) -> Outgoing:
        """What is asked for, completed by who asks."""

    def full(self) -> Reason | None:
        """Which limit its connections are over."""

    def note(self, outgoing: Outgoing, reason: Reason) -> None:
        """A connection was refused, or could not be made."""


class Tunnel:
    """Both directions of one connection. With `body_bytes` the client sends so many, and more or less is an error."""

    def __init__(
        self,
        client: socket.socket,
        destination: socket.socket,
        body_bytes: int | None,
        on_bytes: Callable[[int, int], None],
    ) -> None:
        self.active_at = time.monotonic()
        self._client, self._destination, self._body_bytes = client, destination, body_bytes
        self._on_bytes = on_bytes
        self._sent = self._received = 0  # since they were last counted

    async def run(self) -> bool:
        """Copies until both directions have ended, and leaves the sockets open.

        Returns False if one of them was cut off; closing the sockets then sends a reset.
        """
        try:
            async with anyio.create_task_group() as directions:
                directions.start_soon(self._send)
                await self._receive()
                if self._body_bytes is not None:  # nobody waits for the rest of it
                    directions.cancel_scope.cancel()
            return True
        except ExceptionGroup as group:
            for each in (self._client, self._destination):
                _reset(each)
            _, unexpected = group.split(OSError)
            if unexpected is not None:
                raise unexpected from None
            return False
        finally:
            self.count()

    def count(self) -> None:
        """Reports what was copied since the last time."""
        self._on_bytes(self._sent, self._received)
        self._sent = self._received = 0

    async def _send(self) -> None:
        if self._body_bytes is not None:
            await self._send_body(self._body_bytes)
            return
        while piece := await self._copy(self._client, self._destination, PIECE_BYTES):
            self._sent += piece
        _end(self._destination)

    async def _send_body(self, left: int) -> None:
        while left:
            piece = await self._copy(self._client, self._destination, min(left, PIECE_BYTES))
            if not piece:
                raise ConnectionAbortedError("the rest of the body will not come")
            self._sent += piece
            left -= piece
        if await asyncio.get_running_loop().sock_recv(self._client, 1):
            raise ConnectionAbortedError("the next request of plain HTTP, or nothing that was asked for")

    async def _receive(self) -> None:
        while piece := await self._copy(self._destination, self._client, PIECE_BYTES):
            self._received += piece
        _end(self._client)

    async def _copy(self, source: socket.socket, sink: socket.socket, most: int) -> int:
        """The size of the next piece, once it is accepted; 0 is the end. Raises OSError."""
        loop = asyncio.get_running_loop()
        piece = await loop.sock_recv(source, most)
        await loop.sock_sendall(sink, piece)
        self.active_at = time.monotonic()
        await asyncio.sleep(0)  # the next piece may be there already
        return len(piece)


def _reset(end: socket.socket) -> None:
    """Closing it will send a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _end(sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Connection:
    """Owns its sockets: they are closed when `serve` returns. To end it, cancel it."""

    def __init__(self, services: Services, client: socket.socket, beginning: Beginning, rule: Rule) -> None:
        self._services = services
        self._client = client
        self._beginning = beginning
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
        outgoing: Outgoing | None = None
        try:
            try:
                async with asyncio.timeout(HEAD_S):
                    request = await self._beginning.request()
            except TimeoutError:
                raise Refused(Reason.SLOW, f"the request did not arrive within {HEAD_S:.0f} s") from None
            outgoing = owner.asks(request.host, request.port)
            reason = owner.full()
            if reason is not None:
                raise Refused(reason)
            entries = await self._rule.permit(outgoing)
            self._destination = await self._services.connect(outgoing, entries)
            with contextlib.suppress(OSError):
                await self._begin(request.answer, request.first)
                await self._pass_on(request.body_bytes)
        except ClientGone:
            pass
        except Refused as refused:
            self._tell(refused, outgoing)
            if outgoing is not None:
                owner.note(outgoing, refused.reason)
            await self._refuse(self._beginning.refusal(refused))
        finally:
            self._client.close()
            if self._destination is not None:
                self._destination.close()

    async def _refuse(self, answer: bytes) -> None:
        if answer:
            await self._say_goodbye(answer)
        else:  # as near as can be to a connection that is refused
            _reset(self._client)

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
        self._tunnel = Tunnel(self._client, self._destination, body_bytes, self._copied)
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
