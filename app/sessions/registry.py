"""SessionRegistry: every session of this node. Makes, finds, sweeps and closes them."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, Self

from app.domain import BackendSpec, Limits, Principal
from app.errors import (
    SESSION_RETRY_S,
    UNKNOWN,
    BackendBusy,
    BackendNotFound,
    Disabled,
    NotFound,
    QuotaExceeded,
    SessionNotFound,
    ShuttingDown,
)
from app.limits.gates import TenantGates
from app.limits.overload import Overload
from app.links.source import LinkSource
from app.metrics import Metrics
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.protocol.lifecycle import SessionState
from app.reached import Reached
from app.routing.routes import session_key
from app.sessions.directory import BackendDirectory
from app.sessions.draining import Draining
from app.sessions.ended import EndedSessions
from app.sessions.endings import BACKEND_EXITED, HANDED_OVER, SHUTDOWN, TAKEN_OVER, Endings
from app.sessions.lifetime import why_over
from app.sessions.ownership import Ownership
from app.sessions.reclaiming import Reclaiming
from app.sessions.session import Session, Surroundings
from app.sessions.session_log import SessionLog
from app.sessions.standstill import Fence
from app.streams.journal import NotDurable

STREAM_AFTER_S = 15.0  # of silence; until then a call can still be answered with JSON and with the right HTTP status
FIRST_TOKEN = 1

log = logging.getLogger(__name__)


AskAgain = Callable[[], Awaitable[None]]  # raises where whoever a session is for may not have it any more


async def for_nobody() -> None:
    """Asks nothing."""


class Durability(Protocol):
    """What keeps sessions so that another node can go on with them, where there are other nodes."""

    def start(self, session: Session, key: str, token: int) -> None:
        """Writes this new session down from now on, if it is of the kind that may go on elsewhere."""

    async def make_safe(self, session: Session) -> None:
        """Waits a moment until it is written down."""

    async def hand_over(self, session: Session) -> None:
        """Writes what is left of one that is closed here, for its next owner.

        Raises:
            NotDurable, RoutesUnavailable: it cannot.
        """


class SessionRegistry:
    """The node's sessions, by id; leaving the `async with` closes every one. `sweep` is to be called often.

    `leaving`: told to stop, not ready any more, though everything is still accepted; `draining`: takes no new sessions.
    With `durability` there are other nodes, and sessions of servers without state outlive this one.
    """

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        directory: BackendDirectory,
        links: LinkSource,
        metrics: Metrics,
        ownership: Ownership,
        *,
        max_sessions: int,
        stream_after_s: float = STREAM_AFTER_S,
        overload: Overload | None = None,
        fence: Fence | None = None,
        durability: Durability | None = None,
        on_timeout: Callable[[Session, Failed], None] = lambda session, failed: None,
    ) -> None:
        self._directory, self._links, self._metrics = directory, links, metrics
        self._on_timeout = on_timeout
        self.overload = overload or Overload(metrics)
        self._ownership, self._max_sessions, self._stream_after_s = ownership, max_sessions, stream_after_s
        self._sessions: dict[str, Session] = {}
        self._hidden: dict[str, Session] = {}  # on their way to another node
        self._ended, self._endings = EndedSessions(), Endings()
        self._log = SessionLog()
        self.gates = TenantGates(metrics, self.overload, are_shared=durability is not None)
        self._durability = durability
        self.leaving = self.draining = False
        self.fence = fence or Fence()
        self.reclaiming = Reclaiming(self, self.fence, ownership)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.take_no_more()
        self.close_where(lambda session: True, SHUTDOWN)

    def leave(self) -> None:
        """The node was told to stop."""
        self.leaving = True

    def take_no_more(self) -> None:
        """There are no new sessions from now on."""
        self.draining = True

    async def open(
        self, principal: Principal, tenant: str, backend: str, transport: str, still_allowed: AskAgain = for_nobody
    ) -> Session:
        """A new session, without a process yet (`connect` takes one); the caller closes it if that fails.

        `still_allowed` is asked once the session is in the registry: it notices a revocation that came before, and one
        that comes later ends the session.

        Raises:
            What `still_allowed` raises.
            BackendNotFound: no such backend.
            Disabled: it, or its tenant, is switched off.
            QuotaExceeded: the tenant, the principal or the node has its number of sessions.
            ShuttingDown: this node takes no new ones.
            Overloaded: likewise, for the moment.
            RoutesUnavailable: the other nodes would not find it.
        """
        self.overload.require_room_for_session()
        is_second_try = False
        while True:
            spec, limits = await self._find_backend(tenant, backend)
            try:
                return await self._open(principal, spec, limits, transport, still_allowed)
            except QuotaExceeded as error:
                if is_second_try or not await self.reclaiming.make_room(error.limit, principal, spec):
                    self._metrics.rate_limited.labels(error.limit).inc()
                    raise
            is_second_try = True

    async def _open(
        self, principal: Principal, spec: BackendSpec, limits: Limits, transport: str, still_allowed: AskAgain
    ) -> Session:
        session_id = self._ownership.new_session_id()
        session = self._admit(session_id, principal, spec, limits, transport)
        try:
            await self._ownership.claim_session(session_id, principal, *spec.key, transport, limits)
            await still_allowed()
        except BaseException:
            session.close("not_claimed")
            self._ownership.release(session_key(session_id))  # it may have been closed before it was claimed
            raise
        if session.state is SessionState.CLOSED:  # by the drain, an administrator
            self._ownership.release(session_key(session_id))
            raise session.refusal or ShuttingDown()
        if self._durability is not None:
            self._durability.start(session, session_key(session_id), FIRST_TOKEN)
        return session

    def restored(
        self, session_id: str, principal: Principal, spec: BackendSpec, limits: Limits, transport: str
    ) -> Session:
        """A session that another node has had; its route is ours already.

        Raises:
            QuotaExceeded: as `open`; the tenant's count is that of this node alone.
            ShuttingDown: this node takes none.
        """
        try:
            return self._admit(session_id, principal, spec, limits, transport)
        except QuotaExceeded as error:
            self._metrics.rate_limited.labels(error.limit).inc()
            raise

    def _admit(
        self, session_id: str, principal: Principal, spec: BackendSpec, limits: Limits, transport: str
    ) -> Session:
        if self.draining:
            raise ShuttingDown
        if len(self._sessions) >= self._max_sessions:
            used = len(self._sessions)
            raise QuotaExceeded(
                "node_sessions",
                f"this node has {used} sessions open; its limit is {self._max_sessions}",
                retry_after_s=SESSION_RETRY_S,
                reached=Reached.of_node("node_sessions", "MAX_SESSIONS", self._max_sessions, used),
            )
        gate = self.gates.of(spec.tenant, limits)
        gate.open_session(principal.identity)
        surroundings = Surroundings(
            transport,
            gate,
            self._metrics,
            self._closed,
            self.fence,
            self._stream_after_s,
            self._on_timeout,
            self._log.opened,
        )
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
        try:
            await session.connect(self._links, limits)
        except BackendBusy as error:
            error.retry_after_s = self.overload.come_back_after_s()
            raise
        self.overload.line.opened()

    async def make_safe(self, session: Session) -> None:
        """Waits a moment until this new session would outlive this node, where it may: its client hears of it next."""
        if self._durability is not None:
            await self._durability.make_safe(session)

    def get(self, session_id: str, principal: Principal, tenant: str, backend: str) -> Session | None:
        """The session on this node, if it is this principal's and of this backend; None where another may have it.

        Raises:
            SessionNotFound: it is here, and somebody else's.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.spec.name != backend or session.spec.tenant != tenant:
            raise SessionNotFound
        # The same object as a moment ago is the usual case; another token of the same principal is another object.
        if principal is not session.principal and principal.identity != session.principal.identity:
            raise SessionNotFound
        return session

    def ended(self, session_id: str, place: EventId, principal: Principal, tenant: str, backend: str) -> Session | None:
        """The principal's session whose process has ended here, if a call's answer comes after this event."""
        session = self._ended.find(session_id, place)
        if session is None or session.principal.identity != principal.identity:
            return None
        return session if session.spec.key == (tenant, backend) else None

    def why_ended(self, session_id: str, principal: Principal, tenant: str, backend: str) -> SessionNotFound:
        """What a client hears whose session is on no node: why it has ended, if it was here, and its own."""
        return self._endings.of(session_id, principal, (tenant, backend))

    def __contains__(self, session_id: str) -> bool:
        """Whether it is on this node, whoever's it is."""
        return session_id in self._sessions

    def lost(self, session_id: str) -> None:
        """Another node owns this session: what we have of it is over."""
        session = self._sessions.get(session_id) or self._hidden.get(session_id)
        if session is not None:
            session.close(TAKEN_OVER)

    def limits_changed(self, tenant: str, limits: Limits) -> None:
        """New limits for what the tenant does from now on."""
        self.gates.configure(tenant, limits)

    def close_where(self, matches: Callable[[Session], bool], reason: str, off: Disabled | None = None) -> int:
        """Closes the sessions that match; how many there were. Their clients hear what is switched `off`, if that is
        why."""
        self._ended.drop(matches)
        doomed = [session for session in self if matches(session)]
        for session in doomed:
            session.close(reason, off and off.again(outcome=UNKNOWN), refusal=off and off.again())
        return len(doomed)

    async def drain(self, seconds: float) -> int:
        """Takes no new sessions, and ends those there are within about `seconds`, calls first: see Draining.

        Returns:
            How many calls were cut off.
        """
        self.take_no_more()
        return await Draining(self, seconds, None if self._durability is None else self.give_away).run()

    def hide(self, session: Session) -> None:
        """New requests for it wait until it is given away; what is in flight goes on (see `Drained`)."""
        if self._sessions.pop(session.id, None) is not None:
            self._hidden[session.id] = session

    async def give_away(self, session: Session) -> None:
        """Ends the session here and frees it for the node that its client asks next (fulfils `HandOver`).

        One that cannot go on elsewhere stays as it is.
        """
        if self._durability is None or session.journal is None or session.journal.is_over:
            return
        session.close(HANDED_OVER)
        goes_on = True  # also where the last write fails: what was written before is usually enough
        try:
            await self._durability.hand_over(session)
        except NotDurable:
            goes_on = False
            raise
        finally:
            self._ownership.release(session_key(session.id), hand_over=goes_on)

    def sessions_of_node(self) -> tuple[int, int]:
        """How many there are, and may be."""
        return len(self._sessions), self._max_sessions

    def calls_in_flight(self) -> int:
        """How many requests of clients wait for their answer."""
        return sum(session.exchange.in_flight for session in self)

    def __len__(self) -> int:
        return len(self._sessions) + len(self._hidden)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._sessions.values(), *self._hidden.values()])

    async def backend(self, tenant: str, backend: str) -> BackendSpec:
        """The backend as it is registered now.

        Raises:
            BackendNotFound: no such backend.
            Disabled: it, or its tenant, is switched off.
        """
        return (await self._find_backend(tenant, backend))[0]

    def require_on(self, tenant: str, backend: str) -> None:
        """See BackendDirectory."""
        self._directory.require_on(tenant, backend)

    async def _find_backend(self, tenant: str, backend: str) -> tuple[BackendSpec, Limits]:
        try:
            return await self._directory.find(tenant, backend)
        except NotFound:
            raise BackendNotFound from None

    def _closed(self, session: Session, reason: str) -> None:
        if self._sessions.pop(session.id, None) is None:
            del self._hidden[session.id]
        if reason == BACKEND_EXITED:
            self._ended.keep(session)
        self._endings.note(session.id, session.principal, session.spec.key, reason)
        if reason != HANDED_OVER:
            self._ownership.release(session_key(session.id))
        session.gate.close_session(session.principal.identity)
        self.gates.drop_unused(session.spec.tenant)
        self._metrics.sessions.labels(session.transport).dec()
        self._metrics.sessions_closed.labels(reason).inc()
        self._metrics.session_seconds.observe(time.monotonic() - session.opened_at)
        self._log.ended(session, reason)

    def sweep(self, now: float, *, look_at_age: bool) -> None:
        """Ends what is overdue, in every session and of what ended ones have left; and sessions that are too old."""
        self._ended.sweep(now)
        for session in self:
            try:
                self._sweep_one(session, now, look_at_age=look_at_age)
            except Exception:
                log.exception("a session could not be swept")
                session.close("internal_error")

    def _sweep_one(self, session: Session, now: float, *, look_at_age: bool) -> None:
        if session.exchange.in_flight or session.exchange.has_questions:
            session.sweep(now)
        if look_at_age:
            session.streams.trim(now)
            if (reason := why_over(session, now)) is not None:
                session.close(reason)

    def __repr__(self) -> str:
        return f"<SessionRegistry [{len(self)} sessions, {self.calls_in_flight()} calls]>"
