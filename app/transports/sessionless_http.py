"""Streamable HTTP of 2026-07-28: POST only, no session; every request brings its own envelope."""

import json
from collections import defaultdict
from functools import partial
from typing import Any

from app.errors import ClientError, GatewayError
from app.http.errors import HttpRefusal
from app.metrics import Metrics
from app.protocol.commands import Answer
from app.protocol.eras.modern import (
    MODERN,
    REMOVED,
    Envelope,
    Rejection,
    RoutingHeaders,
    check_mirrors,
    climb,
    unsupported,
)
from app.protocol.headers import Accepted, parse_version
from app.protocol.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Message,
    Notification,
    Params,
    Request,
    code_of,
    string_of,
)
from app.sessionless.call import SessionlessCall
from app.sessionless.requests import Caller, SessionlessRequests
from app.streams.streams import EventStream, Reply
from app.transports.event_stream import StreamOptions, send_events
from app.transports.remote.caller_routing import CallerRouting
from app.transports.request import McpRequest

LOOK_AGAIN_S = 1.0  # a call that does not fit its tool is held against a description at most this old
ROUTING_HEADERS = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
# The status of an error while the head is still ours to send (streamable-http, "Server Validation").
_STATUS = {-32700: 400, -32600: 400, -32602: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}


class SessionlessHttp:
    """Answers POSTs that Streamable HTTP found to be of this revision."""

    def __init__(
        self, implicit: SessionlessRequests, callers: CallerRouting, metrics: Metrics, *, keepalive_s: float
    ) -> None:
        self._implicit, self._callers = implicit, callers
        self._keepalive_s = keepalive_s
        self._call_streams, self._listen_streams = metrics.streams.labels("post"), metrics.streams.labels("listen")

    async def post(
        self, request: McpRequest, message: Message | list[Message], accepted: Accepted, body: bytes
    ) -> None:
        """One request, or a notification, which is taken note of: cancelling is closing the stream here."""
        if isinstance(message, Notification):
            self._require_version(request)
            await request.answer_empty(202)
            return
        if not isinstance(message, Request):
            raise HttpRefusal(400, "invalid_message", "this revision has neither batches nor responses from clients")
        envelope = climb(message, _routing_headers(request))
        if isinstance(envelope, Rejection):
            raise _refusal(envelope)
        if message.method in REMOVED:
            raise HttpRefusal(404, "method_not_found", "this revision has no such method", code=METHOD_NOT_FOUND)
        caller = Caller(
            request.principal, request.tenant, request.backend, request.require_still_allowed, request.client_address
        )
        calls: list[SessionlessCall] = []  # at most one
        with self._implicit.expecting(caller):
            if not await self._is_ours(request, caller, message, body):
                return
            try:
                await self._serve(request, caller, message, envelope, accepted, calls)
            except ClientError:
                raise
            except GatewayError as error:
                # The drain may begin at any moment. Another node can have what has not reached the backend.
                was_sent = calls or error.outcome is not None
                if was_sent or not self._callers.is_leaving or not await self._leave(request, caller, body):
                    raise

    async def _serve(
        self,
        request: McpRequest,
        caller: Caller,
        message: Request,
        envelope: Envelope,
        accepted: Accepted,
        calls: list[SessionlessCall],
    ) -> None:
        if message.method == "subscriptions/listen":
            if not accepted.events:
                raise HttpRefusal(
                    406, "not_acceptable", "a subscription is a stream: Accept must allow text/event-stream"
                )
            if await self._listen(request, caller, message, envelope):
                return
        if message.method == "server/discover":
            result = await self._implicit.discover(caller, envelope)
            await request.answer(200, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message.id, result))
            return
        if message.method == "tools/call":
            await self._require_mirrors(request, caller, message, envelope)
            await request.require_still_allowed()
        await self._call(request, caller, message, envelope, accepted, calls)

    async def _is_ours(self, request: McpRequest, caller: Caller, message: Request, body: bytes) -> bool:
        """Whether it is served here; False once another node has answered.

        1. It goes on with a suspended call: served where that is. 2. We are leaving: by another node, if there is one.
        3. The caller has lines here: by us. 4. The backend keeps no state: by whoever is asked. 5. By the one node that
        has the caller.
        """
        place = self._implicit.suspended_at(caller, message)
        if place is not None:
            if not self._implicit.is_here(place):
                await self._callers.suspended(request, body, place)
                return False
            return True
        if self._callers.is_leaving:
            return not await self._leave(request, caller, body)
        if self._implicit.has_lines(caller) or not await self._implicit.is_of_one_node(caller):
            return True
        return await self._callers.claim(request, body)

    async def _leave(self, request: McpRequest, caller: Caller, body: bytes) -> bool:
        """Whether another node has answered, because we open no more lines."""
        keeps_state = await self._implicit.is_of_one_node(caller)
        return await self._callers.leave(request, body, keeps_state=keeps_state)

    def _require_version(self, request: McpRequest) -> None:
        version = parse_version(request.values(b"mcp-protocol-version"))
        if version is not None and version != MODERN:
            raise _refusal(unsupported(version))

    async def _require_mirrors(self, request: McpRequest, caller: Caller, message: Request, envelope: Envelope) -> None:
        """The parameters that a tool wants repeated in headers: stdio servers never see those, so we compare.

        A call waits for a list of the tools only if it repeats arguments and nothing is known of them, or if what is
        known would refuse it.
        """
        params = message.params or {}
        tool = string_of(params.get("name")) or ""
        mirrored = self._implicit.known_mirrors(caller, envelope, tool)
        if mirrored == []:
            return  # the usual case
        headers = _parameter_headers(request)
        goes_on = self._implicit.suspended_at(caller, message) is not None
        if mirrored is None and headers and not goes_on:  # it says what intermediaries believe: that must be true
            mirrored = await self._implicit.mirrored(caller, envelope, tool, max_age_s=LOOK_AGAIN_S)
        if not mirrored:
            return
        arguments = _arguments(params)
        rejection = check_mirrors(mirrored, arguments, headers)
        if rejection is not None and not goes_on:
            mirrored = await self._implicit.mirrored(caller, envelope, tool, max_age_s=LOOK_AGAIN_S)
            rejection = check_mirrors(mirrored, arguments, headers)
        if rejection is not None:
            raise _refusal(rejection)

    # --- calls

    async def _call(
        self,
        request: McpRequest,
        caller: Caller,
        message: Request,
        envelope: Envelope,
        accepted: Accepted,
        calls: list[SessionlessCall],
    ) -> None:
        def make_stream() -> EventStream:  # asked for once there is a call
            return calls[-1].line.streams.new()

        reply = Reply(1, may_stream=accepted.events, make_stream=make_stream)
        try:
            await request.unless_gone(partial(self._until_head, calls, caller, message, envelope, reply))
            if not accepted.json:
                reply.become_stream()
            if reply.stream is not None:
                options = StreamOptions(self._call_streams, self._keepalive_s)
                expire = partial(calls[-1].expire, reply)
                await send_events(request, reply.stream, options, reply.stream.end, on_expired=expire)
                return
        finally:
            request.outcome = reply.failure
            for call in calls:
                request.session_id = call.line.id
                call.leave(reply)
        (outcome,) = reply.take()
        if not isinstance(outcome, Answer):
            raise outcome.error
        await request.answer(_status(outcome), outcome.payload())

    async def _until_head(
        self, calls: list[SessionlessCall], caller: Caller, message: Request, envelope: Envelope, reply: Reply
    ) -> None:
        """Until the head can be sent: with the answer, with what is asked first, or as a stream."""
        is_retry = message.params is not None and "requestState" in message.params
        is_of_ours = is_retry and self._implicit.suspended_at(caller, message) is not None
        if is_of_ours or (is_retry and not await self._implicit.is_modern(caller, envelope)):
            calls.append(await self._implicit.resume(caller, message, envelope, reply))
        else:
            calls.append(await self._implicit.call(caller, message, envelope, reply))
        await reply.outcome

    # --- listening

    async def _listen(self, request: McpRequest, caller: Caller, message: Request, envelope: Envelope) -> bool:
        """Serves the subscription here; False where the backend serves it itself."""
        listener = await self._implicit.listen(caller, message, envelope)
        if listener is None:
            return False
        options = StreamOptions(self._listen_streams, self._keepalive_s)
        listeners = self._implicit.listeners
        await send_events(
            request, listener.stream, options, partial(listeners.close, listener), partial(listeners.end, listener)
        )
        return True


def _parameter_headers(request: McpRequest) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = defaultdict(list)
    for name, value in request.scope["headers"]:
        if name.startswith(b"mcp-param-"):
            headers[name.decode("latin-1")].append(value.decode("latin-1").strip())
    return headers


def _arguments(params: Params) -> Any:
    try:
        return json.loads(bytes(params["arguments"])) if "arguments" in params else {}
    except (ValueError, RecursionError):  # integers of thousands of digits, nesting
        raise _refusal(Rejection(INVALID_PARAMS, "params.arguments is more than can be compared")) from None


def _routing_headers(request: McpRequest) -> RoutingHeaders:
    values = {name: request.values(name) for name in ROUTING_HEADERS}
    repeated = next((name.decode() for name, found in values.items() if len(found) > 1), None)
    version, method, name = (found[0].decode("latin-1").strip() if found else None for found in values.values())
    return RoutingHeaders(version, method, name, repeated)


def _refusal(rejection: Rejection) -> HttpRefusal:
    reason = "unsupported_protocol_version" if rejection.code == -32022 else "invalid_request"
    return HttpRefusal(400, reason, rejection.message, code=rejection.code, data=rejection.data)


def _status(outcome: Answer) -> int:
    if outcome.response.member != "error":
        return 200
    return _STATUS.get(code_of(outcome.response) or 0, 200)
