"""RemoteSessions: what becomes of a request whose session is not here: another node answers, or this one takes over."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from app.cluster.takeover import TakeOver
from app.errors import ClientError, CredentialExpired, NodeUnavailable, SessionNotFound, ShuttingDown
from app.limits.rate_limiter import RateLimiter
from app.peers.client import PeerUnreachable
from app.routing.router import Free, Router, There
from app.routing.routes import Route, session_key
from app.sessionless.pooled_sessions import Caller
from app.sessions.ownership import Ownership
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.transports.remote.forwarding import Forwarding, NotOwner, not_owner
from app.transports.request import McpRequest

PATIENCE_S = 7.0  # a node that dies is known to be dead after 5.5 s: its lease, and a probe
AGAIN_S = 0.1
MAX_REFUSALS = 4  # by nodes that have just handed a session over, while its next owner is about to
MAX_WAITING = 1000  # requests that wait for a node to be known dead; above it they are refused
MAX_WAITING_BYTES = 64 << 20  # of their bodies


@dataclass(slots=True)
class Attempt:
    """To have one request answered, by another node or by this one once it can."""

    request: McpRequest
    body: bytes
    until: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)
    refusals: int = 0


class RemoteSessions:
    """Serves or finds what is not here. One hop: a request that a node has sent us is never sent on."""

    def __init__(
        self,
        registry: SessionRegistry,
        ownership: Ownership,
        router: Router,
        forwarding: Forwarding,
        take_over: TakeOver,
        unknown: RateLimiter,
    ) -> None:
        self._registry, self._ownership, self._router = registry, ownership, router
        self._forwarding, self._take_over, self._unknown = forwarding, take_over, unknown
        self._waiting = self._waiting_bytes = 0

    async def session(self, request: McpRequest, session_id: str, body: bytes = b"") -> Session | None:
        """The session, if it is ours now; None once another node has answered the request.

        Raises:
            SessionNotFound: there is no such session for this principal; SessionEnded where it is known why.
            RateLimited: this principal has asked for too many that there are not.
            RoutesUnavailable, NodeUnavailable: its node cannot be found or reached now.
            NodeLost: its node died with the request.
            ClientGone: there is nobody to answer.
        """
        key, attempt = session_key(session_id), Attempt(request, body)
        if request.is_forwarded:
            self._router.forget(key)  # the sender knows better than what was true two seconds ago
        there = self._router.remembered(key)
        if there is not None and await self.forwarded(attempt, key, there):
            return None  # the usual case: no session that nobody knows, so nothing to count
        self._unknown.spend(request.principal.identity)
        try:
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
        """The session that is here, or comes here because nobody has it any more.

        None where it is to be looked up again: another node was quicker, or a route of ours has no session. That one is
        on its way out, perhaps to another node, or on its way in.

        Raises:
            SessionNotFound: none of these.
        """
        find = partial(self._registry.get, session_id, request.principal, request.tenant, request.backend)
        if isinstance(located, Free):
            return await self._taken_over(request, session_id, located.route, find)
        session = find()
        if session is None and not self._ownership.holds(located.key) and not self._take_over.is_under_way(located.key):
            raise SessionNotFound
        return session

    async def _taken_over(
        self, request: McpRequest, session_id: str, route: Route, find: Callable[[], Session | None]
    ) -> Session | None:
        """As TakeOver. What was revoked before the session was here has not ended it: that is made up for."""
        caller = Caller(request.principal, request.tenant, request.backend)
        session = await self._take_over(session_id, route, caller, find)
        try:
            await request.require_still_allowed()
        except CredentialExpired:
            raise  # the session may go on with another one
        except ClientError:
            if session is not None:
                session.close("key_revoked")
            raise
        return session

    async def opening(self, request: McpRequest, body: bytes) -> bool:
        """Has another node open the session that this request asks for, because this one stops; True if it did.

        As soon as it was told to: what opens here now would have to move in a moment. Until it drains it opens what
        no other node does.

        Raises:
            ShuttingDown: there is no other node.
        """
        if not (self._registry.leaving or self._registry.draining):
            return False
        try:
            is_open = await self._given_away(request, body)
        except ShuttingDown:
            is_open = False
        if not is_open and self._registry.draining:
            raise ShuttingDown
        return is_open

    async def forwarded(self, attempt: Attempt, key: str, located: There) -> bool:
        """Whether that node has answered; if not, it is to be looked up again."""
        if attempt.request.is_forwarded:
            raise not_owner()
        try:
            await self._forwarding.forward(attempt.request, attempt.body, located.node)
        except NotOwner:
            self._router.forget(key)
            attempt.refusals += 1
            if attempt.refusals >= MAX_REFUSALS:
                raise NodeUnavailable from None
            return False
        except PeerUnreachable:
            self._router.forget(key)
            await self.wait(attempt)
            return False
        return True

    async def wait(self, attempt: Attempt) -> None:
        """A moment, before it is looked up again.

        Raises:
            NodeUnavailable: it has waited long enough, or too much waits already.
            ShuttingDown: this node stops, and waits for nothing any more.
            ClientGone: nobody waits for the answer any more.
        """
        if time.monotonic() > attempt.until:
            raise NodeUnavailable
        with self._forwarding.waiting(), self._place_for(len(attempt.body)):
            await attempt.request.unless_gone(partial(anyio.sleep, AGAIN_S))

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
