"""SessionRegistry: the sessions of this node. Opens, finds, sweeps and closes them."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol, Self

from app.backends.connections.source import ConnectionSource
from app.domain import BackendSpec, Limits, Principal
from app.errors import (
    SESSION_RETRY_S,
    UNKNOWN,
    BackendBusy,
    BackendNotFound,
    Disabled,
    LimitReached,
    NotFound,
    QuotaExceeded,
    SessionNotFound,
    ShuttingDown,
)
from app.limits.overload import Overload
from app.limits.tenant_limits import Tallies, TenantGates
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.protocol.jsonrpc import Notification
from app.sessions._draining import Draining
from app.sessions._ended import EndedSessions
from app.sessions.call_observers import UNWATCHED, Watchers, getting_a_process, program_of
from app.sessions.directory import BackendDirectory
from app.sessions.endings import BACKEND_EXITED, HANDED_OVER, SHUTDOWN, Endings
from app.sessions.loop_pause import StandstillDetector
from app.sessions.open_sessions import OpenSessions
from app.sessions.ownership import Ownership
from app.sessions.parking import Parking
from app.sessions.reclaiming import RELEASED_WITHIN_S, Reclaiming
from app.sessions.session import Session, SessionState, Surroundings
from app.sessions.session_ids import new_session_id, session_key
from app.sessions.streams.journal import NotDurable
from app.sessions.sweeping import Sweeping
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics

STREAM_AFTER_S = 15.0  # of silence; until then a call can still be answered with JSON and with the right HTTP status
FIRST_TOKEN = 1

log = logging.getLogger(__name__)

AskAgain = Callable[[], Awaitable[None]]  # raises if the principal may not have the session any more


async def for_nobody() -> None:
    """Allows everything."""


class Durability(Protocol):
    """Stores sessions so that other nodes can continue them."""

    def start(self, session: Session, key: str, token: int) -> None:
        """Stores this new session from now on, if its backend and transport allow."""

    async def make_safe(self, session: Session) -> None:
        """Waits until it is stored, for a bounded time."""

    async def hand_over(self, session: Session) -> None:
        """Stores what is left of a closed session, for its next owner. Raises NotDurable, RoutesUnavailable."""


class SessionRegistry:
    """The node's sessions, by id; leaving the `async with` closes all. `idle.sweeping.sweep_for_ever` has to run.

    `leaving`: the node was told to stop and is not ready, but still accepts everything; `draining`: it opens no
    sessions. With `durability` there are other nodes.
    """

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        directory: BackendDirectory,
        connections: ConnectionSource,
        metrics: Metrics,
        ownership: Ownership,
        *,
        max_sessions: int,
        stream_after_s: float = STREAM_AFTER_S,
        overload: Overload | None = None,
        sessions: OpenSessions | None = None,
        standstill: StandstillDetector | None = None,
        parking: Parking | None = None,
        durability: Durability | None = None,
        on_timeout: Callable[[Session, Failed], None] = lambda session, failed: None,
        tallies: Tallies | None = None,
        watchers: Watchers = UNWATCHED,
    ) -> None:
        self._directory, self._connections, self._metrics = directory, connections, metrics
        self._on_timeout, self._watchers = on_timeout, watchers
        self.overload = overload or Overload(metrics)
        self._ownership, self._max_sessions, self._stream_after_s = ownership, max_sessions, stream_after_s
        self._sessions = OpenSessions() if sessions is None else sessions
        self._by_id = self._sessions.by_id
        self._ended, self._endings = EndedSessions(), Endings()
        self._log = Thinned(log)
        self.gates = TenantGates(metrics, self.overload, are_shared=durability is not None, tallies=tallies)
        self._durability = durability
        self.leaving = False
        self.standstill = standstill or StandstillDetector()
        self._parking = parking or Parking(self.standstill, metrics)
        self.reclaiming = Reclaiming(self._sessions, self.standstill, self._parking)
        self.sweeping = Sweeping(self._sessions, self._ended, self._parking)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.take_no_more()
        self.close_where(lambda session: True, SHUTDOWN)

    def leave(self) -> None:
        """The node was told to stop."""
        self.leaving = True

    def take_no_more(self) -> None:
        """Opens no sessions from now on."""
        self._sessions.take_no_more()

    @property
    def draining(self) -> bool:
        return self._sessions.draining

    @property
    def is_stopping(self) -> bool:
        """Whether another node should open new sessions."""
        return self.leaving or self._sessions.draining

    async def open(
        self, principal: Principal, tenant: str, backend: str, transport: str, still_allowed: AskAgain = for_nobody
    ) -> Session:
        """A new session without a process (`connect` leases one); the caller closes it if that fails.

        `still_allowed` is called once the session is in the registry: it notices an earlier revocation, and a later one
        ends the session.

        Raises:
            What `still_allowed` raises.
            BackendNotFound, Disabled: as `backend`.
            QuotaExceeded: the tenant, the principal or the node has reached its limit of sessions.
            ShuttingDown, Overloaded: this node opens no sessions, or none for the moment.
            RoutesUnavailable: the other nodes would not find it.
        """
        self.overload.require_room_for_session()
        is_second_try = False
        while True:
            spec, limits = await self._find_backend(tenant, backend)
            try:
                return await self._open(principal, spec, limits, transport, still_allowed)
            except QuotaExceeded as error:
                if is_second_try or not self.reclaiming.make_room(error.limit, principal, spec):
                    self._metrics.rate_limited.labels(error.limit).inc()
                    raise
                await self._ownership.flush(RELEASED_WITHIN_S)  # until then the store counts the ended session
            is_second_try = True

    async def _open(
        self, principal: Principal, spec: BackendSpec, limits: Limits, transport: str, still_allowed: AskAgain
    ) -> Session:
        session_id = new_session_id(self._ownership.node)
        session = self._admit(session_id, principal, spec, limits, transport)
        self._sessions.announce(session)
        try:
            await self._ownership.claim_session(session_id, principal, *spec.key, transport, limits)
            await still_allowed()
        except BaseException:
            session.close("not_claimed")
            self._ownership.release(session_key(session_id))  # it may have been closed before it was claimed
            raise
        if session.state is SessionState.CLOSED:  # by the drain or an administrator
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
            QuotaExceeded: as `open`, but only this node's sessions are counted.
            ShuttingDown: as `open`.
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
        used = len(self._by_id)
        if used >= self._max_sessions:
            raise QuotaExceeded(
                "node_sessions",
                f"this node has {used} sessions open; its limit is {self._max_sessions}",
                retry_after_s=SESSION_RETRY_S,
                reached=LimitReached.of_node("node_sessions", "MAX_SESSIONS", self._max_sessions, used),
            )
        gate = self.gates.of(spec.tenant, limits)
        gate.open_session(principal.identity)
        surroundings = Surroundings(
            transport,
            gate,
            self._metrics,
            self._closed,
            self.standstill,
            self._stream_after_s,
            self._on_timeout,
            self._opened,
            self._watchers,
            self.sweeping.note,
        )
        session = Session(session_id, principal, spec, surroundings)
        self._sessions.add(session)
        self._metrics.sessions.labels(transport).inc()
        self._metrics.sessions_opened.labels(transport).inc()
        return session

    def _opened(self, session: Session, how: str) -> None:
        self._log.info("opened", "session opened", _opened_fields(session, how))
        if how == "taken over":  # only now it is known when it was opened
            self._sessions.announce(session)

    async def connect(self, session: Session) -> None:
        """Leases the session's process, within its tenant's limits of now. Raises as `backend` and Session.connect:
        then the caller closes it."""
        try:
            with getting_a_process(self._watchers.tracer, session):
                await session.connect(self._connections, session.gate.limits)
        except BackendBusy as error:
            error.again_after(max(error.retry_after_s or 0.0, self.overload.retry_after_s()))
            raise
        except SessionNotFound:  # an administrator has ended it, perhaps by removing its backend
            await self._find_backend(*session.spec.key)
            raise
        self.overload.retry_after.session_opened()

    async def make_safe(self, session: Session) -> None:
        """Waits, for a bounded time, until this new session would survive this node; its client hears of it next."""
        if self._durability is not None:
            await self._durability.make_safe(session)

    def get(
        self, session_id: str, principal: Principal, tenant: str, backend: str, cancel: Notification | None = None
    ) -> Session | None:
        """The session, if it is this principal's and of this backend; None if it is not on this node, or if it takes
        nothing new here any more: then `cancel` may still cancel one of its last calls.

        Raises:
            SessionNotFound: it is another principal's or of another backend.
        """
        session = self._by_id.get(session_id)
        if session is None and cancel is not None:
            leaving = self._sessions.hidden.get(session_id)
            session = leaving if leaving is not None and leaving.exchange.cancels(cancel) else None
        if session is None:
            return None
        if session.spec.name != backend or session.spec.tenant != tenant:
            raise SessionNotFound
        if principal is not session.principal:  # it has another one for each of its tokens
            if principal.identity != session.principal.identity:
                raise SessionNotFound
            session.known_as(principal)
        return session

    def ended(self, session_id: str, place: EventId, principal: Principal, tenant: str, backend: str) -> Session | None:
        """A session of the principal whose process has ended, if there is an answer after this event on its stream."""
        session = self._ended.find(session_id, place)
        if session is None or session.principal.identity != principal.identity:
            return None
        return session if session.spec.key == (tenant, backend) else None

    def why_ended(self, session_id: str, principal: Principal, tenant: str, backend: str) -> SessionNotFound:
        """The error for a client whose session is on no node: why it has ended, if it was here and the principal's."""
        return self._endings.of(session_id, principal, (tenant, backend))

    def __contains__(self, session_id: str) -> bool:
        """Whether it is on this node, whoever owns it."""
        return session_id in self._by_id or session_id in self._sessions.hidden

    def close_where(self, matches: Callable[[Session], bool], reason: str, off: Disabled | None = None) -> int:
        """Closes the sessions that match, and returns how many. `off` says what was switched off, if that is why."""
        self._ended.drop(matches)
        doomed = [session for session in self if matches(session)]
        for session in doomed:
            session.close(reason, off and off.again(outcome=UNKNOWN), refusal=off and off.again())
        return len(doomed)

    async def drain(self, seconds: float) -> int:
        """Ends all sessions within about `seconds` (see Draining), opens none; returns how many calls it cut off."""
        self.take_no_more()
        return await Draining(self._sessions, seconds, None if self._durability is None else self.give_away).run()

    async def give_away(self, session: Session) -> None:
        """Closes a durable session here, and frees it for the node that its client asks next; others stay as they are.

        Raises:
            NotDurable, RoutesUnavailable: its last state could not be stored.
        """
        if self._durability is None or session.journal is None or session.journal.is_over:
            return
        session.close(HANDED_OVER)
        goes_on = True  # also if the last write fails: what was written before is usually enough
        try:
            await self._durability.hand_over(session)
        except NotDurable:
            goes_on = False
            raise
        finally:
            self._ownership.release(session_key(session.id), hand_over=goes_on)

    def sessions_of_node(self) -> tuple[int, int]:
        """How many there are, and the limit."""
        return len(self._by_id), self._max_sessions

    def calls_in_flight(self) -> int:
        """How many requests of clients wait for their answer."""
        return self._sessions.calls_in_flight()

    def shown(self, tenant: str | None) -> Mapping[str, Session]:
        """As OpenSessions.shown."""
        return self._sessions.shown(tenant)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    async def backend(self, tenant: str, backend: str) -> BackendSpec:
        """The backend as it is registered now.

        Raises:
            BackendNotFound: it is not.
            Disabled: it, or its tenant, is switched off.
        """
        return (await self._find_backend(tenant, backend))[0]

    def require_on(self, tenant: str, backend: str) -> None:
        """As BackendDirectory.require_on."""
        self._directory.require_on(tenant, backend)

    async def _find_backend(self, tenant: str, backend: str) -> tuple[BackendSpec, Limits]:
        try:
            return await self._directory.find(tenant, backend)
        except NotFound:
            raise BackendNotFound from None

    def _closed(self, session: Session, reason: str) -> None:
        self._sessions.remove(session)
        if reason == BACKEND_EXITED:
            self._ended.keep(session)
        self._endings.note(session.id, session.principal, session.spec.key, reason)
        if reason != HANDED_OVER:
            self._ownership.release(session_key(session.id))
        session.gate.close_session(session.principal.identity, session.calls.begun)
        self.gates.drop_unused(session.spec.tenant)
        self._metrics.sessions.labels(session.transport).dec()
        self._metrics.sessions_closed.labels(reason).inc()
        self._metrics.session_seconds.observe(time.monotonic() - session.opened_at)
        self._log.info(("ended", reason), "session ended", session.log_fields | {  # also of one that never opened
            "reason": reason,
            "seconds": round(time.monotonic() - session.opened_at, 1),
            "calls": session.calls.begun,
            "bytes_to_backend": session.calls.bytes_sent,
            "bytes_from_backend": session.bytes_received,
        })  # fmt: skip


def _opened_fields(session: Session, how: str) -> dict[str, object]:
    """Of its log line: which client, which process, how long it took. `how`: "handshake"; "taken over" from another
    node; or "no handshake" (2026-07-28)."""
    fields = session.log_fields | {"transport": session.transport, "revision": session.version, "how": how}
    if how != "taken over":  # there it was opened long ago, and here its process is still being started
        fields |= {
            "backend_process": session.connection.process,
            "start": "warm" if session.connection.was_warm else "cold",
            "waited_ms": round(session.waited_s * 1000, 1),
            "opened_ms": round((time.monotonic() - session.opened_at) * 1000, 1),
        }
    return fields | {f"client_{name}": text for name, text in program_of(session).items()}
