"""RemoteSessions: a request whose session is not here is answered by another node, or the session is taken over."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from app.cluster.peers.client import PeerUnreachable
from app.cluster.routing.router import Free, Router, There
from app.cluster.session_takeover import SessionTakeover
from app.errors import ClientError, CredentialExpired, NodeUnavailable, SessionNotFound, ShuttingDown
from app.http.remote.forwarding import Forwarding, NotOwner, not_owner
from app.http.transports.request import McpRequest, unless_gone
from app.limits.caller_rates import RateLimiter
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.routes import Route
from app.sessions.session import Session
from app.sessions.session_ids import session_key
from app.sessions.sessionless.pooled_sessions import Caller

PATIENCE_S = 7.0  # a dead node is known to be dead after 5.5 s: its lease, and a probe
AGAIN_S = 0.1
MAX_REFUSALS = 4  # by nodes that have handed the session over, until its next owner has it
MAX_WAITING = 1000  # requests waiting for a node to be known dead; more are refused
MAX_WAITING_BYTES = 64 << 20  # of their bodies


@dataclass(slots=True)
class Attempt:
    """The tries to have one request answered."""

    request: McpRequest
    body: bytes
    until: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)
    refusals: int = 0

    def refused(self) -> None:
        """A node did not have the session. Raises NodeUnavailable after MAX_REFUSALS."""
        self.refusals += 1
        if self.refusals >= MAX_REFUSALS:
            raise NodeUnavailable from None


@dataclass(eq=False, slots=True)
class RemoteSessions:
    """One hop: a request that another node has forwarded is never forwarded again."""

    _registry: SessionRegistry
    _ownership: Ownership
    _router: Router
    _forwarding: Forwarding
    _take_over: SessionTakeover
    _unknown: RateLimiter  # per principal: requests for sessions that do not exist
    _waiting: int = 0
    _waiting_bytes: int = 0

    async def session(self, request: McpRequest, session_id: str, body: bytes = b"") -> Session | None:
        """The session, if it is here now; None once another node has answered the request.

        Raises:
            SessionNotFound: there is no such session for this principal; SessionEnded where it is known why.
            RateLimited: this principal has asked for too many unknown sessions.
            RoutesUnavailable, NodeUnavailable: its node cannot be found or reached now.
            NodeLost: its node died with the request.
            ClientGone: there is nobody to answer.
        """
        key, attempt = session_key(session_id), Attempt(request, body)
        if request.is_forwarded:
            self._router.forget(key)  # the sender knows better than a cached route
        there = self._router.remembered(key)
        if there is not None and await self.forwarded(attempt, key, there):
            return None  # the usual case
        self._unknown.spend(request.principal.identity)
        try:
            with self.tries():
                found = await self._session(attempt, key, session_id)
        except SessionNotFound:
            raise self._registry.why_ended(session_id, request.principal, request.tenant, request.backend) from None
        except BaseException:
            self._unknown.give_back(request.principal.identity)
            raise
        self._unknown.give_back(request.principal.identity)
        return found

    async def _session(self, attempt: Attempt, key: str, session_id: str) -> Session | None:
        request = attempt.request
        while True:
            located = await self._router.locate(key, session_id)
            await request.require_still_allowed()
            if isinstance(located, There):
                if await self.forwarded(attempt, key, located):
                    return None
                continue
            if isinstance(located, Free) and self._registry.draining:
                if request.is_forwarded:
                    raise not_owner()
                if await self._given_away(request, attempt.body):
                    return None
            else:
                session = await self._here(request, session_id, located)
                if session is not None:
                    return session
            await self.wait(attempt)

    async def _here(self, request: McpRequest, session_id: str, located: Route | Free) -> Session | None:
        """The session that is here, or is taken over because no node has it.

        None where it has to be looked up again: another node was quicker, or our route has no session because it is
        being handed over, to us or to another node, or because we had given up taking it over.

        Raises:
            SessionNotFound: none of these.
        """
        find = partial(self._registry.get, session_id, request.principal, request.tenant, request.backend)
        if isinstance(located, Free):
            return await self._taken_over(request, session_id, located.route, find)
        session, owned = find(), self._ownership
        is_on_its_way = owned.holds(located.key) or self._take_over.is_under_way(located.key)
        if session is None and not is_on_its_way and not owned.frees_late(located):
            raise SessionNotFound
        return session

    async def _taken_over(
        self, request: McpRequest, session_id: str, route: Route, find: Callable[[], Session | None]
    ) -> Session | None:
        """Takes the session over, and closes it where access was revoked meanwhile."""
        caller = Caller(request.principal, request.tenant, request.backend)
        session = await self._take_over(session_id, route, caller, find)
        try:
            await request.require_still_allowed()
        except CredentialExpired:
            raise  # the session may go on with another credential
        except ClientError:
            if session is not None:
                session.close("key_revoked")
            raise
        return session

    async def opening(self, request: McpRequest, body: bytes) -> bool:
        """Whether another node has opened the session that this request asks for, as this one `is_stopping`.

        While it does not drain yet it opens the session itself where no other can.

        Raises:
            ShuttingDown: this node drains, and there is no other.
        """
        try:
            is_open = await self._given_away(request, body)
        except ShuttingDown:
            is_open = False
        if not is_open and self._registry.draining:
            raise ShuttingDown
        return is_open

    async def forwarded(self, attempt: Attempt, key: str, located: There) -> bool:
        """Whether that node has answered; if not, the route has to be looked up again."""
        if attempt.request.is_forwarded:
            raise not_owner()
        try:
            await self._forwarding.forward(attempt.request, attempt.body, located.node)
        except NotOwner:
            self._router.forget(key)
            attempt.refused()
            return False
        except PeerUnreachable:
            self._router.forget(key)
            await self.wait(attempt)
            return False
        return True

    def tries(self) -> AbstractContextManager[None]:
        """Around all tries to have another node answer: a drain waits for them. Raises ShuttingDown."""
        return self._forwarding.passing.waiting()

    async def wait(self, attempt: Attempt) -> None:
        """Waits for AGAIN_S.

        Raises:
            NodeUnavailable: the request has waited for PATIENCE_S, or too many wait.
            ShuttingDown: this node stops.
            ClientGone: there is nobody to answer.
        """
        if time.monotonic() > attempt.until:
            raise NodeUnavailable
        self._forwarding.passing.require_open()
        with self._place_for(len(attempt.body)):
            await unless_gone(attempt.request, partial(anyio.sleep, AGAIN_S))

    @contextmanager
    def _place_for(self, size: int) -> Iterator[None]:
        if self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise NodeUnavailable
        self._waiting, self._waiting_bytes = self._waiting + 1, self._waiting_bytes + size
        try:
            yield
        finally:
            self._waiting, self._waiting_bytes = self._waiting - 1, self._waiting_bytes - size

    async def _given_away(self, request: McpRequest, body: bytes) -> bool:
        """Whether another node has answered. Raises ShuttingDown where there is none."""
        peer = self._router.any_peer()
        if peer is None or request.is_forwarded:
            raise ShuttingDown
        try:
            await self._forwarding.forward(request, body, peer)
        except (NotOwner, PeerUnreachable):
            return False
        return True
