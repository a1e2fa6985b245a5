"""Ownership: the routes that this node holds. Claims them before a session opens, releases them after it has ended."""

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Self

import anyio
from anyio.abc import TaskGroup

from app.domain import Limits, Principal
from app.errors import QuotaExceeded, RoutesUnavailable
from app.routing.routes import CALLER, Quota, Route, RouteStore, caller_key, session_key, tag_of
from app.sessions.session import Session

SESSION_ID_BYTES = 24  # 192 random bits
MAX_RELEASES = 10_000  # that wait for a store that is away; what is not released lapses, and expires
RELEASE_AGAIN_S = 1.0
RELEASES_AT_ONCE = 16
MAX_ENDED = 10_000  # above it the first to end is forgotten: 503 instead of 404, and only while Redis is new

log = logging.getLogger(__name__)


class Ownership:
    """What this node owns, by route key. `async with` runs the releases; leaving waits for none of them."""

    def __init__(self, store: RouteStore, node: str, url: str) -> None:
        self.node, self.url = node, url
        self._store = store
        self._routes: dict[str, Route] = {}
        self._leaving: dict[str, tuple[Route, bool]] = {}  # to be released, and whether as a hand-over
        self._wake = anyio.Event()
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._session_ids: dict[str, str] = {}  # of the routes that are sessions
        self._ended: dict[str, None] = {}  # keys of sessions that ended here; those never come back
        self._claiming: dict[str, anyio.Lock] = {}
        self._doubted: set[str] = set()  # routes that are being asked for
        self.on_session_lost: Callable[[str], None] = lambda session_id: None
        self.on_caller_lost: Callable[[Route], None] = lambda route: None

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

    def new_session_id(self) -> str:
        """An id that nobody can guess, and that says who gave it out: a lost route does not lose the session."""
        return f"{tag_of(self.node)}.{secrets.token_urlsafe(SESSION_ID_BYTES)}"

    async def claim_session(
        self, session_id: str, principal: Principal, tenant: str, backend: str, transport: str, limits: Limits
    ) -> None:
        """Makes this node the owner of a new session.

        Raises:
            QuotaExceeded: the tenant or the principal has its number of sessions, over all nodes.
            RoutesUnavailable: nobody would find it.
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
        self._keep(route, session_id)  # not before: a refresh would write what is refused, a release come too early

    async def claim_caller(self, principal: Principal, tenant: str, backend: str, free: Route | None) -> Route | None:
        """The route of this caller's lines: ours from now on, unless another living node has it.

        `free` is the route as its last owner left it, if there is one; None where somebody else was quicker.

        Raises:
            RoutesUnavailable: nobody knows whose it is.
        """
        key = caller_key(principal.identity, tenant, backend)
        lock = self._claiming.setdefault(key, anyio.Lock())
        try:
            async with lock:  # of several requests that come at once, one claims
                route = Route(key, self.node, self.url, 1, tenant, backend, principal.identity, CALLER)
                return self._routes.get(key) or await self._claim_caller(route, free)
        finally:
            if not lock.locked():
                self._claiming.pop(key, None)

    async def _claim_caller(self, route: Route, free: Route | None) -> Route | None:
        self._leaving.pop(route.key, None)  # a release that has been sent comes before the claim
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

    def may_have_line(self, session: Session) -> bool:
        """Whether a caller's line may be on this node."""
        return not session.spec.keeps_state or self.owns(caller_key(session.principal.identity, *session.spec.key))

    def release_callers(self) -> None:
        """Lets other nodes have the callers: this one opens no more lines."""
        for route in self:
            if route.transport == CALLER:
                self.release(route.key)

    async def take_over(self, route: Route, session_id: str) -> Route | None:
        """Makes this node the owner of a session that nobody has any more; None where somebody else was quicker.

        Raises:
            RoutesUnavailable: nobody knows whose it is now.
        """
        self._leaving.pop(route.key, None)  # of an attempt whose answer got lost; see `_claim_caller`
        try:
            taken = await self._store.take_over(route, self.node, self.url)
        except BaseException:
            self._leave(route.owned_by(self.node, self.url), hand_over=True)  # it may be ours all the same
            raise
        if taken is not None:
            self._keep(taken, session_id)
        return taken

    def owns(self, key: str) -> bool:
        """Whether the route is ours, and to stay."""
        return key in self._routes

    def holds(self, key: str) -> bool:
        """Whether the route is ours, or on its way out."""
        return key in self._routes or key in self._leaving

    def lost(self, route: Route) -> None:
        """Another node has a later token: what we have under this key is over."""
        ours, session_id = self._routes.get(route.key), self._session_ids.get(route.key)
        if ours is None or ours.token > route.token:  # what was asked about is over, or was taken back since
            return
        self._forget(route.key)
        if session_id is None:
            self.on_caller_lost(route)
        else:
            self.on_session_lost(session_id)

    def doubt(self, key: str) -> None:
        """Somebody says that this route is another node's: asks the store, which alone can tell."""
        if self._tasks is not None and key in self._routes and key not in self._doubted:
            self._doubted.add(key)
            self._tasks.start_soon(self._ask_for, key)

    async def _ask_for(self, key: str) -> None:
        try:
            while (route := self._routes.get(key)) is not None:
                try:
                    for theirs in await self._store.refresh([route]):
                        log.warning("Another node has taken a route over: token %d", theirs.token)
                        self.lost(theirs)
                    return
                except RoutesUnavailable:
                    await anyio.sleep(RELEASE_AGAIN_S)
        except Exception:
            log.exception("Could not look up a route; the next heartbeat will try again")
        finally:
            self._doubted.discard(key)

    def release(self, key: str, *, hand_over: bool = False) -> None:
        """Ends the route, or frees it for another node; carried out soon, `flush` waits for it. Idempotent."""
        if key in self._session_ids and not hand_over:
            self._has_come_to_its_end(key)
        route = self._forget(key)
        if route is not None:
            self._leave(route, hand_over=hand_over)

    def has_ended(self, key: str) -> bool:
        """Whether the session with this key ended here. A node that stood still may believe so of one that was taken
        from it meanwhile: a route goes before."""
        return key in self._ended

    def _has_come_to_its_end(self, key: str) -> None:
        if len(self._ended) >= MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[key] = None

    def _leave(self, route: Route, *, hand_over: bool) -> None:
        if len(self._leaving) >= MAX_RELEASES:
            self._leaving.pop(next(iter(self._leaving)))
        self._leaving[route.key] = route, hand_over
        self._idle = anyio.Event() if self._idle.is_set() else self._idle
        self._wake.set()

    async def flush(self, within_s: float) -> bool:
        """Waits until every release was carried out; False if that took longer."""
        with anyio.move_on_after(within_s):
            while self._leaving:
                await self._idle.wait()
        return not self._leaving

    def _keep(self, route: Route, session_id: str) -> None:
        self._routes[route.key], self._session_ids[route.key] = route, session_id
        self._ended.pop(route.key, None)

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

    def __repr__(self) -> str:
        return f"<Ownership {self.node} [{len(self._routes)} routes, {len(self._leaving)} leaving]>"
