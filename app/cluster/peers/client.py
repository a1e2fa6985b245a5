"""PeerClient: requests to other nodes, in HTTP/1.1 over pooled connections.

Each new connection begins with a greeting, which asks for the node's id. So nothing is sent to a stranger at an address
that a node once had, and a node that is alive but incompatible is told from a dead one.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from app.cluster.peers._connection import (
    Alarm,
    Deadlines,
    PeerConnection,
    PeerDistrusted,
    PeerLost,
    PeerResponse,
    PeerUnreachable,
)
from app.cluster.peers._pool import PeerPool, PoolLimits
from app.cluster.peers.credentials import HOP_VERSION, Greeting, NodeCredentials, Sent, Word
from app.concurrency.loop_timeout import loop_timeout
from app.errors import NodeUnavailable
from app.sessions.routes import UNPROVEN, NodeRecord

__all__ = ["Deadlines", "PeerClient", "PeerLost", "PeerRefused", "PeerResponse", "PeerUnreachable", "PoolLimits"]

PROBE_S = 0.5  # a node without a lease that does not answer for so long is dead
COMPLAIN_EVERY_S = 60.0
PROBLEM_S = 60.0  # a problem that was not seen for so long is over
MAX_GREETING_BYTES = 4096
MAX_PROBLEMS = 64  # URLs whose problem is remembered
SESSION = b"mcp-session-id"
CLIENT_ADDRESS = b"trunkline-client-address"  # the client's address, only to be shown

FORWARDED = b"trunkline-forwarded"
GREETING_PATH, CHALLENGE, PROOF = b"/internal/node", b"trunkline-challenge", b"trunkline-node"
OTHER_KEY = b"other-key"  # instead of a proof, from a node with another SECRET_KEY

log = logging.getLogger(__name__)


class PeerRefused(NodeUnavailable):
    """A node answered, but the two do not accept each other as nodes of one cluster; it has not processed anything."""


class PeerRequest(NamedTuple):
    """A request to another node, without its body."""

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
        self._problems: dict[str, tuple[str, float]] = {}  # by URL, with the time when it was last seen
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
        """Why this node cannot work together with others that are alive, by their URLs."""
        since = time.monotonic() - PROBLEM_S
        return {url: problem for url, (problem, at) in self._problems.items() if at > since}

    async def send(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """As `begin`, and waits for the head of the answer. Raises PeerLost if the connection breaks, or if the node
        does not answer in time, after the request was sent."""
        response = await self.begin(node, request, body)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return response

    async def begin(self, node: NodeRecord, request: PeerRequest, body: bytes = b"") -> PeerResponse:
        """Sends a request, once, and does not wait for the answer. The caller closes the response.

        Raises:
            PeerUnreachable: the node cannot be reached; nothing was sent.
            PeerRefused: the two do not accept each other as nodes; nothing was sent.
            NodeUnavailable: too many requests to it are under way; nothing was sent.
        """
        pool = self._pool(node.url)
        if node.draining:
            pool.retire()
        try:
            connection = await pool.take(node.id, self._tls if pool.is_tls else None)
        except PeerDistrusted as error:
            self._note(node.url, str(error))
            raise
        method, target, headers, word = request
        try:
            session = next((value for name, value in headers if name == SESSION), b"")
            value = self._credentials.sign(Sent(method, target, session), body, word, node.id)
            return connection.request(method, target, [*headers, (FORWARDED, value)], body)
        except BaseException:  # such as ValueError for a line break, which would begin a second request
            connection.abort()
            raise

    async def probe(self, url: str) -> str | None:
        """The id of the node that answers at this URL, or UNPROVEN if it has another key; None if no node answers
        within PROBE_S. Never raises."""
        pool = self._new_pool(url, self._who, lambda: None)  # a pooled connection may outlive its node
        try:
            async with loop_timeout(PROBE_S):
                return pool.open[await pool.connect(self._tls if pool.is_tls else None)]
        except PeerDistrusted as error:
            self._note(url, str(error))
            return None
        except (TimeoutError, NodeUnavailable):
            return None
        finally:
            pool.abort()

    def refused(self, url: str, problem: str) -> PeerRefused:
        """The error for a request that the node at this URL refused unseen, because of this problem."""
        self._note(url, problem)
        return PeerRefused(f"the other node and this one cannot work together: {problem}")

    def retire(self, url: str) -> None:
        """Closes idle connections to a node that is leaving."""
        if url in self._pools:
            self._pools[url].retire()

    def abandon(self, url: str) -> None:
        """Closes all connections to a dead node: requests that wait for it get PeerLost."""
        if url in self._pools:
            self._pools[url].abort()

    async def aclose(self) -> None:
        """Closes all connections; requests that wait get PeerLost."""
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

    def _new_pool(
        self, url: str, greet: Callable[[str, PeerConnection], Awaitable[str]], forget: Callable[[], object]
    ) -> PeerPool:
        return PeerPool(url, partial(greet, url), self._alarm, self._limits, self._deadlines, self._is_full, forget)

    def _is_full(self) -> bool:
        return sum(pool.size for pool in self._pools.values()) >= self._limits.in_all

    def _sweep_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self._sweep_s, self._look, loop.time() + self._sweep_s)

    def _look(self, due: float) -> None:
        """Sweeps all connections. Not if this node itself was late: then it first reads what has come meanwhile."""
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

    # --- greetings

    async def _greet(self, url: str, connection: PeerConnection) -> str:
        """The node at the other end. Raises PeerUnreachable, or PeerRefused if it answers and is incompatible."""
        greeting = await self._ask(connection)
        problem = _problem(greeting)
        if greeting is None or problem is not None:
            raise self.refused(url, problem or "")
        return greeting.node

    async def _who(self, url: str, connection: PeerConnection) -> str:
        """The node at the other end, even if it is incompatible. Raises PeerUnreachable."""
        greeting = await self._ask(connection)
        self._note(url, _problem(greeting))
        return UNPROVEN if greeting is None else greeting.node

    async def _ask(self, connection: PeerConnection) -> Greeting | None:
        """A node's greeting; None if it has another key, because then it says nothing else."""
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
        self._problems.pop(url, None)  # keeps the oldest first
        if problem is None:
            return
        if len(self._problems) >= MAX_PROBLEMS:
            del self._problems[next(iter(self._problems))]
        now = time.monotonic()
        self._problems[url] = problem, now
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("Node at %s and this node cannot work together: %s", url, problem)


def _problem(greeting: Greeting | None) -> str | None:
    if greeting is None:
        return "it has another SECRET_KEY"
    if greeting.version != HOP_VERSION:
        return f"it is of another release: version {greeting.version} of the protocol between nodes, here {HOP_VERSION}"
    return None
