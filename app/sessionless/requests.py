"""SessionlessRequests: what clients of 2026-07-28 ask, who name no session: calls, retries, subscriptions."""

import asyncio
import time
from contextlib import AbstractContextManager
from functools import partial

import anyio
import msgspec

from app.auth.sealing import Sealer
from app.errors import CallCutOff, GatewayError, InvalidResponse
from app.protocol.eras.modern import (
    MAY_ASK,
    SUPPORTED,
    Envelope,
    MirroredParameter,
    across_eras,
    complete,
    own_envelope,
    without_envelope,
)
from app.protocol.jsonrpc import Params, Request, encode, members_of
from app.protocol.lifecycle import SessionState
from app.sessionless.backend_states import BackendStates
from app.sessionless.call import SessionlessCall
from app.sessionless.mirrored_headers import MirroredHeaders
from app.sessionless.pooled_session import ANYWHERE, CallerHomes, Line, Need
from app.sessionless.pooled_sessions import Caller, Lines, may_be_asked
from app.sessionless.subscriptions import Listener, Listeners
from app.sessionless.suspended_calls import ALONE, SUSPENDED_S, Place, SuspendedCalls
from app.sessions.endings import SHUTDOWN
from app.sessions.registry import SessionRegistry
from app.streams.streams import Reply

__all__ = ["Caller", "SessionlessRequests"]


class SessionlessRequests:
    """The lines, suspended calls and listeners of this node; the registry owns the sessions behind them."""

    def __init__(
        self,
        registry: SessionRegistry,
        sealer: Sealer,
        *,
        here: Place = ALONE,
        suspended_s: float = SUSPENDED_S,
        homes: CallerHomes = ANYWHERE,
    ) -> None:
        self._registry = registry
        self.lines = Lines(registry, homes)
        self.listeners = Listeners(self.lines)
        self._states = BackendStates(sealer)
        self._looking: set[MirroredHeaders] = set()
        self.suspended = SuspendedCalls(sealer, suspended_s, here)

    # --- whose request it is, where there are several nodes

    def has_lines(self, caller: Caller) -> bool:
        """Whether this node serves the caller already."""
        return any(True for _ in self.lines.of(caller.key))

    async def is_of_one_node(self, caller: Caller) -> bool:
        """Whether all lines of the caller must be on one node: its backend keeps state.

        Raises:
            BackendNotFound: there is no such backend.
        """
        return (await self._registry.backend(caller.tenant, caller.backend)).keeps_state

    def expecting(self, caller: Caller) -> AbstractContextManager[None]:
        """While a request of the caller is under way, this node does not give the caller up."""
        return self.lines.expecting(caller.key)

    def suspended_at(self, caller: Caller, message: Request) -> Place | None:
        """Where the call is suspended that this request goes on with; None where it goes on with none of ours."""
        if message.params is None or "requestState" not in message.params:
            return None
        return self.suspended.place_of(caller, message)

    def is_here(self, place: Place) -> bool:
        """Whether that is this node."""
        return place.node == self.suspended.here.node

    # --- calls

    async def call(
        self, caller: Caller, message: Request, envelope: Envelope, reply: Reply, *, repeats: int = 0
    ) -> SessionlessCall:
        """Starts a request; its outcome, or what the process wants to know, goes to `reply`.

        Raises:
            StateRefused: no modern backend has given this principal the state in the request.
            GatewayError: as Lines.take and Session.request.
        """
        need = _need(message, envelope)
        line = await self.lines.take(caller, envelope, need)
        params = self._states.opened(caller, message.params) if line.is_modern else without_envelope(message.params)
        seal = partial(self._states.sealed, caller)
        call = SessionlessCall(line.session, message, envelope, passes_unchanged=line.is_modern, seal=seal)
        call.server_info, call.repeats = line.about.get("serverInfo"), repeats
        call.line_id, call.expires_at = self.lines.new_id("m"), caller.principal.expires_at
        call.on_suspended = partial(self.suspended.add, caller)
        call.on_answered, call.on_done = partial(self.lines.answered, line), self.suspended.over
        call.on_late = partial(self.lines.late, line)
        call.on_reacted, call.ask_others = line.unasked.has_reacted, line.unasked.ask_waiting
        call.hears_others = lambda: line.may_still_ask
        self._learn_mirrors(self.lines.group(caller, envelope).mirrors, line, call)
        if need is Need.ALONE and not line.is_home:
            line.held_by = call
        try:
            if not line.is_modern and envelope.log_level is not None:
                self._log_everything(line)
            call.wait_with(reply)
            line.session.request(Request(call.line_id, message.method, params), call)
        except BaseException:
            self.lines.answered(line, call)
            raise
        return call

    async def resume(self, caller: Caller, message: Request, envelope: Envelope, reply: Reply) -> SessionlessCall:
        """Goes on with a suspended call: `params` has its requestState, and the answers.

        Raises:
            StateRefused: as SuspendedCalls.find.
            CallCutOff: the process cannot be told the answers; the call is over.
        """
        call = self.suspended.find(caller, message)
        call.come_back(message, envelope)
        try:
            answers = (message.params or {}).get("inputResponses")
            call.feed(members_of(answers) if answers is not None else {})
        except GatewayError as error:
            call.cancel("the answers could not be passed on")
            raise CallCutOff(f"the answers could not be passed on: {error}") from None
        if call.is_to_be_repeated:
            call.give_way()
            return await self.call(caller, message, envelope, reply, repeats=call.repeats + 1)
        call.wait_with(reply)
        return call

    def _log_everything(self, line: Line) -> None:
        """A handshake-era server has one level for all; what a request does not ask for is filtered here."""
        if not line.log_level_is_set and "logging" in line.capabilities:
            self.lines.send(line.session, "logging/setLevel", {"level": msgspec.Raw(b'"debug"')})
            line.log_level_is_set = True

    def _learn_mirrors(self, mirrors: MirroredHeaders, line: Line, call: SessionlessCall) -> None:
        """The tools that pass are remembered; after a call they are looked up, where that was long ago."""
        if call.message.method == "tools/list":
            call.on_result = partial(mirrors.saw, call.message.params)
        elif call.message.method == "tools/call":
            look = partial(self._look_if_due, mirrors, line, call.envelope)
            call.on_result = lambda response: asyncio.get_running_loop().call_soon(look)

    # --- discover, and the schemas behind x-mcp-header

    async def discover(self, caller: Caller, envelope: Envelope) -> bytes:
        """The `server/discover` result: what the backend said when its line was opened, and the versions we serve."""
        began_at = time.monotonic()
        line = await self.lines.take(caller, envelope, Need.HOME)
        line.session.calls.count_request("server/discover", "", time.monotonic() - began_at)
        self._look_if_due(self.lines.group(caller, envelope).mirrors, line, envelope)
        versions = msgspec.Raw(encode(SUPPORTED))
        if line.is_modern:
            return encode({**line.about, "supportedVersions": versions})
        capabilities = across_eras(line.capabilities, line.capabilities.keys() - {"tasks"})
        result = {"supportedVersions": versions, "capabilities": msgspec.Raw(encode(capabilities))}
        if "instructions" in line.about:
            result["instructions"] = line.about["instructions"]
        return complete(msgspec.Raw(encode(result)), "server/discover", line.about.get("serverInfo"))

    async def is_modern(self, caller: Caller, envelope: Envelope) -> bool:
        """Whether the backend speaks this revision itself."""
        known = self.lines.speaks_modern(caller)
        return known if known is not None else (await self.lines.take(caller, envelope, Need.HOME)).is_modern

    def known_mirrors(self, caller: Caller, envelope: Envelope, tool: str) -> list[MirroredParameter] | None:
        """The tool's parameters that must be repeated in headers, as far as is known; None while nothing is."""
        return self.lines.group(caller, envelope).mirrors.of(tool)

    async def mirrored(
        self, caller: Caller, envelope: Envelope, tool: str, *, max_age_s: float
    ) -> list[MirroredParameter]:
        """The same, as the backend listed it at most so long ago.

        Raises:
            GatewayError: as Lines.take.
            InvalidResponse: it does not list its tools.
        """
        line = await self.lines.take(caller, envelope, Need.HOME)
        mirrors = self.lines.group(caller, envelope).mirrors
        await self._look(mirrors, line, envelope, max_age_s=max_age_s).wait()
        found = mirrors.of(tool)
        if found is None:
            raise InvalidResponse("the backend did not list its tools, so that headers could not be held against them")
        return found

    def _look(self, mirrors: MirroredHeaders, line: Line, envelope: Envelope, *, max_age_s: float = 0.0) -> anyio.Event:
        self._looking.add(mirrors)
        params: Params = {"_meta": own_envelope(envelope)} if line.is_modern else {}
        return mirrors.look(line.session, partial(self.lines.new_id, "g"), params, max_age_s=max_age_s)

    def _look_if_due(self, mirrors: MirroredHeaders, line: Line, envelope: Envelope) -> None:
        """Keeps in mind what tools there are, when nobody waits for the process."""
        if mirrors.is_due() and "tools" in line.capabilities and line.session.state is SessionState.OPEN:
            self._look(mirrors, line, envelope)

    # --- listening

    async def listen(self, caller: Caller, message: Request, envelope: Envelope) -> Listener | None:
        """A listener (see Listeners.open); None where the backend serves the request itself."""
        line = await self.lines.take(caller, envelope, Need.HOME)
        return None if line.is_modern else await self.listeners.open(caller, line, message)

    # --- time, and change

    def sweep(self, now: float) -> None:
        """Ends the suspended calls whose clients never came back; all of them on a node that stops."""
        self.suspended.sweep(now)
        is_leaving = self._registry.draining
        self._looking = {mirrors for mirrors in self._looking if mirrors.sweep(now, is_leaving=is_leaving)}
        if self._registry.draining:
            self._end_suspended()
        self.lines.sweep()

    def _end_suspended(self) -> None:
        """Nobody waits for these calls now, and who comes back comes too late, here and at another node."""
        for call in self.suspended.waiting():
            call.cancel("the node is shutting down")
            if all(each.cancelled for each in call.line.exchange.every_call()):
                call.line.close(SHUTDOWN)

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """A backend has changed: new requests get new lines."""
        self.lines.forget(tenant, backend)

    def __repr__(self) -> str:
        lines, suspended, listeners = len(self.lines), len(self.suspended), len(self.listeners)
        return f"<SessionlessRequests [{lines} lines, {suspended} suspended, {listeners} listeners]>"


def _need(message: Request, envelope: Envelope) -> Need:
    """What the request wants where its caller may have several lines: see Line.is_home.

    stdio does not say to which call a question or a log message belongs: what may bring any has its own line there.
    """
    if message.method not in MAY_ASK or (message.params is not None and "task" in message.params):
        return Need.HOME
    return Need.ALONE if may_be_asked(envelope) or envelope.log_level is not None else Need.SHARED
