"""PeerClient: requests to the other nodes, in HTTP/1.1 over connections that are kept. It decides nothing about
sessions.

A new connection begins with a greeting: who is there? So nothing is sent to a stranger at an address that a node once
had, and a node that lives but cannot be talked to is told from one that is gone.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from app.errors import NodeUnavailable
from app.patience import patience
from app.peers.connection import Alarm, Deadlines, PeerConnection, PeerLost, PeerResponse, PeerUnreachable
from app.peers.credentials import HOP_VERSION, CachedHandshake, NodeCredentials, Sent, Word
from app.peers.pool import PeerPool, PoolLimits
from app.routing.routes import UNPROVEN, NodeRecord

__all__ = ["Deadlines", "PeerClient", "PeerLost", "PeerRefused", "PeerResponse", "PeerUnreachable", "PoolLimits"]

PROBE_S = 0.5  # design: an owner that does not answer for so long may be replaced once its lease has lapsed
COMPLAIN_EVERY_S = 60.0
PROBLEM_S = 60.0  # one that was not seen for so long is none any more
MAX_GREETING_BYTES = 4096
MAX_PROBLEMS = 64  # addresses whose problem is remembered
SESSION = b"mcp-session-id"
CLIENT_ADDRESS = b"trunkline-client-address"  # from where the client has asked; to be shown, and for nothing else

FORWARDED = b"trunkline-forwarded"
GREETING_PATH, CHALLENGE, PROOF = b"/internal/node", b"trunkline-challenge", b"trunkline-node"
OTHER_KEY = b"other-key"  # the proof of a node that does not take the one that asks for a node

log = logging.getLogger(__name__)


Greet = Callable[[str, PeerConnection], Awaitable[str]]  # which node is there


class PeerRefused(NodeUnavailable):
    """There is a node, and it and this one do not take each other for nodes of one cluster; it has done nothing."""


class PeerRequest(NamedTuple):
    """What is sent on for a client, less its body."""

    method: str
    target: bytes
    headers: Iterable[tuple[bytes, bytes]]
    word: Word


class PeerClient:
    """All connections of this node to others; `aclose` closes them."""

    def __init__(
        self,
        credentials: NodeCredentials,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - immutable
        limits: PoolLimits = PoolLimits(),  # noqa: B008
    ) -> None:
        self._credentials, self._deadlines, self._limits = credentials, deadlines, limits
        self._pools: dict[str, PeerPool] = {}
        self._problems: dict[str, tuple[str, float]] = {}  # by URL; and when it was last seen
        self._complained_at = -COMPLAIN_EVERY_S
        self._alarm = Alarm()
        self._sweep_s = min(1.0, deadlines.head_s / 4, deadlines.idle_s / 4)
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        pools = self._pools.values()
        is_open, idle = sum(pool.size for pool in pools), sum(len(pool.idle) for pool in pools)
        return f"<PeerClient [{len(pools)} nodes, {is_open} open, {idle} idle]>"

    @property
    def problems(self) -> Mapping[str, str]:
        """Why this node and one that lives do not talk to each other, by that one's URL."""
        since = time.monotonic() - PROBLEM_S
        return {url: problem for url, (problem, at) in self._problems.items() if at > since}

    async def send(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """Sends a request to a node and waits for the head of its answer.

        Raises:
            PeerLost: the request was sent, and the connection broke, or the node has let its time pass.
            PeerUnreachable, PeerRefused, NodeUnavailable: see `begin`.
        """
        response = await self.begin(node, request, body)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    async def begin(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """The same without waiting for an answer. The caller closes the response. Nothing is ever sent twice.

        Raises:
            PeerUnreachable: the node cannot be reached; nothing was sent.
            PeerRefused: it is there, and one of the two does not take the other for a node; nothing was sent.
            NodeUnavailable: as many requests are under way to it as may be; nothing was sent.
        """
        pool = self._pool(node.url)
        if node.draining:
            pool.retire()
        connection = await pool.take(node.id, self._tls if pool.is_tls else None)
        method, target, headers, word = request
        try:
            session = next((value for name, value in headers if name == SESSION), b"")
            value = self._credentials.sign(Sent(method, target, session), body, word, node.id)
            return connection.request(method, target, [*headers, (FORWARDED, value)], body)
        except BaseException:  # what cannot be sent, like a line break: it would be a second request
            connection.abort()
            raise

    async def probe(self, url: str) -> str | None:
        """The id of the node that answers at this URL, UNPROVEN where one with another key does; None where none does
        within 500 ms. Never raises."""
        pool = self._new_pool(url, self._who, lambda: None)  # what is kept may speak for a node that is no more
        try:
            async with patience(PROBE_S):
                return pool.open[await pool.connect(self._tls if pool.is_tls else None)]
        except (TimeoutError, NodeUnavailable):
            return None
        finally:
            pool.abort()

    def refused(self, url: str, problem: str) -> PeerRefused:
        """The node there has refused a request, which it has not looked at."""
        self._note(url, problem)
        return PeerRefused(f"the other node and this one do not work together: {problem}")

    def retire(self, url: str) -> None:
        """The node leaves: it is sent nothing more on connections that are kept."""
        if url in self._pools:
            self._pools[url].retire()

    def abandon(self, url: str) -> None:
        """The node is dead, whatever its connections say: who waits for it gets PeerLost now."""
        if url in self._pools:
            self._pools[url].abort()

    async def aclose(self) -> None:
        """Closes every connection; who waits for an answer gets PeerLost."""
        self._is_closed = True
        for url in list(self._pools):
            self.abandon(url)
        if self._sweep is not None:
            self._sweep.cancel()

    # --- pools

    def _pool(self, url: str) -> PeerPool:
        if self._is_closed:
            raise PeerUnreachable
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = self._new_pool(url, self._greet, lambda: self._pools.pop(url, None))
        if self._sweep is None:
            self._sweep_soon()
        return pool

    def _new_pool(self, url: str, greet: Greet, forget: Callable[[], object]) -> PeerPool:
        return PeerPool(url, partial(greet, url), self._alarm, self._limits, self._deadlines, self._is_full, forget)

    def _is_full(self) -> bool:
        return sum(pool.size for pool in self._pools.values()) >= self._limits.in_all

    def _sweep_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._sweep_s, self._look, loop.time() + self._sweep_s)

    def _look(self, due: float) -> None:
        """At all connections; not where this node itself stood still: what has come meanwhile is read first."""
        now = asyncio.get_running_loop().time()
        if now - due < self._sweep_s:
            for url, pool in list(self._pools.items()):
                given_up = pool.sweep(now)
                if given_up:
                    log.warning("Node at %s did not answer in time; gave up %d requests", url, given_up)
        self._sweep = None
        if self._pools:
            self._sweep_soon()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    # --- who is there

    async def _greet(self, url: str, connection: PeerConnection) -> str:
        """The node that requests can be sent to over this connection.

        Raises:
            PeerUnreachable: no node answers.
            PeerRefused: one does, and there is a problem.
        """
        greeting = await self._ask(connection)
        problem = _problem(greeting)
        if greeting is None or problem is not None:
            raise self.refused(url, problem or "")
        return greeting.node

    async def _who(self, url: str, connection: PeerConnection) -> str:
        """The node that answers, whether requests can be sent to it or not. Raises PeerUnreachable where none does."""
        greeting = await self._ask(connection)
        self._note(url, _problem(greeting))
        return UNPROVEN if greeting is None else greeting.node

    async def _ask(self, connection: PeerConnection) -> CachedHandshake | None:
        """What a node says of itself; None where it has another key, which is all that it says then."""
        challenge = self._credentials.challenge()
        response = connection.request("GET", GREETING_PATH, [(CHALLENGE, challenge)])
        try:
            await response.head()
            await response.body(MAX_GREETING_BYTES)
        except PeerLost:
            raise PeerUnreachable from None
        proof = dict(response.headers).get(PROOF, b"")
        if proof == OTHER_KEY:
            return None
        greeting = self._credentials.check(challenge, proof)
        if greeting is None:
            raise PeerUnreachable
        return greeting

    def _note(self, url: str, problem: str | None) -> None:
        self._problems.pop(url, None)  # so that the oldest stand first
        if problem is None:
            return
        if len(self._problems) >= MAX_PROBLEMS:
            del self._problems[next(iter(self._problems))]
        now = time.monotonic()
        self._problems[url] = problem, now
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("Node at %s and this node cannot work together: %s", url, problem)


def _problem(greeting: CachedHandshake | None) -> str | None:
    if greeting is None:
        return "it has another SECRET_KEY"
    if greeting.version != HOP_VERSION:
        return f"it is of another release: nodes say version {greeting.version} to each other there, {HOP_VERSION} here"
    return None
