"""PooledSessions: the sessions that the gateway opens itself, for clients of 2026-07-28, whose requests name none.

They are kept per principal with its groups, backend and client capabilities. The oldest is home: all calls go there,
several at once, so that a server keeps its state. Only with `recovery: respawn` a call that may be asked something, or
wants log messages, has a session for itself until it is answered; the others share.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import msgspec

from app.backends.connections.era import probe_s
from app.concurrency.event import Event
from app.domain import Principal
from app.errors import BackendExited, BackendTimeout, GatewayError, InvalidResponse, NodeUnavailable, SessionNotFound
from app.protocol.commands import Failed, ToStream
from app.protocol.eras.sessionless_envelope import Envelope, across_eras, own_envelope, refuses_handshake
from app.protocol.jsonrpc import Notification, Params, Request, Response, dump_response, encode, members_of
from app.protocol.revisions import Revision
from app.sessions.endings import TAKEN_OVER
from app.sessions.registry import AskAgain, SessionRegistry, for_nobody
from app.sessions.session import Session, SessionState
from app.sessions.sessionless._unsolicited import UnsolicitedMessages
from app.sessions.sessionless.pooled_session import (
    CallerHomes,
    CallerKey,
    Group,
    Need,
    PooledSession,
    adopted,
    discovered,
    kept,
    reserved_of,
)
from app.sessions.streams.streams import Reply

TRANSPORT = "modern"
MAX_CAPABILITY_SETS = 4  # of one principal and backend; the least recently used goes first
LEGACY_CAPABILITIES = ("roots", "sampling", "elicitation")


GroupKey = tuple[bytes, frozenset[str]]  # capabilities of the client, and groups of its principal


class Caller(NamedTuple):
    """Who calls which backend, and from where. `still_allowed` is called after waits; it raises if access was lost."""

    principal: Principal
    tenant: str
    backend: str
    still_allowed: AskAgain = for_nobody
    address: Callable[[], str] = str  # unknown

    @property
    def key(self) -> CallerKey:
        """Equal for requests that may share pooled sessions if their client capabilities are the same."""
        return (self.principal.identity, self.tenant, self.backend)


@dataclass(eq=False, slots=True)
class _Mine:
    """The pooled sessions of one caller."""

    groups: dict[GroupKey, Group] = field(default_factory=dict)  # the most recently used last
    takers: int = 0  # requests that need a pooled session, or have one

    def request_came(self) -> None:
        self.takers += 1

    def request_left(self) -> None:
        self.takers -= 1

    def prune(self) -> bool:
        """Forgets empty groups where no request is under way; whether nothing is left."""
        if not self.takers:
            self.groups = {key: group for key, group in self.groups.items() if group.sessions}
        return not self.takers and not self.groups


class PooledSessions:
    """Finds or opens the pooled session for a request. The registry owns the sessions.

    Events: `said`, a message of a process that belongs to no call; `ended`, a pooled session is gone or retired.
    """

    def __init__(self, registry: SessionRegistry, homes: CallerHomes) -> None:
        self._registry = registry
        self._may_serve, self._on_caller_gone = homes
        self._callers: dict[CallerKey, _Mine] = {}
        # Backend -> its edition, and whether it is sessionless.
        self._eras: dict[tuple[str, str], tuple[tuple[int, int], bool]] = {}
        self._leaving: set[PooledSession] = set()  # retired ones that still have calls
        self._being_pinged: set[PooledSession] = set()
        self._serial = 0
        self.said = Event[[Session, ToStream]]()
        self.ended = Event[[Session]]()

    def speaks_sessionless(self, caller: Caller) -> bool | None:
        """Whether the backend speaks 2026-07-28 itself; None where that is not known yet."""
        era = self._eras.get((caller.tenant, caller.backend))
        return None if era is None else era[1]

    def of(self, caller: CallerKey) -> Iterator[PooledSession]:
        mine = self._callers.get(caller)
        return iter([] if mine is None else [pooled for group in mine.groups.values() for pooled in group.sessions])

    # --- taking one

    @contextmanager
    def expecting(self, caller: CallerKey) -> Iterator[None]:
        """Within this block the caller is not given up, even without a pooled session."""
        mine = self._callers.setdefault(caller, _Mine())
        mine.request_came()
        try:
            yield
        finally:
            mine.request_left()
            self._prune(caller)

    async def take(self, caller: Caller, envelope: Envelope, need: Need) -> PooledSession:
        """The oldest pooled session that takes the request, or a new one.

        Raises:
            GatewayError: as SessionRegistry.open and ProcessPool.lease; or the backend failed its handshake.
            NodeUnavailable: another node serves this caller by now.
        """
        with self.expecting(caller.key):
            while True:
                group = self.group(caller, envelope)
                if (pooled := group.pick(need)) is not None:
                    pooled.session.client_seen()  # it must not end as idle before the request
                    return pooled
                if group.opens_at_once(need):
                    return self._keep(caller, envelope, await self._open(caller, envelope))
                async with group.opening:  # of several that come at once, one opens it for all
                    group = self.group(caller, envelope)
                    if group.pick(need) is None and not group.opens_at_once(need):
                        self._keep(caller, envelope, await self._open(caller, envelope))
                await caller.still_allowed()

    def group(self, caller: Caller, envelope: Envelope) -> Group:
        """The caller's pooled sessions for these capabilities; retires the oldest group where there are too many."""
        groups = self._callers.setdefault(caller.key, _Mine()).groups
        # A sessionless process serves all capabilities: they come with each request.
        key = (b"" if self.speaks_sessionless(caller) else envelope.capabilities_key, caller.principal.groups)
        group = groups[key] = groups.pop(key) if key in groups else Group()
        while len(groups) > MAX_CAPABILITY_SETS:
            for pooled in groups.pop(next(iter(groups))).sessions:
                self._retire(pooled, "capabilities_replaced")
        return group

    def _keep(self, caller: Caller, envelope: Envelope, pooled: PooledSession) -> PooledSession:
        if pooled.session.state is not SessionState.OPEN:
            raise BackendExited("the backend exited right after its start")
        if not self._may_serve(pooled.session):
            pooled.session.close(TAKEN_OVER)
            raise NodeUnavailable
        self.group(caller, envelope).sessions.append(pooled)
        return pooled

    def _prune(self, caller: CallerKey) -> None:
        """Forgets empty groups, and a caller without any."""
        mine = self._callers.get(caller)
        if mine is not None and mine.prune():
            del self._callers[caller]
            self._on_caller_gone(caller)

    # --- opening one

    async def _open(self, caller: Caller, envelope: Envelope) -> PooledSession:
        for may_guess in (True, False, False):
            session = await self._registry.open(*caller[:3], TRANSPORT, caller.still_allowed)
            listen = UnsolicitedMessages(session, self.said.tell, self.closed)
            session.become_pooled(listen, reserved_of(session.spec))
            session.opened_by(caller.address(), kept(envelope.client_info))
            try:
                await self._registry.connect(session)
                await caller.still_allowed()
                pooled = await self._greet(session, envelope, may_guess=may_guess)
            except GatewayError as error:
                session.close("not_initialized")
                await caller.still_allowed()  # perhaps access was lost, or the backend switched off or removed
                await self._registry.backend(caller.tenant, caller.backend)
                raise _stopped() if isinstance(error, SessionNotFound) else error from None
            except BaseException:
                session.close("not_initialized")
                raise
            if pooled is not None:
                return pooled
            session.close("not_initialized")
        raise InvalidResponse("the backend answered neither `server/discover` in time nor `initialize`")

    async def _greet(self, session: Session, envelope: Envelope, *, may_guess: bool) -> PooledSession | None:
        """Finds the backend's era, once per configuration, and opens the session accordingly.

        1. It answers `server/discover`: it is sessionless.
        2. It answers with an error, or not at all: it is of the handshake era.
        3. It answers after we gave up waiting, as it was slow to start; or it had a handshake once, and refuses that
           now. None; another pooled session is to be opened.
        4. It ends at `server/discover`, or cannot be initialized after it, as older servers that want `initialize`
           first. None; the next one must not be asked (`may_guess`) what nobody knows.
        """
        key, edition = session.spec.key, session.spec.edition
        known = self._eras.get(key)
        was_sessionless = known[1] if known is not None and known[0] == edition else None
        probe: Reply | None = None
        guesses = was_sessionless is None and may_guess
        if was_sessionless or guesses:
            probe = await self._probe(session, envelope, is_guess=guesses)
            if session.state is SessionState.CLOSED:
                return None
            if (about := discovered(probe)) is not None:
                self._eras[key] = (edition, True)
                return adopted(session, about)
        try:
            about = await self._initialize(session, envelope)
        except GatewayError as error:
            if not guesses:  # what failed was the gateway's own request: the caller's was not sent
                raise error.before_the_call() if isinstance(error, BackendExited) else error from None
            return None
        if about is None or (probe is not None and discovered(probe) is not None):
            self._eras[key] = (edition, True)
            return None
        if probe is not None and not probe.outcomes:
            self._cancel_own(session)
        self._eras[key] = (edition, False)
        return PooledSession(session, False, about, members_of(about.get("capabilities", msgspec.Raw(b"{}"))))

    async def _probe(self, session: Session, envelope: Envelope, *, is_guess: bool) -> Reply:
        """Asks which revision the process speaks. Raises BackendExited: it has ended, and not because of that."""
        if is_guess:
            session.connection.probed()
        reply = self.send(session, "server/discover", {"_meta": own_envelope(envelope)})
        initialize_s = session.spec.timeouts.initialize_s
        with anyio.move_on_after(probe_s(initialize_s) if is_guess else initialize_s):
            await reply.outcome
        if session.state is SessionState.CLOSED and not is_guess:
            raise BackendExited("the backend ended at its start", started=False)
        return reply

    async def _initialize(self, session: Session, envelope: Envelope) -> Params | None:
        """The `initialize` result; None where the backend speaks 2026-07-28 only."""
        offered = across_eras(members_of(envelope.declared), (*LEGACY_CAPABILITIES, "experimental", "extensions"))
        response = await self.request(session, "initialize", {
            "protocolVersion": msgspec.Raw(encode(Revision.R2025_11_25.value)),
            "capabilities": msgspec.Raw(encode(offered)),
            "clientInfo": envelope.client_info or msgspec.Raw(b'{"name":"trunkline","version":"1"}'),
            **({"_meta": own_envelope(envelope)} if session.spec.is_toolset else {}),
        })  # fmt: skip
        if response.member == "error":
            if refuses_handshake(dump_response(response.id, response)):
                return None
            self._eras.pop(session.spec.key, None)  # it may have changed
            raise InvalidResponse("the backend refused `initialize`")
        session.notify(Notification("notifications/initialized", None))
        return members_of(response.value)

    def _cancel_own(self, session: Session) -> None:
        for call in list(session.exchange.calls.values()):
            session.try_notify(Notification("notifications/cancelled", {"requestId": msgspec.Raw(call.id)}))

    # --- requests of the gateway's own

    async def request(self, session: Session, method: str, params: Params) -> Response:
        """A request of the gateway's own. Raises GatewayError where the process died or did not answer."""
        reply = self.send(session, method, params)
        await reply.outcome
        (outcome,) = reply.take()
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome.response

    def send(self, session: Session, method: str, params: Params) -> Reply:
        """Like `request`, but does not wait for the answer."""
        reply = session.reply(1, may_stream=False)
        try:
            session.request(Request(self.new_id("g"), method, params), reply, is_own=True)
        except SessionNotFound:
            raise _stopped() from None
        return reply

    def new_id(self, kind: str) -> bytes:
        self._serial += 1
        return b'"%b%d"' % (kind.encode(), self._serial)

    # --- ends

    def lost(self, caller: CallerKey) -> None:
        """Another node serves this caller: closes its pooled sessions here."""
        for pooled in list(self.of(caller)):
            pooled.session.close(TAKEN_OVER)

    def answered(self, pooled: PooledSession, by: object, may_go_on: bool = False) -> None:
        """The process has answered a call, whose own pooled session is free again.

        With `may_go_on` the call was given up, but the process may still ask or log something for it, which could not
        be told from the next call's: so the pooled session is retired.
        """
        pooled.answered(by, may_go_on)
        if pooled.may_still_ask or pooled.is_retired:
            asyncio.get_running_loop().call_soon(self.let_go, pooled)  # this may be called from within its close

    def late(self, pooled: PooledSession, envelope: Envelope) -> None:
        """A call with this envelope has timed out: asks the process for a sign of life, and retires a home that does
        not answer, as its client cannot close the session."""
        if not pooled.is_home or pooled in self._being_pinged or pooled.session.state is not SessionState.OPEN:
            return
        asked_at = time.monotonic()
        try:
            params: Params = {"_meta": own_envelope(envelope)} if pooled.is_sessionless else {}
            reply = self.send(pooled.session, "server/discover" if params else "ping", params)
        except GatewayError:
            return
        self._being_pinged.add(pooled)
        reply.outcome.add_done_callback(lambda _: self._pinged(pooled, asked_at, reply))

    def _pinged(self, pooled: PooledSession, asked_at: float, reply: Reply) -> None:
        self._being_pinged.discard(pooled)
        outcome = reply.outcomes[0] if reply.outcomes else None
        is_late = isinstance(outcome, Failed) and isinstance(outcome.error, BackendTimeout)
        is_silent = pooled.session.heard_at < asked_at and not pooled.session.streams.back_pressure.is_on
        if is_late and is_silent and not pooled.is_retired:
            self._retire(pooled, "not_answering")

    def let_go(self, pooled: PooledSession) -> None:
        """Retires or closes a pooled session that cannot be used any more, after its last call or subscription."""
        if pooled.may_still_ask and not pooled.is_retired and not pooled.session.streams.listen.attached:
            self._retire(pooled, "call_given_up")
        elif pooled.is_retired and not pooled.session.exchange.calls:
            pooled.session.close("retired")

    def sweep(self) -> None:
        """Closes the pooled sessions whose last call was one of our own."""
        for pooled in list(self._leaving):
            self.let_go(pooled)

    def closed(self, session: Session) -> None:
        key = caller_key(session)
        for pooled in self.of(key):
            if pooled.session is session:
                self._remove(pooled)
        self._leaving = {pooled for pooled in self._leaving if pooled.session is not session}
        self._prune(key)
        self.ended.tell(session)

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """A backend has changed: new requests get new pooled sessions, and its era is probed again."""
        for key in [key for key in self._eras if key[0] == tenant and backend in (None, key[1])]:
            del self._eras[key]
        for caller in [caller for caller in self._callers if caller[1] == tenant and backend in (None, caller[2])]:
            for pooled in self.of(caller):
                self._retire(pooled, "backend_changed")
            self._prune(caller)

    def tools_changed(self, backend: tuple[str, str]) -> None:
        """The backend's list of tools has changed."""
        for caller, mine in self._callers.items():
            if caller[1:] == backend:
                for group in mine.groups.values():
                    group.mirrors.changed()

    def _remove(self, pooled: PooledSession) -> None:
        mine = self._callers.get(caller_key(pooled.session))
        for group in () if mine is None else mine.groups.values():
            if pooled in group.sessions:
                group.sessions.remove(pooled)

    def _retire(self, pooled: PooledSession, reason: str) -> None:
        self._remove(pooled)
        pooled.retire()
        if pooled.session.exchange.calls:
            self._leaving.add(pooled)
            self.ended.tell(pooled.session)
        else:
            pooled.session.close(reason)

    def __len__(self) -> int:
        return sum(len(group.sessions) for mine in self._callers.values() for group in mine.groups.values())


def may_be_asked(envelope: Envelope) -> bool:
    """Whether the client can answer questions of a backend."""
    return any(name in envelope.capabilities for name in LEGACY_CAPABILITIES)


def caller_key(session: Session) -> CallerKey:
    return Caller(session.principal, session.spec.tenant, session.spec.name).key


def _stopped() -> BackendExited:
    """In place of SessionNotFound, as the client knows of no session; nothing was sent."""
    return BackendExited("the process for this request was stopped", started=False)
