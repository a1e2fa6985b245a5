"""PeerClient: HTTP to the other nodes, over connections that are kept. It decides nothing about sessions."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

from app.errors import NodeUnavailable
from app.routing.peer_connection import Alarm, PeerConnection, PeerLost, PeerResponse, RawHeaders

__all__ = ["PeerClient", "PeerLost", "PeerResponse", "PeerUnreachable"]

CONNECT_S = 0.5  # nodes are near each other
PROBE_S = 0.5  # design: an owner that does not answer for so long may be replaced once its lease has lapsed
IDLE_S = 15.0  # the peer closes after 30 s: a request must never meet that
MAX_IDLE = 256  # a file descriptor each on both sides; a new connection costs as much as three calls
MAX_OPEN = 2048  # per peer, streams included; above it requests are refused
PROBE_PATH, CHALLENGE, PROOF = b"/internal/node", b"trunkline-challenge", b"trunkline-node"

# A host that vanishes says nothing: what is not acknowledged for so long is lost, and silence is asked after.
_USER_TIMEOUT_MS, _KEEPIDLE_S, _KEEPINTVL_S, _KEEPCNT = 10_000, 5, 2, 3


class PeerUnreachable(NodeUnavailable):
    """The other node cannot be connected to; nothing was sent."""


class Prover(Protocol):
    """How a node is told from another process at its address."""

    def challenge(self) -> bytes:
        """A question only a node understands."""

    def node_of(self, challenge: bytes, proof: bytes) -> str | None:
        """The id of the node that answered; None where no node did."""


class PeerClient:
    """All connections of this node to others; `aclose` closes them."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._peers: dict[str, _Peer] = {}
        self._alarm = Alarm()
        self._is_closed = False

    def __repr__(self) -> str:
        peers = self._peers.values()
        is_open, idle = sum(peer.size for peer in peers), sum(len(peer.idle) for peer in peers)
        return f"<PeerClient [{len(peers)} peers, {is_open} open, {idle} idle]>"

    async def send(self, url: str, method: str, target: bytes, headers: RawHeaders, body: bytes = b"") -> PeerResponse:
        """Sends a request to the node at this URL and waits for the head of its answer, however long that takes.

        A GET whose connection turns out to be dead is sent once more on a new one; nothing else ever is.

        Raises:
            PeerLost: the request was sent, and the connection broke.
            PeerUnreachable, NodeUnavailable: it was not sent.
        """
        try:
            return await _headed(await self.begin(url, method, target, headers, body))
        except PeerLost as lost:
            if method != "GET" or not lost.is_stale:
                raise
        connection = await self._connected(url)
        return await _headed(connection.request(b"GET", target, headers, body))

    async def begin(self, url: str, method: str, target: bytes, headers: RawHeaders, body: bytes = b"") -> PeerResponse:
        """The same without waiting for an answer, and without a second try. The caller closes the response.

        Raises:
            PeerUnreachable: the node cannot be connected to.
            NodeUnavailable: as many requests are under way to it as may be.
        """
        peer = self._peers.get(url)
        connection = None if peer is None else peer.idle_one()
        if connection is None:
            connection = await self._connected(url)
        return connection.request(method.encode("ascii"), target, headers, body)

    async def probe(self, url: str) -> str | None:
        """The id of the node that answers at this URL; None where none does within 500 ms. Never raises."""
        challenge = self._prover.challenge()
        with contextlib.suppress(TimeoutError, PeerUnreachable, PeerLost):
            async with asyncio.timeout(PROBE_S):
                proof = await self._proof(url, challenge)
                return self._prover.node_of(challenge, proof)
        return None

    def abandon(self, url: str) -> None:
        """The node is dead, whatever its connections say: who waits for it gets PeerLost now."""
        peer = self._peers.get(url)
        if peer is not None:
            peer.abort()

    async def aclose(self) -> None:
        """Closes every connection; who waits for an answer gets PeerLost."""
        self._is_closed = True
        for url in list(self._peers):
            self.abandon(url)

    async def _proof(self, url: str, challenge: bytes) -> bytes:
        """On a connection of its own: neither the pool nor its bound may speak for the node."""
        connection = await self._connected(url, is_probe=True)
        try:
            headers = [(CHALLENGE, challenge), (b"connection", b"close")]
            response = await _headed(connection.request(b"GET", PROBE_PATH, headers, b""))
            return dict(response.headers).get(PROOF, b"")
        finally:
            connection.abort()

    async def _connected(self, url: str, *, is_probe: bool = False) -> PeerConnection:
        self._require_open()
        peer = self._peers.get(url)
        if peer is None:
            peer = self._peers[url] = _Peer(url, self._alarm, lambda: self._peers.pop(url, None))
        if peer.size >= MAX_OPEN and not is_probe:
            raise NodeUnavailable("as many requests as may be are under way to that node")
        connection = await peer.connect(self._tls if peer.is_tls else None)
        try:
            self._require_open()
        except PeerUnreachable:
            connection.abort()
            raise
        return connection

    def _require_open(self) -> None:
        if self._is_closed:
            raise PeerUnreachable

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _Peer:
    """The connections to one node; `forget` is called when there are none left."""

    def __init__(self, url: str, alarm: Alarm, forget: Callable[[], object]) -> None:
        parts = urlsplit(url)
        self.is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self.is_tls else 80)
        self._netloc = parts.netloc.encode("ascii")
        self._alarm, self._forget = alarm, forget
        self.open: set[PeerConnection] = set()
        self.idle: list[PeerConnection] = []
        self._connecting = 0

    @property
    def size(self) -> int:
        """How many connections there are, those being made included."""
        return len(self.open) + self._connecting

    async def connect(self, tls: ssl.SSLContext | None) -> PeerConnection:
        """A new connection, for the caller's use."""
        loop = asyncio.get_running_loop()
        connection = PeerConnection(self._netloc, self._alarm, self._keep, self._lost)
        self._connecting += 1
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls)
            _notice_silence(transport.get_extra_info("socket"))
            if not connection.is_usable():
                raise PeerUnreachable
            self.open.add(connection)
        except OSError:  # TimeoutError is one
            connection.abort()
            raise PeerUnreachable from None
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connecting -= 1
            self._forget_if_empty()
        return connection

    def idle_one(self) -> PeerConnection | None:
        """A kept connection that is fresh enough: the one used last, so that those not needed grow old."""
        now = time.monotonic()
        while self.idle:
            connection = self.idle.pop()
            if now - connection.idle_since < IDLE_S and connection.is_usable():
                return connection
            connection.abort()
        return None

    def abort(self) -> None:
        """Closes all of them."""
        for connection in list(self.open):
            connection.abort()

    def _keep(self, connection: PeerConnection) -> None:
        if len(self.idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self.idle.append(connection)

    def _lost(self, connection: PeerConnection) -> None:
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._forget_if_empty()

    def _forget_if_empty(self) -> None:
        if not self.size:
            self._forget()


async def _headed(response: PeerResponse) -> PeerResponse:
    """The response, once its head is there; closes it where that does not happen."""
    try:
        await response.head()
    except BaseException:
        await response.aclose()
        raise
    return response


def _notice_silence(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPIDLE_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPINTVL_S)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPCNT)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
