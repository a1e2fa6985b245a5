"""SessionRegistry: every session of this node. Makes, finds, sweeps and closes them."""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Self

import anyio
from anyio.abc import TaskGroup

from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendNotFound, GatewayError, NotFound, QuotaExceeded, SessionNotFound, ShuttingDown
from app.limits.gates import TenantGates
from app.metrics import Metrics
from app.sessions.directory import BackendDirectory
from app.sessions.links import LinkSource
from app.sessions.session import Session, Surroundings

SWEEP_S = 0.25  # how late a deadline may be noticed
AGES_EVERY = 4  # sweeps between two looks at the ages of sessions
SESSION_ID_BYTES = 24  # 192 random bits

log = logging.getLogger(__name__)


class SessionRegistry:
    """The node's sessions, by id. `async with` runs its sweep; leaving closes every session."""

    def __init__(self, directory: BackendDirectory, links: LinkSource, metrics: Metrics, *, max_sessions: int) -> None:
        self._directory, self._links, self._metrics = directory, links, metrics
        self._max_sessions = max_sessions
        self._sessions: dict[str, Session] = {}
        self._gates = TenantGates(metrics)
        self._tasks: TaskGroup | None = None
        self.draining = False
        self.on_sweep: Callable[[float], None] = lambda now: None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._sweep_for_ever)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._tasks is None:
            return
        self.draining = True
        self.close_where(lambda session: True, "shutdown", ShuttingDown())
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    async def open(self, principal: Principal, tenant: str, backend: str, transport: str) -> Session:
        """A new session, without a process yet (`connect` takes one); the caller closes it if that fails.

        Raises:
            BackendNotFound: no such backend, or it is disabled.
            QuotaExceeded: the tenant, the principal or the node has its number of sessions.
            ShuttingDown: this node takes no new ones.
        """
        if self.draining:
            raise ShuttingDown
        spec, limits = await self._find_backend(tenant, backend)
        if len(self._sessions) >= self._max_sessions:
            self._metrics.rate_limited.labels("node_sessions").inc()
            raise QuotaExceeded("node_sessions", "this node has as many sessions as it may", retry_after_s=5.0)
        gate = self._gates.of(tenant, limits)
        gate.open_session(principal.identity)
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        surroundings = Surroundings(transport, gate, self._metrics, self._closed)
        session = self._sessions[session_id] = Session(session_id, principal, spec, surroundings)
        self._metrics.sessions.labels(transport).inc()
        self._metrics.sessions_opened.labels(transport).inc()
        return session

    async def connect(self, session: Session) -> None:
        """Gives the session its process; where there is none to be had, the caller closes it.

        Raises:
            GatewayError: as BackendDirectory.find, LinkSource.lease and Session.connect.
        """
        _, limits = await self._find_backend(*session.spec.key)
        await session.connect(self._links, limits)

    def find(self, session_id: str, principal: Principal, tenant: str, backend: str) -> Session:
        """The session with this id, if it is this principal's and of this backend.

        Raises:
            SessionNotFound: there is none, or it is somebody else's: the same either way.
        """
        session = self._sessions.get(session_id)
        if session is None or session.spec.name != backend or session.spec.tenant != tenant:
            raise SessionNotFound
        # The same object as a moment ago is the usual case; another token of the same principal is another object.
        if principal is not session.principal and principal.identity != session.principal.identity:
            raise SessionNotFound
        return session

    def limits_changed(self, tenant: str, limits: Limits) -> None:
        """New limits for what the tenant does from now on."""
        self._gates.configure(tenant, limits)

    def close_where(self, matches: Callable[[Session], bool], reason: str, error: GatewayError | None = None) -> int:
        """Closes the sessions that match; how many there were."""
        doomed = [session for session in self._sessions.values() if matches(session)]
        for session in doomed:
            session.close(reason, error)
        return len(doomed)

    async def drain(self, seconds: float) -> int:
        """Takes no new sessions, waits until no call is in flight (at most `seconds`), then closes every session.

        Returns:
            How many calls were cut off.
        """
        self.draining = True
        with anyio.move_on_after(seconds):
            while self.calls_in_flight():  # noqa: ASYNC110 - no call pays for an event that only a drain needs
                await anyio.sleep(0.05)
        cut_off = self.calls_in_flight()
        self.close_where(lambda session: True, "shutdown", ShuttingDown())
        return cut_off

    def calls_in_flight(self) -> int:
        """How many requests of clients wait for their answer."""
        return sum(len(session.exchange.calls) for session in self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    async def _find_backend(self, tenant: str, backend: str) -> tuple[BackendSpec, Limits]:
        try:
            return await self._directory.find(tenant, backend)
        except NotFound:
            raise BackendNotFound from None

    def _closed(self, session: Session, reason: str) -> None:
        del self._sessions[session.id]
        session.gate.close_session(session.principal.identity)
        self._gates.drop_unused(session.spec.tenant)
        self._metrics.sessions.labels(session.transport).dec()
        self._metrics.sessions_closed.labels(reason).inc()
        self._metrics.session_seconds.observe(time.monotonic() - session.opened_at)

    async def _sweep_for_ever(self) -> None:
        tick = 0
        while True:
            await anyio.sleep(SWEEP_S)
            tick += 1
            now = time.monotonic()
            self.on_sweep(now)
            for session in list(self._sessions.values()):
                try:
                    self._sweep_one(session, now, look_at_age=tick % AGES_EVERY == 0)
                except Exception:
                    log.exception("a session could not be swept")
                    session.close("internal_error")

    def _sweep_one(self, session: Session, now: float, *, look_at_age: bool) -> None:
        if session.exchange.calls or session.exchange.has_questions:
            session.sweep(now)
        if look_at_age and (reason := session.expired(now)) is not None:
            session.close(reason)

    def __repr__(self) -> str:
        return f"<SessionRegistry [{len(self)} sessions, {self.calls_in_flight()} calls]>"
