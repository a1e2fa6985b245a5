"""SessionTakeover: makes this node the owner of a session of a dead node, and rebuilds it where its backend allows."""

import logging
import time
from collections.abc import Awaitable, Callable

import anyio

from app.cluster.durability import is_durable
from app.domain import BackendSpec, Limits, public_id
from app.errors import Disabled, NotFound, SessionNotFound
from app.sessions.directory import BackendDirectory
from app.sessions.endings import HANDED_OVER
from app.sessions.ownership import Ownership
from app.sessions.routes import Route
from app.sessions.session import Session
from app.sessions.sessionless.pooled_sessions import Caller
from app.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

Rebuild = Callable[[str, Route, BackendSpec, Limits], Awaitable[Session | None]]
"""Makes a session from its journal (`Durability.restore`), if there is one. Raises GatewayError."""


class SessionTakeover:
    """One attempt per session at a time; further requests wait for it."""

    def __init__(self, ownership: Ownership, directory: BackendDirectory, rebuild: Rebuild, metrics: Metrics) -> None:
        self._ownership, self._directory, self._rebuild = ownership, directory, rebuild
        self._takeovers = metrics.takeovers
        self._under_way: dict[str, anyio.Lock] = {}

    async def __call__(
        self, session_id: str, route: Route, caller: Caller, find: Callable[[], Session | None]
    ) -> Session | None:
        """The session, which is now on this node; None if another node was faster: look it up again. `find` looks for
        it on this node, because another request may have taken it over.

        Raises:
            SessionNotFound: it is not this caller's, or has ended with its node.
            GatewayError: it cannot be taken over now.
        """
        if (route.identity, route.tenant, route.backend) != caller.key:
            raise SessionNotFound
        lock = self._under_way.setdefault(route.key, anyio.Lock())
        try:
            async with lock:
                return find() or await self._take(session_id, route)
        finally:
            if not lock.locked():
                self._under_way.pop(route.key, None)

    def is_under_way(self, key: str) -> bool:
        return key in self._under_way

    async def _take(self, session_id: str, route: Route) -> Session | None:
        began_at, names = time.monotonic(), _names(session_id, route)
        taken = await self._ownership.take_over(route, session_id)
        if taken is None:
            self._takeovers.labels("lost_race").inc()
            return None
        try:
            session = await self._restore(session_id, taken, names)
        except SessionNotFound:
            self._ownership.release(taken.key)
            self._takeovers.labels("ended").inc()
            raise
        except BaseException:
            self._ownership.release(taken.key, hand_over=True)  # the next request may try again
            self._takeovers.labels("failed").inc()
            raise
        self._takeovers.labels("restored").inc()
        log.info("took over a session", extra={**names, "ms": round((time.monotonic() - began_at) * 1000, 1)})
        return session

    async def _restore(self, session_id: str, route: Route, names: dict[str, str]) -> Session:
        try:
            spec, limits = await self._directory.find(route.tenant, route.backend)
        except (NotFound, Disabled):
            raise self._end(names, "its backend is gone or switched off") from None
        if not is_durable(spec, route.transport):
            what = f"its transport is {route.transport}, its backend's recovery {spec.recovery}"
            raise self._end(names, what + (", and not all tools are shown" if spec.is_toolset else ""))
        session = await self._rebuild(session_id, route, spec, limits)
        if session is None:
            raise self._end(names, "it has no journal")
        try:
            await self._directory.find(route.tenant, route.backend)  # cached, unless something has changed
        except (NotFound, Disabled):
            session.close("backend_removed")
            raise self._end(names, "its backend is gone or switched off") from None
        except BaseException:  # the route is freed: the session must not stay here as well
            session.close(HANDED_OVER)
            if session.journal is not None:
                session.journal.let_go()  # for the next owner, as it was found
            raise
        return session

    def _end(self, names: dict[str, str], why: str) -> SessionNotFound:
        log.info("A session ended with its node: %s", why, extra=names)
        return SessionNotFound()


def _names(session_id: str, route: Route) -> dict[str, str]:
    """For the log. A session that was handed over does not say by which node."""
    names = {"session": public_id(session_id), "tenant": route.tenant, "backend": route.backend}
    return {**names, "from_node": route.node} if route.node else names
