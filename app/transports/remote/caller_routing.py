"""CallerRouting: which node answers a client of 2026-07-28, who names no session. One hop, as for sessions."""

import contextlib

from app.errors import RoutesSettling, SessionNotFound, StateRefused
from app.peers.client import PeerUnreachable
from app.routing.router import Free, Router, There
from app.routing.routes import Route, caller_key
from app.sessionless.suspended_calls import Place
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.transports.remote.forwarding import Forwarding, NotOwner, not_owner
from app.transports.remote.remote_sessions import Attempt, RemoteSessions
from app.transports.request import McpRequest


class CallerRouting:
    """Decides that a caller is served here, or has another node answer."""

    def __init__(
        self,
        registry: SessionRegistry,
        ownership: Ownership,
        router: Router,
        forwarding: Forwarding,
        elsewhere: RemoteSessions,
    ) -> None:
        self._registry, self._ownership, self._router = registry, ownership, router
        self._forwarding, self._elsewhere = forwarding, elsewhere

    @property
    def is_leaving(self) -> bool:
        """Whether this node opens no more lines."""
        return self._registry.draining

    async def claim(self, request: McpRequest, body: bytes) -> bool:
        """Makes the caller ours, for good: all lines to a backend that keeps state are on one node.

        Returns:
            False once another node that has the caller has answered.

        Raises:
            RoutesUnavailable, NodeUnavailable: that node cannot be found or reached now.
            NodeLost: it died with the request.
        """
        key = _key(request)
        attempt = Attempt(request, body)
        if request.is_forwarded:
            self._router.forget(key)  # the sender knows better than what was true two seconds ago
        while not self._ownership.owns(key):
            located = await self._claimed(request, key, attempt)
            if located is None:
                continue
            if await self._elsewhere.forwarded(attempt, key, located):
                return False
            await self._elsewhere.wait(attempt)
        return True

    async def _claimed(self, request: McpRequest, key: str, attempt: Attempt) -> There | None:
        """The node that has the caller; None where it may be us now: look again."""
        free: Route | None = None
        try:
            located = await self._router.locate(key)
        except SessionNotFound:
            pass
        except RoutesSettling:  # its node, if there is one, says so within a beat or two
            await self._elsewhere.wait(attempt)
            return None
        else:
            if isinstance(located, There):
                return located
            free = located.route if isinstance(located, Free) else None
        route = await self._ownership.claim_caller(request.principal, request.tenant, request.backend, free)
        if route is None or route.node == self._ownership.node:
            return None
        return self._router.remember(route)

    async def leave(self, request: McpRequest, body: bytes, *, keeps_state: bool) -> bool:
        """Has another node answer, for this one opens no more lines; False where there is no other.

        Raises:
            RoutesUnavailable, NodeUnavailable, NodeLost: as `claim`.
        """
        if request.is_forwarded:
            raise not_owner()
        key = _key(request)
        attempt = Attempt(request, body)
        while True:
            successor = await self._successor(key, keeps_state=keeps_state)
            if successor is None:
                return False
            if await self._elsewhere.forwarded(attempt, key, successor):
                return True
            await self._elsewhere.wait(attempt)  # until our own route is released

    async def _successor(self, key: str, *, keeps_state: bool) -> There | None:
        """The node that has the caller by now, or one that may."""
        if keeps_state:
            with contextlib.suppress(SessionNotFound, RoutesSettling):
                located = await self._router.locate(key)
                if isinstance(located, There):
                    return located
        peer = self._router.any_peer()
        return None if peer is None else There(peer)

    async def suspended(self, request: McpRequest, body: bytes, place: Place) -> None:
        """Has the node answer that holds the suspended call.

        Raises:
            StateRefused: the node is gone, and the call with it: known once its lease has lapsed.
            NodeUnavailable: it lives, and cannot be reached.
            NodeLost: it died with the request.
        """
        attempt = Attempt(request, body)
        while True:
            peer = None if request.is_forwarded else await self._router.meet(*place)
            if peer is None:
                raise StateRefused("state_lost")
            try:
                await self._forwarding.forward(request, body, peer)
            except NotOwner:
                raise StateRefused("state_lost") from None
            except PeerUnreachable:
                await self._elsewhere.wait(attempt)
            else:
                return


def _key(request: McpRequest) -> str:
    return caller_key(request.principal.identity, request.tenant, request.backend)
