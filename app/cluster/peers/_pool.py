"""PeerPool: the connections to one node. Free ones are kept for the next request. A request that finds none opens one,
or waits in line while enough others are being opened."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.cluster.peers._connection import Alarm, Deadlines, PeerConnection, PeerDistrusted, PeerUnreachable
from app.cluster.peers._queue import PeerLine
from app.concurrency.loop_timeout import loop_timeout
from app.errors import NodeUnavailable


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits for connections to other nodes. Each is a file descriptor on both sides, and a stream holds one."""

    open: int = 2048  # per node; above it requests are refused
    in_all: int = 8192  # to all nodes; above it requests are refused
    opening: int = 32  # per node, at a time; further requests wait for these, or for one that comes free
    waiting: int = 4096  # requests per node; above it they are refused
    idle: int = 256  # per node
    idle_s: float = 15.0  # the other node closes after 30 s: no request must run into that


class _Late(PeerUnreachable):
    """It did not answer in time. It may be alive: it or this machine may be busy."""


class PeerPool:
    """`greet` asks a new connection for the id of the node; `forget` is called when the pool is empty."""

    def __init__(  # noqa: PLR0913 - all but two are the same for all pools
        self,
        url: str,
        greet: Callable[[PeerConnection], Awaitable[str]],
        alarm: Alarm,
        limits: PoolLimits,
        deadlines: Deadlines,
        is_full: Callable[[], bool],
        forget: Callable[[], object],
    ) -> None:
        parts = urlsplit(url)
        self.is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self.is_tls else 80)
        self._netloc = parts.netloc.encode("ascii")
        self._greet, self._alarm, self._limits, self._deadlines = greet, alarm, limits, deadlines
        self._is_full, self._forget = is_full, forget
        self.open = dict[PeerConnection, str]()  # with the node at its end, once that is known
        self.idle = list[PeerConnection]()  # the last used one last
        self._opening = self._asking = 0
        self._line = PeerLine(limits.waiting, deadlines, self._keep)
        self._generation = 0  # grows with each `abort`

    @property
    def size(self) -> int:
        """The number of connections, including those being opened."""
        return len(self.open) + self._opening

    async def take(self, node: str, tls: ssl.SSLContext | None) -> PeerConnection:
        """A connection to this node, for one request. Raises PeerUnreachable, also if another node is at its end, and
        NodeUnavailable if too many are open or waited for, or from `greet`."""
        connection = self._idle_one()
        if connection is None:
            self._asking += 1
            try:
                connection = await self._another(tls)
            finally:
                self._asking -= 1
                self._forget_if_empty()
        if self.open.get(connection) != node:
            self._keep(connection)
            raise PeerUnreachable
        return connection

    async def _another(self, tls: ssl.SSLContext | None) -> PeerConnection:
        connection = await self._line.wait() if self._opening >= self._limits.opening else None
        if connection is None or not connection.is_usable():
            if self.size >= self._limits.open or self._is_full():
                raise NodeUnavailable("too many requests are under way to that node")
            try:
                connection = await self.connect(tls)
            except PeerUnreachable:
                connection = self._idle_one()  # one may have come free, if this node itself was late
                if connection is None:
                    raise
        return connection

    async def connect(self, tls: ssl.SSLContext | None) -> PeerConnection:
        """A new connection, after the greeting. Raises PeerUnreachable or NodeUnavailable; requests in line get the
        same error if no open connection could come free for them."""
        self._opening += 1
        try:
            connection = await self._connected(tls)
        except _Late:
            raise  # those in line have a timeout of their own
        except NodeUnavailable as error:
            if not any(self.open.values()):
                self._line.fail(error)
            raise
        finally:
            self._opening -= 1
            self._line.hand(None)
            self._forget_if_empty()
        return connection

    def retire(self) -> None:
        """Closes idle connections, of a node that is leaving; requests under way go on."""
        for connection in list(self.idle):
            connection.abort()

    def abort(self) -> None:
        """Closes all connections, also those being opened; requests in line get PeerUnreachable."""
        self._generation += 1
        self._line.fail(PeerUnreachable())
        for connection in list(self.open):
            connection.abort()

    def sweep(self, now: float) -> int:
        """Closes connections that were idle for too long, or whose answer is overdue; returns the number of these."""
        for connection in [each for each in self.idle if now - each.heard_at >= self._limits.idle_s]:
            connection.abort()
        return sum(connection.hurry(now, self._deadlines) for connection in list(self.open))

    async def _connected(self, tls: ssl.SSLContext | None) -> PeerConnection:
        loop, generation = asyncio.get_running_loop(), self._generation
        connection = PeerConnection(self._netloc, self._alarm, self._ready, self._lost)
        deadlines = self._deadlines
        try:
            async with loop_timeout(deadlines.connect_s if tls is None else deadlines.greet_s):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls)
            self.open[connection] = ""
            async with loop_timeout(deadlines.greet_s):
                node = await self._greet(connection)
            if connection not in self.open or generation != self._generation:
                raise PeerUnreachable
        except TimeoutError:
            connection.abort()
            raise _Late from None
        except ssl.SSLCertVerificationError as error:
            connection.abort()
            raise PeerDistrusted(f"its certificate is not trusted here: {error.verify_message}") from None
        except OSError:  # nobody listens, or TLS failed
            connection.abort()
            raise PeerUnreachable from None
        except BaseException:
            connection.abort()
            raise
        self.open[connection] = node
        return connection

    def _idle_one(self) -> PeerConnection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    def _ready(self, connection: PeerConnection) -> None:
        """Its answer is complete. After the greeting it belongs to the request that opened it."""
        self._line.heard()
        if self.open.get(connection):
            self._keep(connection)

    def _keep(self, connection: PeerConnection) -> None:
        if not connection.is_open():  # the kernel is asked before the next use
            connection.abort()
        elif not self._line.hand(connection):
            if len(self.idle) >= self._limits.idle:
                connection.abort()
            else:
                self.idle.append(connection)

    def _lost(self, connection: PeerConnection) -> None:
        self.open.pop(connection, None)
        if connection in self.idle:
            self.idle.remove(connection)
        self._forget_if_empty()

    def _forget_if_empty(self) -> None:
        if not self.size and not self._asking:
            self._forget()
