"""PeerClient: requests to the other nodes, over one link to each. It decides nothing about sessions.

A link begins as a request of HTTP/1.1 with `Upgrade: trunkline-link`, so that a node needs one port and one address.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from functools import cached_property, partial
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from app.errors import NodeUnavailable
from app.routing.frames import RequestHead
from app.routing.link import CHALLENGE, PATH, PROOF, UPGRADE
from app.routing.node_proof import NodeProof
from app.routing.peer_link import Alarm, PeerLink, PeerLost, PeerResponse, PeerUnreachable
from app.routing.routes import NodeRecord

__all__ = ["PeerClient", "PeerLost", "PeerRefused", "PeerResponse", "PeerUnreachable"]

CONNECT_S = 0.5  # nodes are near each other
PROVE_S = 2.0  # a node that is busy may take so long to say which one it is
PROBE_S = 0.5  # design: an owner that does not answer for so long may be replaced once its lease has lapsed
COMPLAIN_EVERY_S = 60.0
MAX_OPENING_BYTES = 8 << 10  # of the answer that opens a link

log = logging.getLogger(__name__)


class PeerRefused(NodeUnavailable):
    """There is a node, and it does not take this one for a node, or this one does not believe it."""


class PeerClient:
    """The links that this node has opened to others; `aclose` closes them."""

    def __init__(self, proof: NodeProof) -> None:
        self._proof = proof
        self._links: dict[str, PeerLink] = {}  # by URL; each for as long as a request may go over it
        self._open = set[PeerLink]()  # those, and the ones over which only answers come
        self._connecting: dict[str, asyncio.Task[PeerLink]] = {}
        self._alarm = Alarm()
        self._is_closed = False
        self._complained_at = -COMPLAIN_EVERY_S

    def __repr__(self) -> str:
        return f"<PeerClient [{len(self._open)} links, {sum(map(len, self._open))} requests]>"

    async def send(self, node: NodeRecord, head: RequestHead, body: bytes = b"") -> PeerResponse:
        """Sends a request to a node and waits for the head of its answer, however long that takes.

        Raises:
            PeerLost: the request was sent, and the connection broke.
            PeerUnreachable, PeerRefused, NodeUnavailable: see `begin`.
        """
        response = await self.begin(node, head, body)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    async def begin(self, node: NodeRecord, head: RequestHead, body: bytes = b"") -> PeerResponse:
        """The same without waiting for an answer. The caller closes the response.

        Raises:
            PeerUnreachable: the node cannot be reached; nothing was sent.
            PeerRefused: one of the two does not take the other for a node.
            NodeUnavailable: as many requests are under way to it as may be.
        """
        link = self._links.get(node.url)
        if link is None or not link.is_usable:
            link = await self._connected(node.url)
        if link.is_paused:
            await link.writable()
        if not link.is_usable or link.node != node.id:  # another node has that address by now
            raise PeerUnreachable
        return link.request(head, body)

    async def probe(self, url: str) -> str | None:
        """The id of the node that answers at this URL; None where none does within 500 ms. Never raises."""
        with contextlib.suppress(TimeoutError, NodeUnavailable):
            async with asyncio.timeout(PROBE_S):
                link = await self._opened(url)  # a new one: those that are kept may speak for a node that is no more
                link.abort()
                return link.node
        return None

    def abandon(self, url: str) -> None:
        """The node is dead, whatever its connection says: who waits for it gets PeerLost or PeerUnreachable now."""
        if url in self._connecting:
            self._connecting[url].cancel()
        for link in [each for each in self._open if each.url == url]:
            link.abort()

    async def aclose(self) -> None:
        """Closes every link; who waits for an answer gets PeerLost."""
        self._is_closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        for link in list(self._open):
            link.abort()
        if connecting:
            await asyncio.wait(connecting)

    async def _connected(self, url: str) -> PeerLink:
        """The link to this address, opened once for all that wait for it, and not given up when one of them leaves."""
        if self._is_closed:
            raise PeerUnreachable
        task = self._connecting.get(url)
        if task is None:
            task = self._connecting[url] = asyncio.get_running_loop().create_task(self._open_kept(url))
            task.add_done_callback(partial(self._connected_or_not, url))
        await asyncio.wait([task])
        if task.cancelled():
            raise PeerUnreachable
        return task.result()

    def _connected_or_not(self, url: str, task: asyncio.Task[PeerLink]) -> None:
        self._connecting.pop(url, None)
        if not task.cancelled():
            task.exception()  # all that have waited for it may be gone

    async def _open_kept(self, url: str) -> PeerLink:
        link = await self._opened(url)
        if not link.is_usable:
            raise PeerUnreachable
        self._links[url] = link
        return link

    async def _opened(self, url: str) -> PeerLink:
        """A new link.

        Raises:
            PeerUnreachable, PeerRefused: as `begin`.
        """
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        opening = _Opening(parts.netloc.encode("ascii"), self._proof.challenge())
        try:
            async with asyncio.timeout(CONNECT_S):
                loop = asyncio.get_running_loop()
                await loop.create_connection(
                    lambda: opening, parts.hostname or "", port, ssl=self._tls if is_tls else None
                )
            async with asyncio.timeout(PROVE_S):
                status, proof = await opening.answer()
            return self._agreed(opening, url, status, proof)
        except OSError:  # TimeoutError is one
            opening.abort()
            raise PeerUnreachable from None
        except BaseException:
            opening.abort()
            raise

    def _agreed(self, opening: "_Opening", url: str, status: int, proof: bytes) -> PeerLink:
        if status not in (101, 403):  # whatever this is, it is no node
            raise PeerUnreachable
        agreed = self._proof.check(opening.challenge, proof) if status == 101 else None
        if agreed is None:
            self._complain(url)
            raise PeerRefused
        node, keys = agreed
        link = PeerLink(url, node, keys, self._alarm, self._ended)
        self._open.add(link)
        try:
            opening.become(link)
        except PeerUnreachable:
            self._open.discard(link)
            raise
        return link

    def _complain(self, url: str) -> None:
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("the node at %s does not take this one for a node, or is none: is SECRET_KEY the same?", url)

    def _ended(self, link: PeerLink) -> None:
        """No new request goes over this link."""
        if self._links.get(link.url) is link:
            del self._links[link.url]
        if not link.is_open:
            self._open.discard(link)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _Opening(asyncio.Protocol):
    """A connection that is to become a link: asks for it, and waits for the answer."""

    def __init__(self, netloc: bytes, challenge: bytes) -> None:
        self.netloc, self.challenge = netloc, challenge
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._rest = b""  # what came behind the answer

    async def answer(self) -> tuple[int, bytes]:
        """The status, and the proof if there is one. Raises PeerUnreachable where nothing sensible came."""
        return await self._answer

    def become(self, link: PeerLink) -> None:
        """From now on the connection is the link's. Raises PeerUnreachable where it is closed."""
        if self._transport is None or self._transport.is_closing():
            raise PeerUnreachable
        self._transport.set_protocol(link)
        link.connection_made(self._transport)
        if self._rest:
            link.data_received(self._rest)

    def abort(self) -> None:
        """Closes the connection."""
        self._answer.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._answer.cancelled():  # whoever asked for it has gone in the meantime
            self._transport.abort()
            return
        lines = (
            b"GET %b HTTP/1.1" % PATH, b"host: " + self.netloc, b"connection: upgrade", b"upgrade: " + UPGRADE,
            b"%b: %b" % (CHALLENGE, self.challenge), b"", b"",
        )  # fmt: skip
        self._transport.write(b"\r\n".join(lines))

    def data_received(self, data: bytes) -> None:
        if self._answer.done():
            self._rest += data
            return
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            self._rest = rest
            self._answered(head + end)
        elif len(self._received) > MAX_OPENING_BYTES:
            self._fail()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail()

    def _answered(self, head: bytes) -> None:
        try:
            self._answer.set_result(_parse(head))
        except httptools.HttpParserError:
            self._fail()

    def _fail(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(PeerUnreachable())
        if self._transport is not None:
            self._transport.abort()


class _Head:
    """Keeps the headers that httptools finds."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value


def _parse(head: bytes) -> tuple[int, bytes]:
    """The status and the proof in the head of an answer."""
    found = _Head()
    # The stubs know no protocol objects for it.
    parser: Any = httptools.HttpResponseParser(found)  # type: ignore[no-untyped-call,unused-ignore]
    with contextlib.suppress(httptools.HttpParserUpgrade):
        parser.feed_data(head)
    return parser.get_status_code(), found.headers.get(PROOF, b"")
