"""Elsewhere: what becomes of a request whose session is not here. Another node answers it, or this one takes over."""

import time
from dataclasses import dataclass

import anyio

from app.errors import NodeUnavailable, SessionNotFound, ShuttingDown, StateRefused
from app.routing.peers import PeerUnreachable
from app.routing.router import Free, Router, There
from app.routing.routes import Route, caller_key, session_key
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.takeover import TakeOver
from app.transports.forwarding import Forwarding, NotOwner, not_owner
from app.transports.request import McpRequest

PATIENCE_S = 7.0  # a node that dies is known to be dead after 5.5 s: its lease, and a probe
AGAIN_S = 0.1
MAX_REFUSALS = 4  # by nodes that have just handed a session over, while its next owner is about to
MAX_WAITING = 1000  # requests that wait for a node to be known dead; above it they are refused


@dataclass(slots=True)
class _Attempt:
    """To have one request answered by another node."""

    until: float
    refusals: int = 0


class Elsewhere:
    """Serves or finds what is not here. One hop: a request that a node has sent us is never sent on."""

    def __init__(
        self,
        registry: SessionRegistry,
        ownership: Ownership,
        router: Router,
        forwarding: Forwarding,
        take_over: TakeOver,
    ) -> None:
        self._registry, self._ownership, self._router = registry, ownership, router
        self._forwarding, self._take_over = forwarding, take_over
        self._waiting = 0

    async def session(self, request: McpRequest, session_id: str, body: bytes = b"") -> Session | None:
        """The session, if it is ours now; None once another node has answered the request.

        Raises:
            SessionNotFound: there is no such session for this principal.
            RoutesUnavailable, NodeUnavailable: its node cannot be found or reached now.
            NodeLost: its node died with the request.
        """
        key = session_key(session_id)
        attempt = _Attempt(time.monotonic() + PATIENCE_S)
        if request.is_forwarded:
            self._router.forget(key)  # the sender knows better than what was true two seconds ago
        while True:
            located = await self._router.locate(key, session_id)
            if isinstance(located, There):
                if await self._forwarded(request, body, key, located, attempt):
                    return None
            elif isinstance(located, Free) and self._registry.draining:
                if request.is_forwarded:
                    raise not_owner()
                if await self._given_away(request, body):
                    return None
                await self._wait(attempt.until)
            elif isinstance(located, Free):
                session = await self._taken_over(request, session_id, located.route)
                if session is not None:
                    return session
            else:
                await self._settled(key, attempt)

    async def _taken_over(self, request: McpRequest, session_id: str, route: Route) -> Session | None:
        """The session, ours from now on; None where another node was quicker."""

        def here() -> Session | None:
            return self._registry.get(session_id, request.principal, request.tenant, request.backend)

        return await self._take_over(session_id, route, request.principal, here)

    async def _settled(self, key: str, attempt: "_Attempt") -> None:
        """A route of our own without a session: it is on its way out, perhaps to another node, or on its way in.

        Raises:
            SessionNotFound: neither.
        """
        if not self._ownership.holds(key) and not self._take_over.is_under_way(key):
            raise SessionNotFound
        await self._wait(attempt.until)

    async def caller(self, request: McpRequest, body: bytes, *, is_stateless: bool) -> bool:
        """Has the node that keeps this caller's lines answer, if that is another one; True if it did.

        A caller's lines to a backend that keeps state are all on one node. What keeps none is served where it is asked.

        Raises:
            RoutesUnavailable, NodeUnavailable, NodeLost: as `session`.
            ShuttingDown: this node opens no new lines, and there is no other.
        """
        principal, tenant, backend = request.principal, request.tenant, request.backend
        if self._registry.draining:
            return await self.opening(request, body)
        if is_stateless:
            return False
        key = caller_key(principal.identity, tenant, backend)
        attempt = _Attempt(time.monotonic() + PATIENCE_S)
        while True:
            located = None if request.is_forwarded else self._router.remembered(key)
            if located is None:
                route = await self._ownership.claim_caller(principal, tenant, backend)
                if route.node == self._ownership.node:
                    return False
                located = self._router.remember(route)
            if await self._forwarded(request, body, key, located, attempt):
                return True

    async def suspended(self, request: McpRequest, body: bytes, node: str) -> None:
        """Has the node answer that holds the suspended call.

        Raises:
            StateRefused: the node is gone, and the call with it.
            NodeUnavailable, NodeLost: as `session`.
        """
        peer = self._router.peer(node)
        if peer is None or request.is_forwarded:
            raise StateRefused("state_lost")
        try:
            await self._forwarding.forward(request, body, peer)
        except NotOwner:
            raise StateRefused("state_lost") from None

    async def opening(self, request: McpRequest, body: bytes) -> bool:
        """Has another node open the session that this request asks for, because we take none; True if it did.

        Raises:
            ShuttingDown: there is no other node.
        """
        if not self._registry.draining:
            return False
        if not await self._given_away(request, body):
            raise ShuttingDown
        return True

    async def _given_away(self, request: McpRequest, body: bytes) -> bool:
        """Whether another node has answered what this one does not take any more.

        Raises:
            ShuttingDown: there is no other node.
        """
        peer = self._router.any_peer()
        if peer is None or request.is_forwarded:
            raise ShuttingDown
        try:
            await self._forwarding.forward(request, body, peer)
        except (NotOwner, PeerUnreachable):
            return False
        return True

    async def _forwarded(self, request: McpRequest, body: bytes, key: str, located: There, attempt: "_Attempt") -> bool:
        """Whether that node has answered; if not, it is to be looked up again."""
        if request.is_forwarded:
            raise not_owner()
        try:
            await self._forwarding.forward(request, body, located.node)
        except NotOwner:
            self._router.forget(key)
            attempt.refusals += 1
            if attempt.refusals >= MAX_REFUSALS:
                raise NodeUnavailable from None
            return False
        except PeerUnreachable:
            self._router.forget(key)
            await self._wait(attempt.until)
            return False
        return True

    async def _wait(self, until: float) -> None:
        """Until the owner answers again, or is known to be dead."""
        if time.monotonic() > until or self._waiting >= MAX_WAITING:
            raise NodeUnavailable
        self._waiting += 1
        try:
            await anyio.sleep(AGAIN_S)
        finally:
            self._waiting -= 1
