"""SessionlessRequests: calls, retries, discovery and subscriptions of clients of 2026-07-28."""

import asyncio
import time
from functools import partial

import anyio
import msgspec

from app.auth.sealing import Sealer
from app.errors import BackendTimeout, CallCutOff, GatewayError, InvalidResponse
from app.protocol.commands import Answer, Failed
from app.protocol.eras.answers import complete
from app.protocol.eras.sessionless_envelope import (
    MAY_ASK,
    SUPPORTED,
    Envelope,
    MirroredParameter,
    across_eras,
    own_envelope,
    without_envelope,
)
from app.protocol.jsonrpc import Params, Request, encode, members_of
from app.sessions.endings import SHUTDOWN
from app.sessions.registry import SessionRegistry
from app.sessions.session import SessionState
from app.sessions.sessionless._mirrored_headers import MirroredHeaders
from app.sessions.sessionless._request_state import RequestStateSeal
from app.sessions.sessionless._subscriptions import Subscription, Subscriptions
from app.sessions.sessionless._unsolicited import UnsolicitedMessages
from app.sessions.sessionless.call import SessionlessCall, Surroundings
from app.sessions.sessionless.pooled_session import ANYWHERE, CallerHomes, Need, PooledSession
from app.sessions.sessionless.pooled_sessions import Caller, PooledSessions, may_be_asked
from app.sessions.sessionless.suspended_calls import ALONE, SUSPENDED_S, Place, SuspendedCalls
from app.sessions.streams.streams import Reply


class SessionlessRequests:
    """The pooled sessions, suspended calls and subscriptions of this node; the registry owns the sessions."""

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
        self.pooled_sessions = PooledSessions(registry, homes)
        self.subscriptions = Subscriptions(self.pooled_sessions)
        self._states = RequestStateSeal(sealer)
        self._looking: set[MirroredHeaders] = set()
        self.suspended = SuspendedCalls(sealer, suspended_s, here)

    # --- which node serves a request

    def serves(self, caller: Caller) -> bool:
        """Whether this node serves the caller already."""
        return any(True for _ in self.pooled_sessions.of(caller.key))

    async def is_of_one_node(self, caller: Caller) -> bool:
        """Whether all pooled sessions of the caller must be on one node, as its backend keeps state."""
        return (await self._registry.backend(caller.tenant, caller.backend)).keeps_state

    def suspended_at(self, caller: Caller, message: Request) -> Place | None:
        """Where the call is suspended that this request continues; None where it continues none of ours."""
        if message.params is None or "requestState" not in message.params:
            return None
        return self.suspended.place_of(caller, message)

    def is_here(self, place: Place) -> bool:
        return place.node == self.suspended.here.node

    # --- calls

    async def call(
        self, caller: Caller, message: Request, envelope: Envelope, reply: Reply, *, repeats: int = 0
    ) -> SessionlessCall:
        """Starts a call; its outcome, or the questions of the process, go to `reply`.

        Raises:
            StateRefused: the requestState was not given to this principal by a sessionless backend.
            GatewayError: as PooledSessions.take and Session.request.
        """
        need = _need(message, envelope)
        pooled = await self.pooled_sessions.take(caller, envelope, need)
        params = (
            self._states.opened(caller, message.params) if pooled.is_sessionless else without_envelope(message.params)
        )
        listen = pooled.session.streams.listen
        assert isinstance(listen, UnsolicitedMessages)
        around = Surroundings(
            pooled,
            gateway_id=self.pooled_sessions.new_id("m"),
            expires_at=caller.principal.expires_at,
            on_suspended=partial(self.suspended.add, caller),
            on_outcome=partial(self._outcome, pooled, listen, self.pooled_sessions.group(caller, envelope).mirrors),
            on_done=self.suspended.over,
            ask_others=listen.ask_waiting,
            seal=partial(self._states.sealed, caller),
        )
        call = SessionlessCall(message, envelope, around, repeats)
        if need is Need.ALONE and not pooled.is_home:
            pooled.serve_only(call)
        try:
            if not pooled.is_sessionless and envelope.log_level is not None:
                self._log_everything(pooled)
            call.wait_with(reply)
            pooled.session.request(Request(call.gateway_id, message.method, params), call)
        except BaseException:
            self.pooled_sessions.answered(pooled, call)
            raise
        return call

    async def resume(self, caller: Caller, message: Request, envelope: Envelope, reply: Reply) -> SessionlessCall:
        """Continues a suspended call: `params` has its requestState, and the answers.

        Raises:
            StateRefused: as SuspendedCalls.find.
            CallCutOff: the answers could not be sent to the process; the call is over.
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

    def _log_everything(self, pooled: PooledSession) -> None:
        """A handshake-era server has one log level for all calls; messages are filtered per request here."""
        if not pooled.log_level_is_set and "logging" in pooled.capabilities:
            self.pooled_sessions.send(pooled.session, "logging/setLevel", {"level": msgspec.Raw(b'"debug"')})
            pooled.told_to_log()

    def _outcome(
        self,
        pooled: PooledSession,
        listen: UnsolicitedMessages,
        mirrors: MirroredHeaders,
        call: SessionlessCall,
        outcome: Answer | Failed,
    ) -> None:
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, BackendTimeout):
                self.pooled_sessions.late(pooled, call.envelope)
            self.pooled_sessions.answered(pooled, call, outcome.may_go_on)
            return
        listen.has_reacted(outcome.call)
        self.pooled_sessions.answered(pooled, call)
        if call.message.method == "tools/list":
            mirrors.saw(call.message.params, outcome.response)
        elif call.message.method == "tools/call":
            asyncio.get_running_loop().call_soon(self._look_if_due, mirrors, pooled, call.envelope)

    # --- discover, and the schemas behind x-mcp-header

    async def discover(self, caller: Caller, envelope: Envelope) -> bytes:
        """The `server/discover` result: what the backend said of itself, and the versions of the gateway."""
        began_at = time.monotonic()
        pooled = await self.pooled_sessions.take(caller, envelope, Need.HOME)
        pooled.session.calls.count_request("server/discover", "", time.monotonic() - began_at)
        self._look_if_due(self.pooled_sessions.group(caller, envelope).mirrors, pooled, envelope)
        versions = msgspec.Raw(encode(SUPPORTED))
        if pooled.is_sessionless:
            return encode({**pooled.about, "supportedVersions": versions})
        capabilities = across_eras(pooled.capabilities, pooled.capabilities.keys() - {"tasks"})
        result = {"supportedVersions": versions, "capabilities": msgspec.Raw(encode(capabilities))}
        if "instructions" in pooled.about:
            result["instructions"] = pooled.about["instructions"]
        return complete(msgspec.Raw(encode(result)), "server/discover", pooled.about.get("serverInfo"))

    async def is_sessionless(self, caller: Caller, envelope: Envelope) -> bool:
        """Whether the backend speaks this revision itself."""
        known = self.pooled_sessions.speaks_sessionless(caller)
        if known is None:
            return (await self.pooled_sessions.take(caller, envelope, Need.HOME)).is_sessionless
        return known

    def known_mirrors(self, caller: Caller, envelope: Envelope, tool: str) -> list[MirroredParameter] | None:
        """The tool's parameters that must be repeated in headers; None while no list of tools is known."""
        return self.pooled_sessions.group(caller, envelope).mirrors.of(tool)

    async def mirrored(
        self, caller: Caller, envelope: Envelope, tool: str, *, max_age_s: float
    ) -> list[MirroredParameter]:
        """The same, by a list that is at most `max_age_s` old. Raises InvalidResponse where the backend gives none."""
        pooled = await self.pooled_sessions.take(caller, envelope, Need.HOME)
        mirrors = self.pooled_sessions.group(caller, envelope).mirrors
        await self._look(mirrors, pooled, envelope, max_age_s=max_age_s).wait()
        found = mirrors.of(tool)
        if found is None:
            raise InvalidResponse(
                "the backend did not list its tools, so the headers could not be checked against them"
            )
        return found

    def _look(
        self, mirrors: MirroredHeaders, pooled: PooledSession, envelope: Envelope, *, max_age_s: float = 0.0
    ) -> anyio.Event:
        self._looking.add(mirrors)
        params: Params = {"_meta": own_envelope(envelope)} if pooled.is_sessionless else {}
        return mirrors.look(pooled.session, partial(self.pooled_sessions.new_id, "g"), params, max_age_s=max_age_s)

    def _look_if_due(self, mirrors: MirroredHeaders, pooled: PooledSession, envelope: Envelope) -> None:
        """Refreshes the list of tools, where no call waits for it."""
        if mirrors.is_due() and "tools" in pooled.capabilities and pooled.session.state is SessionState.OPEN:
            self._look(mirrors, pooled, envelope)

    # --- listening

    async def listen(self, caller: Caller, message: Request, envelope: Envelope) -> Subscription | None:
        """As Subscriptions.open; None where the backend serves the request itself."""
        pooled = await self.pooled_sessions.take(caller, envelope, Need.HOME)
        return None if pooled.is_sessionless else await self.subscriptions.open(caller, pooled, message)

    def sweep(self, now: float) -> None:
        """Ends the suspended calls whose clients did not come back in time; on a node that drains, all."""
        self.suspended.sweep(now)
        is_leaving = self._registry.draining
        self._looking = {mirrors for mirrors in self._looking if mirrors.sweep(now, is_leaving=is_leaving)}
        if is_leaving:
            self._end_suspended()
        self.pooled_sessions.sweep()

    def _end_suspended(self) -> None:
        for call in self.suspended.waiting():
            call.cancel("the node is shutting down")
            if all(each.cancelled for each in call.session.exchange.every_call()):
                call.session.close(SHUTDOWN)

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """A backend has changed: new requests get new pooled sessions."""
        self.pooled_sessions.forget(tenant, backend)


def _need(message: Request, envelope: Envelope) -> Need:
    """stdio does not say to which call a question or a log message belongs: so calls that may cause them are ALONE."""
    if message.method not in MAY_ASK or (message.params is not None and "task" in message.params):
        return Need.HOME
    return Need.ALONE if may_be_asked(envelope) or envelope.log_level is not None else Need.SHARED
