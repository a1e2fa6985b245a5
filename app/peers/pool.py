"""PeerPool: the connections to one node. Those that are free are kept for the next request; whoever finds none waits
in line while as many as may be are being opened."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.errors import NodeUnavailable
from app.patience import patience
from app.peers.connection import Alarm, Deadlines, PeerConnection, PeerUnreachable
from app.peers.queue import PeerLine


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of the connections to other nodes; each is a file descriptor on both sides, and a stream holds one."""

    open: int = 2048  # per node; above it requests are refused
    in_all: int = 8192  # likewise
    opening: int = 32  # per node, at a time; what comes meanwhile waits for these, or for one that comes free
    waiting: int = 4096  # per node; above it requests are refused
    idle: int = 256  # per node
    idle_s: float = 15.0  # the other node closes after 30 s: a request must never meet that


class _Late(PeerUnreachable):
    """It has not answered in time. It may be well all the same: it or this machine is busy."""


Greet = Callable[[PeerConnection], Awaitable[str]]  # asks which node is there


class PeerPool:
    """Opens connections when there is none to be had. `forget` is called when there are none left."""

    def __init__(  # noqa: PLR0913 - what is the same for all pools comes from one place
        self,
        url: str,
        greet: Greet,
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
        self.open = dict[PeerConnection, str]()  # and which node is at its end, once that is known
        self.idle = list[PeerConnection]()  # the one used last stands last
        self._opening = self._asking = 0
        self._line = PeerLine(limits.waiting, deadlines, self._keep)
        self._generation = 0  # grows when all that there are must go

    @property
    def size(self) -> int:
        """How many connections there are, those being made included."""
        return len(self.open) + self._opening

    async def take(self, node: str, tls: ssl.SSLContext | None) -> PeerConnection:
        """A connection to this node, for one request.

        Raises:
            PeerUnreachable: there is none, or the node at its end is another.
            NodeUnavailable: as many as may be are open, or waited for; or what `greet` raises.
        """
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
                raise NodeUnavailable("as many requests as may be are under way to that node")
            try:
                connection = await self.connect(tls)
            except PeerUnreachable:
                connection = self._idle_one()  # one may have come free: on a busy node it is we who are late
                if connection is None:
                    raise
        return connection

    async def connect(self, tls: ssl.SSLContext | None) -> PeerConnection:
        """A new connection, whose other end has said which node it is.

        Raises:
            PeerUnreachable, NodeUnavailable: there is none to be had. Where that is certain, and none is open that
            could come free, whoever waits in line hears the same.
        """
        self._opening += 1
        try:
            connection = await self._connected(tls)
        except _Late:
            raise  # the others have a patience of their own
        except NodeUnavailable as error:
            if not any(self.open.values()):  # none that could come free
                self._line.fail(error)
            raise
        finally:
            self._opening -= 1
            self._line.hand(None)
            self._forget_if_empty()
        return connection

    def retire(self) -> None:
        """The node leaves: closes what is idle; what is under way ends when it is answered."""
        for connection in list(self.idle):
            connection.abort()

    def abort(self) -> None:
        """Closes all of them, and those that are being opened as soon as they are; who waits is told."""
        self._generation += 1
        self._line.fail(PeerUnreachable())
        for connection in list(self.open):
            connection.abort()

    def sweep(self, now: float) -> int:
        """Closes what was idle for too long, and what has let its time pass: how many of those."""
        for connection in [each for each in self.idle if now - each.heard_at >= self._limits.idle_s]:
            connection.abort()
        return sum(connection.hurry(now, self._deadlines) for connection in list(self.open))

    async def _connected(self, tls: ssl.SSLContext | None) -> PeerConnection:
        loop, generation = asyncio.get_running_loop(), self._generation
        connection = PeerConnection(self._netloc, self._alarm, self._ready, self._lost)
        deadlines = self._deadlines
        try:
            async with patience(deadlines.connect_s if tls is None else deadlines.greet_s):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls)
            self.open[connection] = ""
            async with patience(deadlines.greet_s):
                node = await self._greet(connection)
            if connection not in self.open or generation != self._generation:
                raise PeerUnreachable
        except TimeoutError:
            connection.abort()
            raise _Late from None
        except OSError:  # nobody listens, or TLS does not like what is there
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
        """Its answer is complete; where that was the greeting, whoever has opened it takes it."""
        self._line.heard()
        if self.open.get(connection):
            self._keep(connection)

    def _keep(self, connection: PeerConnection) -> None:
        if not connection.is_open():  # whoever takes it next asks the kernel
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
