"""ImplicitSessions: the lines behind clients of 2026-07-28, whose requests name no session.

A line is an ordinary Session that the gateway opened itself. Lines are kept per principal, backend and
client capabilities; a call that may be asked something has its line for itself until its final answer.
"""

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import msgspec

from app.auth.sealing import SealBroken, Sealer
from app.domain import Principal
from app.errors import GatewayError, InvalidResponse, StateRefused
from app.protocol.commands import Answer, Failed, ToStream
from app.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    Response,
    dump_notification,
    encode,
    members_of,
    parse_backend,
    string_of,
)
from app.protocol.modern import (
    CAPABILITIES_KEY,
    MAY_ASK,
    META,
    MODERN,
    SUPPORTED,
    VERSION_KEY,
    Envelope,
    MirroredParameter,
    complete,
    mirrored_parameters,
    tagged,
    without_envelope,
)
from app.protocol.revisions import Revision
from app.sessions.modern_call import SUSPENDED_S, ModernCall
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams import EventStream, Reply

TRANSPORT = "modern"
MAX_CAPABILITY_SETS = 4  # of one principal and backend; the one used least recently goes first
MAX_SUSPENDED = 10_000
MAX_LISTENERS = 16  # of one principal and backend
PROBE_S = 3.0  # some handshake-era servers never answer `server/discover`
LEGACY_CAPABILITIES = ("roots", "sampling", "elicitation")
_LIST_CHANGES = {
    "notifications/tools/list_changed": ("toolsListChanged", "tools"),
    "notifications/prompts/list_changed": ("promptsListChanged", "prompts"),
    "notifications/resources/list_changed": ("resourcesListChanged", "resources"),
}


class Caller(NamedTuple):
    """Who calls which backend."""

    principal: Principal
    tenant: str
    backend: str

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests that may share lines, capabilities aside."""
        return (self.principal.identity, self.tenant, self.backend)


@dataclass(eq=False, slots=True)
class Line:
    """One session of ours, and what its backend said of itself."""

    session: Session
    is_modern: bool
    capabilities: Params = field(default_factory=dict)
    about: Params = field(default_factory=dict)  # the `initialize` or `server/discover` result
    held_by: ModernCall | None = None
    log_level_is_set: bool = False


@dataclass(eq=False, slots=True)
class Listener:
    """One `subscriptions/listen` in front of handshake-era processes."""

    subscription_id: bytes
    stream: EventStream
    kinds: frozenset[str]
    uris: frozenset[str]


@dataclass(eq=False, slots=True)
class _Group:
    """The lines of one caller with one set of capabilities."""

    lines: list[Line] = field(default_factory=list)  # the one used last stands last
    opening: anyio.Lock = field(default_factory=anyio.Lock)


class _FanOut(EventStream):
    """A line's listen stream: what a handshake-era process says unasked goes to every listener that wants it."""

    __slots__ = ("_owner", "_session")

    def __init__(self, owner: "ImplicitSessions", session: Session) -> None:
        super().__init__(lambda full: None, lambda reason, question: None)
        self._owner, self._session = owner, session

    def push(self, command: ToStream) -> None:
        """Delivers to listeners, or refuses a question: there is nobody to ask."""
        self._owner.deliver(self._session, command)

    def end(self) -> None:
        """The line is gone."""
        if not self.ended:
            super().end()
            self._owner.line_closed(self._session)


class ImplicitSessions:
    """Lines, suspended calls and listeners of this node. The registry owns the sessions; this only finds them."""

    def __init__(self, registry: SessionRegistry, sealer: Sealer) -> None:
        self._registry, self._sealer = registry, sealer
        self._groups: dict[tuple[object, ...], _Group] = {}  # the one used last stands last
        self._eras: dict[tuple[str, str], tuple[int, bool]] = {}  # backend -> its version, whether it is modern
        self._mirrors: dict[tuple[str, str], dict[str, list[MirroredParameter]]] = {}
        self._listeners: dict[tuple[object, ...], list[Listener]] = {}
        self._suspended: dict[str, ModernCall] = {}
        self._spent: dict[str, None] = {}  # ids of calls that were suspended once and are over
        self._serial = 0
        registry.on_sweep = self.sweep

    # --- calls

    async def call(self, caller: Caller, message: Request, envelope: Envelope, reply: Reply) -> ModernCall:
        """Starts a request; its outcome, or what the process wants to know, goes to `reply`.

        Raises:
            GatewayError: as SessionRegistry.open, ProcessPool.lease and Session.request.
        """
        line = await self._line(caller, envelope, for_asking=message.method in MAY_ASK)
        call = ModernCall(line.session, message, envelope, passes_unchanged=line.is_modern)
        call.server_info = line.about.get("serverInfo")
        call.on_suspended, call.on_done = self._suspend, self._done
        if not line.is_modern and message.method in MAY_ASK and _may_be_asked(envelope):
            line.held_by = call
        self._serial += 1
        call.line_id = b'"m%d"' % self._serial
        try:
            if not line.is_modern and envelope.log_level is not None:
                self._set_log_level(line)
            params = message.params if line.is_modern else without_envelope(message.params)
            call.wait_with(reply, message.id)
            line.session.request(Request(call.line_id, message.method, params), call)
        except BaseException:
            self._done(call)
            raise
        return call

    async def resume(self, caller: Caller, message: Request, reply: Reply) -> ModernCall:
        """Goes on with a suspended call: `params` has its requestState, and the answers.

        Raises:
            StateRefused: the state is broken, somebody else's, of another request, spent or lost.
        """
        params = message.params or {}
        opened = self._open_state(string_of(params.get("requestState")) or "", _place(caller, message))
        call = self._suspended.get(opened["call"])
        if call is None or call.round != opened["round"] or call.deadline is None:
            is_spent = call is not None or opened["call"] in self._spent
            raise StateRefused("state_spent" if is_spent else "state_lost")
        call.message = message
        call.feed(members_of(params["inputResponses"]) if "inputResponses" in params else {})
        call.wait_with(reply, message.id)
        return call

    def _suspend(self, call: ModernCall) -> str:
        """Remembers the call; the sealed state by which its client finds it again."""
        session = call.line
        caller = Caller(session.principal, session.spec.tenant, session.spec.name)
        if call.id not in self._suspended and len(self._suspended) >= MAX_SUSPENDED:
            next(iter(self._suspended.values())).cancel("too many calls wait for their clients")
        self._suspended[call.id] = call
        state = {"call": call.id, "round": call.round, "until": int(time.time() + SUSPENDED_S)}
        sealed = self._sealer.seal(json.dumps(state).encode(), _place(caller, call.message))
        return base64.urlsafe_b64encode(sealed).decode()

    def _open_state(self, state: str, place: str) -> dict[str, Any]:
        try:
            sealed = base64.urlsafe_b64decode(state.encode())
            if base64.urlsafe_b64encode(sealed).decode() != state:
                raise ValueError("not as it was written")
            opened: dict[str, Any] = json.loads(self._sealer.open(sealed, place))
        except (SealBroken, ValueError):
            raise StateRefused("state_invalid") from None
        if int(opened["until"]) < time.time():
            raise StateRefused("state_lost")
        return opened

    def _done(self, call: ModernCall) -> None:
        if self._suspended.pop(call.id, None) is not None:
            self._spent[call.id] = None
            if len(self._spent) > MAX_SUSPENDED:
                del self._spent[next(iter(self._spent))]
        for group in self._groups.values():
            for line in group.lines:
                if line.held_by is call:
                    line.held_by = None

    def _set_log_level(self, line: Line) -> None:
        """A handshake-era server logs everything; what a request does not ask for is filtered here."""
        if not line.log_level_is_set and "logging" in line.capabilities:
            line.log_level_is_set = True
            nobody = line.session.reply(1, may_stream=False)
            line.session.request(self._own("logging/setLevel", {"level": msgspec.Raw(b'"debug"')}), nobody)

    # --- discover, and the schemas behind x-mcp-header

    async def discover(self, caller: Caller, envelope: Envelope) -> bytes:
        """The `server/discover` result: what the backend said when its line was opened, and the versions we serve."""
        line = await self._line(caller, envelope, for_asking=False)
        versions = msgspec.Raw(encode(SUPPORTED))
        if line.is_modern:
            return encode({**line.about, "supportedVersions": versions})
        capabilities = {name: value for name, value in line.capabilities.items() if name != "tasks"}
        result = {"supportedVersions": versions, "capabilities": msgspec.Raw(encode(capabilities))}
        if "instructions" in line.about:
            result["instructions"] = line.about["instructions"]
        return complete(msgspec.Raw(encode(result)), "server/discover", line.about.get("serverInfo"))

    async def is_modern(self, caller: Caller, envelope: Envelope) -> bool:
        """Whether the backend speaks this revision itself."""
        return (await self._line(caller, envelope, for_asking=False)).is_modern

    async def mirrored(self, caller: Caller, envelope: Envelope, tool: str) -> list[MirroredParameter]:
        """The tool's parameters that must be repeated in headers; asks the backend for its tools once."""
        key = (caller.tenant, caller.backend)
        tools = self._mirrors.get(key)
        if tools is None:
            line = await self._line(caller, envelope, for_asking=False)
            tools = self._mirrors[key] = await self._list_mirrors(line, envelope)
        return tools.get(tool, [])

    async def _list_mirrors(self, line: Line, envelope: Envelope) -> dict[str, list[MirroredParameter]]:
        found: dict[str, list[MirroredParameter]] = {}
        params: Params = {"_meta": _own_envelope(envelope)} if line.is_modern else {}
        for _ in range(20):  # pages
            response = await self._request(line.session, "tools/list", dict(params))
            if response.member == "error":
                break
            page = json.loads(bytes(response.value))
            for tool in page.get("tools", []):
                mirrored = mirrored_parameters(tool.get("inputSchema"))
                if mirrored:
                    found[str(tool.get("name"))] = mirrored
            if not isinstance(page.get("nextCursor"), str):
                break
            params["cursor"] = msgspec.Raw(encode(page["nextCursor"]))
        return found

    # --- lines

    async def _line(self, caller: Caller, envelope: Envelope, *, for_asking: bool) -> Line:
        """A line for the request: the one used last that may take it, or a new one."""
        exclusive = for_asking and _may_be_asked(envelope)
        group = self._group(caller, envelope)
        line = _pick(group, exclusive=exclusive)
        if line is not None:
            return line
        if exclusive:
            return self._keep(caller, envelope, await self._open(caller, envelope))
        async with group.opening:  # of several that come at once, one opens it for all
            group = self._group(caller, envelope)
            return _pick(group, exclusive=False) or self._keep(caller, envelope, await self._open(caller, envelope))

    def _group(self, caller: Caller, envelope: Envelope) -> _Group:
        key = self._group_key(caller, envelope)
        group = self._groups.pop(key, None) or _Group()
        self._groups[key] = group
        mine = [other for other in self._groups if other[0] == caller.key]
        for old in mine[: max(0, len(mine) - MAX_CAPABILITY_SETS)]:
            self._close_group(old)
        return group

    def _group_key(self, caller: Caller, envelope: Envelope) -> tuple[object, ...]:
        """A modern process serves every set of capabilities: they come with each request."""
        era = self._eras.get((caller.tenant, caller.backend))
        return (caller.key, b"" if era is not None and era[1] else envelope.capabilities_key)

    def _keep(self, caller: Caller, envelope: Envelope, line: Line) -> Line:
        self._group(caller, envelope).lines.append(line)
        return line

    def _close_group(self, key: tuple[object, ...]) -> None:
        for line in self._groups.pop(key).lines:
            line.session.close("capabilities_replaced")

    async def _open(self, caller: Caller, envelope: Envelope) -> Line:
        session = await self._registry.open(caller.principal, caller.tenant, caller.backend, TRANSPORT)
        session.listen = _FanOut(self, session)
        try:
            await self._registry.connect(session)
            line = await self._greet(session, envelope)
        except BaseException:
            session.close("not_initialized")
            raise
        if self._listeners.get(caller.key):
            session.listen.attached = True
        return line

    async def _greet(self, session: Session, envelope: Envelope) -> Line:
        """Finds the backend's era, once per configuration, and opens the session accordingly."""
        key, version = session.spec.key, session.spec.version
        known = self._eras.get(key)
        is_modern = known[1] if known is not None and known[0] == version else None
        if is_modern is not False:
            about = await self._probe(session, envelope)
            if about is not None:
                self._eras[key] = (version, True)
                session.adopt(MODERN)
                return Line(session, True, members_of(about.get("capabilities", msgspec.Raw(b"{}"))), about)
        line = await self._initialize(session, envelope)
        self._eras[key] = (version, False)
        return line

    async def _probe(self, session: Session, envelope: Envelope) -> Params | None:
        """The `server/discover` result, None where the server is of the handshake era, or silent."""
        with anyio.move_on_after(PROBE_S):
            response = await self._request(session, "server/discover", {"_meta": _own_envelope(envelope)})
            about = members_of(response.value) if response.member == "result" else {}
            return about if MODERN.encode() in bytes(about.get("supportedVersions", msgspec.Raw())) else None
        return None

    async def _initialize(self, session: Session, envelope: Envelope) -> Line:
        offered = {name: value for name, value in envelope.capabilities.items() if name in LEGACY_CAPABILITIES}
        client = envelope.client_info or msgspec.Raw(b'{"name":"trunkline","version":"1"}')
        params: Params = {
            "protocolVersion": msgspec.Raw(encode(Revision.R2025_11_25.value)),
            "capabilities": msgspec.Raw(encode(offered)),
            "clientInfo": client,
        }
        response = await self._request(session, "initialize", params)
        if response.member == "error":
            raise InvalidResponse("the backend refused `initialize`")
        session.notify(Notification("notifications/initialized", None))
        about = members_of(response.value)
        return Line(session, False, members_of(about.get("capabilities", msgspec.Raw(b"{}"))), about)

    async def _request(self, session: Session, method: str, params: Params) -> Response:
        """A request of the gateway's own.

        Raises:
            GatewayError: the backend died or did not answer.
        """
        reply = session.reply(1, may_stream=False)
        session.request(self._own(method, params), reply)
        await reply.outcome
        outcome = reply.outcomes[0]
        if isinstance(outcome, Failed):
            raise outcome.error
        assert isinstance(outcome, Answer)
        return outcome.response

    def _own(self, method: str, params: Params) -> Request:
        self._serial += 1
        return Request(b'"g%d"' % self._serial, method, params)

    # --- listening

    async def listen(self, caller: Caller, message: Request, envelope: Envelope) -> Listener | None:
        """A listener with its acknowledgement in its stream; None where the backend serves the request itself.

        The caller reads the stream and then says `unlisten`.
        """
        line = await self._line(caller, envelope, for_asking=False)
        if line.is_modern:
            return None
        wanted = members_of((message.params or {}).get("notifications", msgspec.Raw(b"{}")))
        listener = Listener(message.id, EventStream(lambda full: None, _forget), *_honoured(line, wanted))
        listeners = self._listeners.setdefault(caller.key, [])
        if len(listeners) >= MAX_LISTENERS:
            self.unlisten(caller, listeners[0])
        listeners.append(listener)
        line.session.listen.attached = True
        honoured: dict[str, object] = dict.fromkeys(sorted(listener.kinds), True)
        if listener.uris:
            honoured["resourceSubscriptions"] = sorted(listener.uris)
            for uri in listener.uris:
                await self._request(line.session, "resources/subscribe", {"uri": msgspec.Raw(encode(uri))})
        self._tell(
            listener, "notifications/subscriptions/acknowledged", {"notifications": msgspec.Raw(encode(honoured))}
        )
        return listener

    def unlisten(self, caller: Caller, listener: Listener) -> None:
        """The reader has left, or must make room: its subscriptions end where nobody else has them. Idempotent."""
        listeners = self._listeners.get(caller.key, [])
        if listener not in listeners:
            return
        listeners.remove(listener)
        listener.stream.end()
        still_wanted = {uri for other in listeners for uri in other.uris}
        for line in self._lines_of(caller.key):
            for uri in listener.uris - still_wanted:
                nobody = line.session.reply(1, may_stream=False)
                try:
                    line.session.request(self._own("resources/unsubscribe", {"uri": msgspec.Raw(encode(uri))}), nobody)
                except GatewayError:
                    continue
            line.session.listen.attached = bool(listeners)
        if not listeners:
            self._listeners.pop(caller.key, None)

    def deliver(self, session: Session, command: ToStream) -> None:
        """What a handshake-era process says unasked: to each listener of the same caller that asked for it."""
        if command.question is not None:
            session.refuse_question(command.question, "there is no request to ask the client with", METHOD_NOT_FOUND)
            return
        message = _parse_notification(command.payload)
        if message is None:
            return
        if message.method == "notifications/tools/list_changed":
            self._mirrors.pop(session.spec.key, None)
        for listener in self._listeners.get(_caller_key(session), []):
            if _wants(listener, message):
                self._tell(listener, message.method, message.params or {})

    def line_closed(self, session: Session) -> None:
        """Listeners whose last line is gone hear the end of their subscription."""
        key = _caller_key(session)
        for group in self._groups.values():
            group.lines = [line for line in group.lines if line.session is not session]
        if key not in self._listeners or any(True for _ in self._lines_of(key)):
            return
        for listener in self._listeners.pop(key):
            result = complete(msgspec.Raw(encode(tagged({}, listener.subscription_id))), "subscriptions/listen", None)
            payload = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (listener.subscription_id, result)
            listener.stream.push(ToStream(None, payload))
            listener.stream.end()

    def _tell(self, listener: Listener, method: str, params: Params) -> None:
        payload = dump_notification(method, tagged(params, listener.subscription_id))
        listener.stream.push(ToStream(None, payload))

    def _lines_of(self, caller_key: tuple[object, ...]) -> Iterator[Line]:
        for key, group in list(self._groups.items()):
            if key[0] == caller_key:
                yield from list(group.lines)

    # --- time, and change

    def sweep(self, now: float) -> None:
        """Ends the suspended calls whose clients never came back."""
        for call in list(self._suspended.values()):
            if call.deadline is not None and call.deadline < now:
                call.cancel("the client did not come back in time")

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """A backend has changed: its era and its schemas are to be found again."""
        for table in (self._eras, self._mirrors):
            for key in [key for key in table if key[0] == tenant and backend in (None, key[1])]:
                del table[key]

    def __repr__(self) -> str:
        lines = sum(len(group.lines) for group in self._groups.values())
        return f"<ImplicitSessions [{lines} lines, {len(self._suspended)} suspended]>"


def _may_be_asked(envelope: Envelope) -> bool:
    return any(name in envelope.capabilities for name in LEGACY_CAPABILITIES)


def _pick(group: _Group, *, exclusive: bool) -> Line | None:
    """The line used last that is free; for what asks nothing, one that is held will do."""
    free = [line for line in group.lines if line.held_by is None]
    candidates = free or ([] if exclusive else group.lines)
    if not candidates:
        return None
    line = candidates[-1]
    group.lines.remove(line)
    group.lines.append(line)
    return line


def _place(caller: Caller, message: Request) -> str:
    """What a requestState is bound to: who, which backend, and the very same request."""
    params = {
        name: value
        for name, value in (message.params or {}).items()
        if name not in ("_meta", "inputResponses", "requestState")
    }
    digest = hashlib.sha256(encode([message.method, sorted(params.items())])).hexdigest()
    return "|".join(["requestState", *caller.principal.identity, caller.tenant, caller.backend, digest])


def _own_envelope(envelope: Envelope) -> msgspec.Raw:
    meta: dict[str, object] = {VERSION_KEY: MODERN, CAPABILITIES_KEY: envelope.capabilities}
    if envelope.client_info is not None:
        meta[META + "clientInfo"] = envelope.client_info
    return msgspec.Raw(encode(meta))


def _honoured(line: Line, wanted: Params) -> tuple[frozenset[str], frozenset[str]]:
    """What of a filter the backend can fulfil."""
    kinds = set()
    for flag, capability in _LIST_CHANGES.values():
        offered = members_of(line.capabilities.get(capability, msgspec.Raw(b"{}")))
        if (
            bytes(wanted.get(flag, msgspec.Raw())) == b"true"
            and bytes(offered.get("listChanged", msgspec.Raw())) == b"true"
        ):
            kinds.add(flag)
    resources = members_of(line.capabilities.get("resources", msgspec.Raw(b"{}")))
    uris: list[object] = []
    if bytes(resources.get("subscribe", msgspec.Raw())) == b"true" and "resourceSubscriptions" in wanted:
        asked = json.loads(bytes(wanted["resourceSubscriptions"]))
        uris = asked[:64] if isinstance(asked, list) else []
    return frozenset(kinds), frozenset(uri for uri in uris if isinstance(uri, str))


def _wants(listener: Listener, message: Notification) -> bool:
    change = _LIST_CHANGES.get(message.method)
    if change is not None:
        return change[0] in listener.kinds
    return (
        message.method == "notifications/resources/updated"
        and string_of((message.params or {}).get("uri")) in listener.uris
    )


def _parse_notification(payload: bytes) -> Notification | None:
    message = parse_backend(payload)
    return message if isinstance(message, Notification) else None


def _caller_key(session: Session) -> tuple[object, ...]:
    return Caller(session.principal, session.spec.tenant, session.spec.name).key


def _forget(reason: str, question: bytes | None) -> None:
    """A listener that does not keep up loses its oldest notifications; a change is told again by the next one."""
