"""CallerRouting: which node serves a client of 2026-07-28, whose requests name no session. One hop, as for sessions."""

import contextlib
from dataclasses import dataclass

from app.cluster.peers.client import PeerUnreachable
from app.cluster.routing.router import Free, Router, There
from app.errors import RoutesSettling, SessionNotFound, StateRefused
from app.http.remote.forwarding import Forwarding, NotOwner, not_owner
from app.http.remote.remote_sessions import Attempt, RemoteSessions
from app.http.transports.request import McpRequest
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.routes import Route, caller_key
from app.sessions.sessionless.suspended_calls import Place


@dataclass(eq=False, frozen=True, slots=True)
class CallerRouting:
    _registry: SessionRegistry
    _ownership: Ownership
    _router: Router
    _forwarding: Forwarding
    _remote: RemoteSessions

    @property
    def is_leaving(self) -> bool:
        """Whether this node drains, and opens no more pooled sessions."""
        return self._registry.draining

    async def claim(self, request: McpRequest, body: bytes) -> bool:
        """Claims the caller for this node; False once the node that has the caller has answered.

        All of a caller's pooled sessions to a backend that keeps state are on one node.

        Raises:
            RoutesUnavailable, NodeUnavailable: that node cannot be found or reached now.
            NodeLost: it died with the request.
        """
        key = _key(request)
        if request.is_forwarded:
            self._router.forget(key)  # the sender knows better than a cached route
        if self._ownership.owns(key):
            return True  # the usual case
        with self._remote.tries():
            return await self._claim(request, key, Attempt(request, body))

    async def _claim(self, request: McpRequest, key: str, attempt: Attempt) -> bool:
        while not self._ownership.owns(key):
            located = await self._claimed(request, key, attempt)
            if located is None:
                continue
            if await self._remote.forwarded(attempt, key, located):
                return False
            await self._remote.wait(attempt)
        return True

    async def _claimed(self, request: McpRequest, key: str, attempt: Attempt) -> There | None:
        """The node that has the caller; None where that has to be looked up again."""
        free: Route | None = None
        try:
            located = await self._router.locate(key)
        except SessionNotFound:
            pass
        except RoutesSettling:  # the caller's node, if any, restores its route within a heartbeat or two
            await self._remote.wait(attempt)
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
        """Has another node answer, because this one drains; False where there is none. Raises as `claim`."""
        if request.is_forwarded:
            raise not_owner()
        with self._remote.tries():
            return await self._leave(Attempt(request, body), _key(request), keeps_state=keeps_state)

    async def _leave(self, attempt: Attempt, key: str, *, keeps_state: bool) -> bool:
        while True:
            successor = await self._successor(key, keeps_state=keeps_state)
            if successor is None:
                return False
            if await self._remote.forwarded(attempt, key, successor):
                return True
            await self._remote.wait(attempt)  # for our own route to be released

    async def _successor(self, key: str, *, keeps_state: bool) -> There | None:
        """The node that has the caller by now, or any other."""
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
            StateRefused: the lease of the node has lapsed, so the call is lost.
            NodeUnavailable: the node is alive but cannot be reached.
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
                await self._remote.wait(attempt)
            else:
                return


def _key(request: McpRequest) -> str:
    return caller_key(request.principal.identity, request.tenant, request.backend)
