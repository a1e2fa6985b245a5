"""TakeOver: makes this node the owner of a session whose node is gone, and rebuilds it where its backend allows."""

import logging
from collections.abc import Callable
from typing import Protocol

import anyio

from app.cluster.durability import is_durable
from app.domain import BackendSpec, Limits, public_id
from app.errors import Disabled, NotFound, SessionNotFound
from app.metrics import Metrics
from app.routing.routes import Route
from app.sessionless.pooled_sessions import Caller
from app.sessions.directory import BackendDirectory
from app.sessions.ownership import Ownership
from app.sessions.session import Session

log = logging.getLogger(__name__)


class Rebuild(Protocol):
    """Makes a session from what its last node has written down."""

    async def __call__(self, session_id: str, route: Route, spec: BackendSpec, limits: Limits) -> Session | None:
        """The session, in the registry; None where nothing was written down.

        Raises:
            GatewayError: it cannot be read, or this node takes no more sessions.
        """


class TakeOver:
    """One attempt per session at a time; a second request waits for the first one's."""

    def __init__(self, ownership: Ownership, directory: BackendDirectory, rebuild: Rebuild, metrics: Metrics) -> None:
        self._ownership, self._directory, self._rebuild = ownership, directory, rebuild
        self._takeovers = metrics.takeovers
        self._under_way: dict[str, anyio.Lock] = {}

    async def __call__(
        self, session_id: str, route: Route, caller: Caller, find: Callable[[], Session | None]
    ) -> Session | None:
        """The session, ours from now on; None where somebody else was quicker: look it up again.

        `find` looks for the session on this node, for whoever had to wait here.

        Raises:
            SessionNotFound: it is not this caller's, or it has ended with its node.
            RoutesUnavailable, GatewayError: not now.
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
        """Whether the session with this route key is being taken over."""
        return key in self._under_way

    async def _take(self, session_id: str, route: Route) -> Session | None:
        taken = await self._ownership.take_over(route, session_id)
        if taken is None:
            self._takeovers.labels("lost_race").inc()
            return None
        try:
            session = await self._restore(session_id, taken)
        except SessionNotFound:
            self._ownership.release(taken.key)
            self._takeovers.labels("ended").inc()
            raise
        except BaseException:
            self._ownership.release(taken.key, hand_over=True)  # whoever asks next may try again
            self._takeovers.labels("failed").inc()
            raise
        self._takeovers.labels("restored").inc()
        log.info("took over a session", extra=_names(session_id, route))
        return session

    async def _restore(self, session_id: str, route: Route) -> Session:
        try:
            spec, limits = await self._directory.find(route.tenant, route.backend)
        except (NotFound, Disabled):
            raise self._end(session_id, route, "its backend is gone or switched off") from None
        if not is_durable(spec, route.transport):
            raise self._end(
                session_id, route, f"its transport is {route.transport}, its backend's recovery {spec.recovery}"
            )
        session = await self._rebuild(session_id, route, spec, limits)
        if session is None:
            raise self._end(session_id, route, "nothing was written down of it")
        try:
            await self._directory.find(route.tenant, route.backend)  # asks nobody unless something has changed
        except (NotFound, Disabled):
            session.close("backend_removed")
            raise self._end(session_id, route, "its backend is gone or switched off") from None
        return session

    def _end(self, session_id: str, route: Route, why: str) -> SessionNotFound:
        log.info("a session has ended with its node: %s", why, extra=_names(session_id, route))
        return SessionNotFound()


def _names(session_id: str, route: Route) -> dict[str, str]:
    return {
        "session": public_id(session_id),
        "tenant": route.tenant,
        "backend": route.backend,
        "from_node": route.node,
    }
