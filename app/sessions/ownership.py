"""Ownership: the routes that this node owns. Claims them before a session opens, releases them after it has ended."""

import logging
from collections.abc import Callable, Iterator
from typing import Self

import anyio
from anyio.abc import TaskGroup

from app.concurrency.single_flight import SingleFlight
from app.domain import Limits, Principal
from app.errors import QuotaExceeded, RoutesUnavailable
from app.sessions.routes import CALLER, Quota, Route, RouteStore, caller_key
from app.sessions.session import Session
from app.sessions.session_ids import session_key

MAX_RELEASES = 10_000  # pending, while the store does not answer; routes that are not released expire
RELEASE_AGAIN_S = 1.0
RELEASES_AT_ONCE = 16
MAX_ENDED = 10_000  # above it the oldest is forgotten: its client gets 503 instead of 404, while Redis is new

log = logging.getLogger(__name__)


class Ownership:
    """The routes of this node, by key. `async with` runs the releases; leaving waits for none of them.

    `on_session_lost` and `on_caller_lost` are called when another node has taken over a session or a caller of ours.
    """

    def __init__(
        self,
        store: RouteStore,
        node: str,
        url: str,
        *,
        on_session_lost: Callable[[str], None] = lambda session_id: None,
        on_caller_lost: Callable[[Route], None] = lambda route: None,
    ) -> None:
        self.node, self.url = node, url
        self._store = store
        self._routes: dict[str, Route] = {}
        self._leaving: dict[str, tuple[Route, bool]] = {}  # to be released, and whether as a hand-over
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._session_ids: dict[str, str] = {}  # of the routes that are sessions
        self._unsure: dict[str, None] = {}  # keys of sessions of which a take-over was given up: it may come late
        self._ended: dict[str, None] = {}  # keys of sessions that ended here; those never come back
        self._claiming = SingleFlight[str]()
        self._doubted: set[str] = set()  # routes about which the store is being asked
        self._on_session_lost, self._on_caller_lost = on_session_lost, on_caller_lost

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._release_for_ever)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

    async def claim_session(
        self, session_id: str, principal: Principal, tenant: str, backend: str, transport: str, limits: Limits
    ) -> None:
        """Makes this node the owner of a new session.

        Raises:
            QuotaExceeded: the tenant or the principal has reached its limit of sessions, over all nodes.
            RoutesUnavailable: the other nodes would not find it.
        """
        key = session_key(session_id)
        route = Route(key, self.node, self.url, 1, tenant, backend, principal.identity, transport)
        try:
            await self._store.claim(route, Quota(limits.sessions, limits.sessions_per_principal))
        except QuotaExceeded:
            raise
        except BaseException:
            self._leave(route, hand_over=False)  # it may have been written all the same
            raise
        self._keep(route, session_id)  # not before: a refresh would write a refused route, a release come too early

    async def claim_caller(self, principal: Principal, tenant: str, backend: str, free: Route | None) -> Route | None:
        """The route of this caller's pooled sessions: ours from now on, unless another living node has it.

        `free` is the route as its last owner left it, if there is one. Returns None if another node was quicker.

        Raises:
            RoutesUnavailable: the owner is not known.
        """
        key = caller_key(principal.identity, tenant, backend)
        async with self._claiming.turn(key):
            route = Route(key, self.node, self.url, 1, tenant, backend, principal.identity, CALLER)
            return self._routes.get(key) or await self._claim_caller(route, free)

    async def _claim_caller(self, route: Route, free: Route | None) -> Route | None:
        self._leaving.pop(route.key, None)  # a release that has been sent arrives before the claim
        try:
            if free is None:
                found: Route | None = await self._store.claim(route, None)
            else:
                found = await self._store.take_over(free, self.node, self.url)
        except BaseException:
            self._leave(route if free is None else free.owned_by(self.node, self.url), hand_over=False)
            raise
        if found is not None and found.node == self.node:
            self._routes[route.key] = found
        return found

    def may_have_pooled_session(self, session: Session) -> bool:
        """Whether this node may have this pooled session: its backend keeps no state, or the caller is ours."""
        return not session.spec.keeps_state or self.owns(caller_key(session.principal.identity, *session.spec.key))

    def release_callers(self) -> None:
        """Releases all callers: this node opens no more pooled sessions."""
        for route in self:
            if route.transport == CALLER:
                self.release(route.key)

    async def take_over(self, route: Route, session_id: str) -> Route | None:
        """Makes this node the owner of a session whose node is gone; None if another node was quicker.

        Raises:
            RoutesUnavailable: the owner is not known.
        """
        self._leaving.pop(route.key, None)  # of an attempt whose answer was lost; see `_claim_caller`
        try:
            taken = await self._store.take_over(route, self.node, self.url)
        except BaseException:
            self._leave(route.owned_by(self.node, self.url), hand_over=True)  # it may be ours all the same
            if len(self._unsure) >= MAX_RELEASES:
                del self._unsure[next(iter(self._unsure))]
            self._unsure[route.key] = None
            raise
        if taken is not None:
            self._keep(taken, session_id)
        return taken

    def frees_late(self, route: Route) -> bool:
        """Frees a route of ours that stands for nothing, where a take-over was given up and has reached the store after
        its release: with another connection. False for any other route."""
        if route.key not in self._unsure:
            return False
        del self._unsure[route.key]
        self._leave(route, hand_over=True)
        return True

    def owns(self, key: str) -> bool:
        """Whether the route is ours, and not being released."""
        return key in self._routes

    def holds(self, key: str) -> bool:
        """Whether the route is ours, or being released."""
        return key in self._routes or key in self._leaving

    def lost(self, route: Route) -> None:
        """Another node has a later token: gives up what we have under this key."""
        ours, session_id = self._routes.get(route.key), self._session_ids.get(route.key)
        if ours is None or ours.token > route.token:  # it has ended, or we have taken it back since
            return
        self._forget(route.key)
        if session_id is None:
            self._on_caller_lost(route)
        else:
            self._on_session_lost(session_id)

    def doubt(self, key: str) -> None:
        """Another node claims to own this route: asks the store."""
        if self._tasks is not None and key in self._routes and key not in self._doubted:
            self._doubted.add(key)
            self._tasks.start_soon(self._ask_for, key)

    async def _ask_for(self, key: str) -> None:
        try:
            while (route := self._routes.get(key)) is not None:
                try:
                    for theirs in await self._store.refresh([route]):
                        log.warning(
                            "Another node has taken over a session or caller of this node (token %d)", theirs.token
                        )
                        self.lost(theirs)
                    return
                except RoutesUnavailable:
                    await anyio.sleep(RELEASE_AGAIN_S)
        except Exception:
            log.exception("Could not look up a route; the next heartbeat will try again")
        finally:
            self._doubted.discard(key)

    def release(self, key: str, *, hand_over: bool = False) -> None:
        """Deletes the route, or with `hand_over` frees it for another node. Does not wait (see `flush`). Idempotent."""
        if key in self._session_ids and not hand_over:
            if len(self._ended) >= MAX_ENDED:
                del self._ended[next(iter(self._ended))]
            self._ended[key] = None
        route = self._forget(key)
        if route is not None:
            self._leave(route, hand_over=hand_over)

    def has_ended(self, key: str) -> bool:
        """Whether the session with this key ended here. A route in the store outweighs it: a node that stood still may
        have ended a session that was taken over meanwhile."""
        return key in self._ended

    def _leave(self, route: Route, *, hand_over: bool) -> None:
        if len(self._leaving) >= MAX_RELEASES:
            self._leaving.pop(next(iter(self._leaving)))
        self._leaving[route.key] = route, hand_over
        self._idle = anyio.Event() if self._idle.is_set() else self._idle
        self._wake.set()

    async def flush(self, within_s: float) -> bool:
        """Waits until all releases were carried out; False if that takes longer."""
        with anyio.move_on_after(within_s):
            while self._leaving:
                await self._idle.wait()
        return not self._leaving

    def _keep(self, route: Route, session_id: str) -> None:
        self._routes[route.key], self._session_ids[route.key] = route, session_id
        self._ended.pop(route.key, None)
        self._unsure.pop(route.key, None)

    def _forget(self, key: str) -> Route | None:
        self._session_ids.pop(key, None)
        return self._routes.pop(key, None)

    async def _release_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._leaving:
                batch = list(self._leaving.items())[:RELEASES_AT_ONCE]
                async with anyio.create_task_group() as tasks:
                    for key, (route, hand_over) in batch:
                        tasks.start_soon(self._release_one, key, route, hand_over)
            self._idle.set()

    async def _release_one(self, key: str, route: Route, hand_over: bool) -> None:
        if self._leaving.get(key) != (route, hand_over):
            return  # claimed again meanwhile
        try:
            await self._store.release(route, hand_over=hand_over)
        except RoutesUnavailable:
            await anyio.sleep(RELEASE_AGAIN_S)
            return
        except Exception:
            log.exception("Could not release a route; it expires by itself")
        if self._leaving.get(key) == (route, hand_over):
            del self._leaving[key]

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def __len__(self) -> int:
        return len(self._routes)
