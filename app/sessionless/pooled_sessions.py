"""Lines: the sessions that the gateway opens itself, for clients of 2026-07-28, whose requests name none.

Lines are kept per principal, backend and client capabilities. The oldest is home: every call goes there, several at
once, so that a server with state keeps it. Only in front of `recovery: respawn` a call that the process may ask
something, or that wants its log, has its line for itself until the process has answered, and the others share.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import msgspec

from app.domain import Principal
from app.errors import BackendExited, BackendTimeout, GatewayError, InvalidResponse, NodeUnavailable, SessionNotFound
from app.protocol.commands import Answer, Failed, ToStream
from app.protocol.eras.modern import MODERN, TASKS, Envelope, across_eras, own_envelope, refuses_handshake
from app.protocol.jsonrpc import Notification, Params, Request, Response, dump_response, encode, members_of
from app.protocol.lifecycle import SessionState
from app.protocol.revisions import Revision
from app.sessionless.pooled_session import ANYWHERE, CallerHomes, CallerKey, Group, Line, Need, reserved_of
from app.sessionless.unasked import Unasked
from app.sessions.endings import TAKEN_OVER
from app.sessions.registry import AskAgain, SessionRegistry, for_nobody
from app.sessions.session import Session
from app.streams.streams import Reply

TRANSPORT = "modern"
MAX_CAPABILITY_SETS = 4  # of one principal and backend; the one used least recently goes first
PROBE_S = 3.0  # some handshake-era servers never answer `server/discover`
MAX_CLIENT_INFO_BYTES = 4 << 10  # of what a client says of itself, kept to be shown
LEGACY_CAPABILITIES = ("roots", "sampling", "elicitation")


def _unknown() -> str:
    return ""


class Caller(NamedTuple):
    """Who calls which backend, and from where. `still_allowed` raises where they may not any more; it is asked after
    waits."""

    principal: Principal
    tenant: str
    backend: str
    still_allowed: AskAgain = for_nobody
    address: Callable[[], str] = _unknown

    @property
    def key(self) -> CallerKey:
        """Equal for requests that may share lines, capabilities aside."""
        return (self.principal.identity, self.tenant, self.backend)


@dataclass(eq=False, slots=True)
class _Mine:
    """What one caller has."""

    groups: dict[bytes, Group] = field(default_factory=dict)  # by capabilities; the set used last stands last
    takers: int = 0  # requests that are to have a line, or have one


class Lines:
    """Finds or opens the line for a request. The registry owns the sessions; this only knows which are whose.

    `on_said` hears what a process says unasked, `on_closed` of a line that is gone or takes no more.
    """

    def __init__(self, registry: SessionRegistry, homes: CallerHomes = ANYWHERE) -> None:
        self._registry = registry
        self._may_serve, self._on_caller_gone = homes
        self._callers: dict[CallerKey, _Mine] = {}
        self._eras: dict[tuple[str, str], tuple[int, bool]] = {}  # backend -> its version, whether it is modern
        self._leaving: set[Line] = set()  # retired lines with calls
        self._serial = 0
        self.on_said: Callable[[Session, ToStream], None] = lambda session, command: None
        self.on_closed: Callable[[Session], None] = lambda session: None

    def speaks_modern(self, caller: Caller) -> bool | None:
        """Whether the backend speaks 2026-07-28 itself; None where that is to be found out."""
        era = self._eras.get((caller.tenant, caller.backend))
        return None if era is None else era[1]

    def of(self, caller: CallerKey) -> Iterator[Line]:
        """Every line of this caller."""
        mine = self._callers.get(caller)
        return iter([] if mine is None else [line for group in mine.groups.values() for line in group.lines])

    # --- taking one

    @contextmanager
    def expecting(self, caller: CallerKey) -> Iterator[None]:
        """While a request is under way its caller is not gone, though there may be no line yet, or none any more."""
        mine = self._callers.setdefault(caller, _Mine())
        mine.takers += 1
        try:
            yield
        finally:
            mine.takers -= 1
            self._prune(caller)

    async def take(self, caller: Caller, envelope: Envelope, need: Need) -> Line:
        """The oldest line that takes the request, or a new one.

        Raises:
            GatewayError: as SessionRegistry.open and ProcessPool.lease; or the backend did not greet us.
            NodeUnavailable: another node serves this caller by now.
        """
        with self.expecting(caller.key):
            while True:
                group = self.group(caller, envelope)
                if (line := group.pick(need)) is not None:
                    line.session.last_seen = time.monotonic()  # what comes before the request may take a moment
                    return line
                if group.opens_at_once(need):
                    return self._keep(caller, envelope, await self._open(caller, envelope))
                async with group.opening:  # of several that come at once, one opens it for all
                    group = self.group(caller, envelope)
                    if group.pick(need) is None and not group.opens_at_once(need):
                        self._keep(caller, envelope, await self._open(caller, envelope))
                await caller.still_allowed()

    def group(self, caller: Caller, envelope: Envelope) -> Group:
        """The caller's lines for these capabilities; makes room where there are too many sets."""
        groups = self._callers.setdefault(caller.key, _Mine()).groups
        # A modern process serves every set of capabilities: they come with each request.
        key = b"" if self.speaks_modern(caller) else envelope.capabilities_key
        group = groups[key] = groups.pop(key) if key in groups else Group()
        while len(groups) > MAX_CAPABILITY_SETS:
            for line in groups.pop(next(iter(groups))).lines:
                self._retire(line, "capabilities_replaced")
        return group

    def _keep(self, caller: Caller, envelope: Envelope, line: Line) -> Line:
        if line.session.state is not SessionState.OPEN:  # it was closed before we could look
            raise BackendExited("the backend ended right after its start")
        if not self._may_serve(line.session):
            line.session.close(TAKEN_OVER)
            raise NodeUnavailable
        self.group(caller, envelope).lines.append(line)
        return line

    def _prune(self, caller: CallerKey) -> None:
        """Forgets sets without a line, and callers without a set."""
        mine = self._callers.get(caller)
        if mine is None or mine.takers:
            return
        mine.groups = {key: group for key, group in mine.groups.items() if group.lines}
        if not mine.groups:
            del self._callers[caller]
            self._on_caller_gone(caller)

    # --- opening one

    async def _open(self, caller: Caller, envelope: Envelope) -> Line:
        for _ in range(2):
            session = await self._registry.open(*caller[:3], TRANSPORT, caller.still_allowed)
            session.become_line(Unasked(session, self._said, self.closed), reserved_of(session.spec))
            session.address, session.client_info = caller.address(), _kept(envelope.client_info)
            try:
                await self._registry.connect(session)
                await caller.still_allowed()
                line = await self._greet(session, envelope)
            except SessionNotFound:
                await caller.still_allowed()
                raise _stopped() from None
            except BaseException:
                session.close("not_initialized")
                raise
            if line is not None:
                return line
            session.close("not_initialized")
        raise InvalidResponse("the backend answers `server/discover` too late")

    async def _greet(self, session: Session, envelope: Envelope) -> Line | None:
        """Finds the backend's era, once per configuration, and opens the session accordingly.

        1. It answers `server/discover`: it is modern.
        2. It answers with an error, or not at all: it is of the handshake era.
        3. It answers after we gave up waiting, as it was slow to start; or it had a handshake once, and refuses that
           now. None; another line is to be opened.
        """
        key, version = session.spec.key, session.spec.version
        known = self._eras.get(key)
        was_modern = known[1] if known is not None and known[0] == version else None
        probe: Reply | None = None
        if was_modern is not False:
            probe = self.send(session, "server/discover", {"_meta": own_envelope(envelope)})
            with anyio.move_on_after(session.spec.timeouts.initialize_s if was_modern else PROBE_S):
                await probe.outcome
            about = _discovered(probe)
            if session.state is SessionState.CLOSED:
                raise BackendExited("the backend ended at its start", started=False)
            if about is not None:
                self._eras[key] = (version, True)
                session.adopt(MODERN)
                session.exchange.may_make_tasks = TASKS.encode() in bytes(about.get("capabilities", msgspec.Raw()))
                return Line(session, True, about, members_of(about.get("capabilities", msgspec.Raw(b"{}"))))
        about = await self._initialize(session, envelope)
        if about is None or (probe is not None and _discovered(probe) is not None):
            self._eras[key] = (version, True)
            return None
        if probe is not None and not probe.outcomes:
            self._cancel_own(session)
        self._eras[key] = (version, False)
        return Line(session, False, about, members_of(about.get("capabilities", msgspec.Raw(b"{}"))))

    async def _initialize(self, session: Session, envelope: Envelope) -> Params | None:
        """What it says of itself; None where it speaks 2026-07-28 only."""
        offered = across_eras(members_of(envelope.declared), (*LEGACY_CAPABILITIES, "experimental", "extensions"))
        response = await self.request(session, "initialize", {
            "protocolVersion": msgspec.Raw(encode(Revision.R2025_11_25.value)),
            "capabilities": msgspec.Raw(encode(offered)),
            "clientInfo": envelope.client_info or msgspec.Raw(b'{"name":"trunkline","version":"1"}'),
        })  # fmt: skip
        if response.member == "error":
            if refuses_handshake(dump_response(response.id, response)):
                return None
            self._eras.pop(session.spec.key, None)  # whatever it is by now, it is not what it was
            raise InvalidResponse("the backend refused `initialize`")
        session.notify(Notification("notifications/initialized", None))
        return members_of(response.value)

    def _cancel_own(self, session: Session) -> None:
        for call in list(session.exchange.calls.values()):
            session.try_notify(Notification("notifications/cancelled", {"requestId": msgspec.Raw(call.id)}))

    # --- requests of the gateway's own

    async def request(self, session: Session, method: str, params: Params) -> Response:
        """Asks the process something.

        Raises:
            GatewayError: it died or did not answer.
        """
        reply = self.send(session, method, params)
        await reply.outcome
        (outcome,) = reply.take()
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome.response

    def send(self, session: Session, method: str, params: Params) -> Reply:
        """The same without waiting."""
        reply = session.reply(1, may_stream=False)
        try:
            session.request(Request(self.new_id("g"), method, params), reply, is_own=True)
        except SessionNotFound:
            raise _stopped() from None
        return reply

    def _said(self, session: Session, command: ToStream) -> None:
        self.on_said(session, command)

    def new_id(self, kind: str) -> bytes:
        """An id for a request on a line."""
        self._serial += 1
        return b'"%b%d"' % (kind.encode(), self._serial)

    # --- ends

    def lost(self, caller: CallerKey) -> None:
        """Another node serves this caller: its lines here are over."""
        for line in list(self.of(caller)):
            line.session.close(TAKEN_OVER)

    def answered(self, line: Line, by: object, may_go_on: bool = False) -> None:
        """The process has answered a call: a line that was its own is free again.

        If it may go on with it instead, what it asks and logs could not be told from what the next call brings: where
        the process keeps no state, it is not worth it.
        """
        if line.held_by is by:
            line.held_by = None
            line.may_still_ask |= may_go_on
        if line.may_still_ask or line.is_retired:
            asyncio.get_running_loop().call_soon(self.let_go, line)  # not from within its own close

    def late(self, line: Line) -> None:
        """A call took too long. Its client cannot end the session, as it has none: so the process is asked whether it
        lives, and one that says nothing for as long as a call may take is home no more."""
        if not line.is_home or line.is_pinged or line.session.state is not SessionState.OPEN:
            return
        asked_at = time.monotonic()
        try:
            reply = self.send(line.session, "ping", {})
        except GatewayError:
            return
        line.is_pinged = True
        reply.outcome.add_done_callback(lambda _: self._pinged(line, asked_at, reply))

    def _pinged(self, line: Line, asked_at: float, reply: Reply) -> None:
        line.is_pinged = False
        outcome = reply.outcomes[0] if reply.outcomes else None
        is_late = isinstance(outcome, Failed) and isinstance(outcome.error, BackendTimeout)
        is_silent = line.session.heard_at < asked_at and not line.session.streams.is_full
        if is_late and is_silent and not line.is_retired:
            self._remove(line)
            self._retire(line, "not_answering")

    def let_go(self, line: Line) -> None:
        """Closes a line that is good for nothing more, after its last call and its last listener."""
        if line.may_still_ask and not line.is_retired and not line.session.streams.listen.attached:
            self._remove(line)
            self._retire(line, "call_given_up")
        elif line.is_retired and not line.session.exchange.calls:
            line.session.close("retired")

    def sweep(self) -> None:
        """Closes the lines whose last call was one of our own."""
        for line in list(self._leaving):
            self.let_go(line)

    def closed(self, session: Session) -> None:
        """A line's session has ended."""
        key = caller_key(session)
        for line in self.of(key):
            if line.session is session:
                self._remove(line)
        self._leaving = {line for line in self._leaving if line.session is not session}
        self._prune(key)
        self.on_closed(session)

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """A backend has changed: its era is to be found again, and new requests get new lines."""
        for key in [key for key in self._eras if key[0] == tenant and backend in (None, key[1])]:
            del self._eras[key]
        for caller in [caller for caller in self._callers if caller[1] == tenant and backend in (None, caller[2])]:
            for line in self.of(caller):
                self._remove(line)
                self._retire(line, "backend_changed")
            self._prune(caller)

    def tools_changed(self, backend: tuple[str, str]) -> None:
        """What was seen of the tools of this backend holds no more."""
        for caller, mine in self._callers.items():
            if caller[1:] == backend:
                for group in mine.groups.values():
                    group.mirrors.changed()

    def _remove(self, line: Line) -> None:
        mine = self._callers.get(caller_key(line.session))
        for group in () if mine is None else mine.groups.values():
            if line in group.lines:
                group.lines.remove(line)

    def _retire(self, line: Line, reason: str) -> None:
        line.is_retired = True
        if line.session.exchange.calls:
            self._leaving.add(line)
            self.on_closed(line.session)
        else:
            line.session.close(reason)

    def __len__(self) -> int:
        return sum(len(group.lines) for mine in self._callers.values() for group in mine.groups.values())


def _kept(client_info: msgspec.Raw | None) -> msgspec.Raw | None:
    """What the client says of itself, without the request that it stands in; nothing where that is long."""
    return None if client_info is None or len(client_info) > MAX_CLIENT_INFO_BYTES else client_info.copy()


def may_be_asked(envelope: Envelope) -> bool:
    """Whether the client can answer questions of a backend."""
    return any(name in envelope.capabilities for name in LEGACY_CAPABILITIES)


def caller_key(session: Session) -> CallerKey:
    """Whose line this session is."""
    return Caller(session.principal, session.spec.tenant, session.spec.name).key


def _stopped() -> BackendExited:
    """Its session was closed before anything of the request was sent; the client knows of no session."""
    return BackendExited("the process for this request was stopped", started=False)


def _discovered(probe: Reply) -> Params | None:
    """What a probe found: the `server/discover` result of a server that speaks 2026-07-28."""
    outcome = probe.outcomes[0] if probe.outcomes else None
    if not isinstance(outcome, Answer) or outcome.response.member == "error":
        return None
    about = members_of(outcome.response.value)
    return about if MODERN.encode() in bytes(about.get("supportedVersions", msgspec.Raw())) else None
