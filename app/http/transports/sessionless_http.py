"""Streamable HTTP of 2026-07-28: POST only, no session; every request has its own envelope."""

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.errors import ClientError, GatewayError
from app.http.errors import HttpRefusal
from app.http.remote.caller_routing import CallerRouting
from app.http.transports.event_stream import StreamOptions, send_events
from app.http.transports.request import McpRequest, answer_with, unless_gone
from app.protocol.commands import Answer
from app.protocol.eras.sessionless_envelope import (
    REMOVED,
    SESSIONLESS,
    Envelope,
    Rejection,
    RoutingHeaders,
    check_mirrors,
    unsupported,
    validate,
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
from app.sessions.sessionless.call import SessionlessCall
from app.sessions.sessionless.pooled_sessions import Caller
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.streams.streams import EventStream, Reply
from app.telemetry.metrics import Metrics

LOOK_AGAIN_S = 1.0  # a call that does not match its tool is checked again with a list of tools at most this old
ROUTING_HEADERS = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
# The status by error code (streamable-http, "Server Validation"); 200 for all others.
_STATUS = {-32700: 400, -32600: 400, -32602: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}


@dataclass(slots=True)
class _Post:
    """A request, and the call that it has begun or gone on with."""

    request: McpRequest
    caller: Caller
    message: Request
    envelope: Envelope
    accepted: Accepted
    body: bytes
    call: SessionlessCall | None = None

    async def until_head(self, sessionless: SessionlessRequests, reply: Reply) -> None:
        """Makes the call, and waits until the head of the answer can be sent."""
        caller, message, envelope = self.caller, self.message, self.envelope
        is_retry = message.params is not None and "requestState" in message.params
        is_of_ours = is_retry and sessionless.suspended_at(caller, message) is not None
        if is_of_ours or (is_retry and not await sessionless.is_sessionless(caller, envelope)):
            self.call = await sessionless.resume(caller, message, envelope, reply)
        else:
            self.call = await sessionless.call(caller, message, envelope, reply)
        await reply.outcome

    def make_stream(self) -> EventStream:
        assert self.call is not None
        return self.call.session.streams.new()


class SessionlessHttp:
    """Answers the POSTs of this revision."""

    def __init__(
        self, sessionless: SessionlessRequests, callers: CallerRouting, metrics: Metrics, *, keepalive_s: float
    ) -> None:
        self._sessionless, self._callers = sessionless, callers
        self._keepalive_s = keepalive_s
        self._call_streams, self._listen_streams = metrics.streams.labels("post"), metrics.streams.labels("listen")

    async def post(
        self, request: McpRequest, message: Message | list[Message], accepted: Accepted, body: bytes
    ) -> None:
        """One request; or a notification, which has no effect: here clients cancel by closing the stream."""
        if isinstance(message, Notification):
            version = parse_version(request.values(b"mcp-protocol-version"))
            if version is not None and version != SESSIONLESS:
                raise _refusal(unsupported(version))
            await request.answer_empty(202)
            return
        if not isinstance(message, Request):
            raise HttpRefusal(400, "invalid_message", "this revision has neither batches nor responses from clients")
        envelope = validate(message, _routing_headers(request))
        if isinstance(envelope, Rejection):
            raise _refusal(envelope)
        if message.method in REMOVED:
            raise HttpRefusal(404, "method_not_found", "this revision has no such method", code=METHOD_NOT_FOUND)
        caller = Caller(
            request.principal, request.tenant, request.backend, request.require_still_allowed, request.client_address
        )
        post = _Post(request, caller, message, envelope, accepted, body)
        with self._sessionless.pooled_sessions.expecting(caller.key):
            if not await self._is_ours(post):
                return
            try:
                await self._serve(post)
            except ClientError:
                raise
            except GatewayError as error:
                # The drain may have begun meanwhile. What has not reached the backend can go to another node.
                was_sent = post.call is not None or error.outcome is not None
                if was_sent or not self._callers.is_leaving or not await self._leave(post):
                    raise

    async def _serve(self, post: _Post) -> None:
        request, caller, message, envelope = post.request, post.caller, post.message, post.envelope
        if message.method == "subscriptions/listen":
            if not post.accepted.events:
                raise HttpRefusal(
                    406, "not_acceptable", "a subscription is a stream: Accept must allow text/event-stream"
                )
            if await self._listen(post):
                return
        if message.method == "server/discover":
            result = await self._sessionless.discover(caller, envelope)
            await request.answer(200, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message.id, result))
            return
        if message.method == "tools/call":
            await self._require_mirrors(post)
            await request.require_still_allowed()
        await self._call(post)

    async def _is_ours(self, post: _Post) -> bool:
        """Whether this node serves the request; False once another node has answered.

        1. It goes on with a suspended call: the node that holds that. 2. This node drains: another one, if any. 3. The
        caller has pooled sessions here, or the backend keeps no state: this one. 4. Else the node that has the caller.
        """
        caller = post.caller
        place = self._sessionless.suspended_at(caller, post.message)
        if place is not None and not self._sessionless.is_here(place):
            await self._callers.suspended(post.request, post.body, place)
            return False
        if place is not None:
            return True
        if self._callers.is_leaving:
            return not await self._leave(post)
        if self._sessionless.serves(caller) or not await self._sessionless.is_of_one_node(caller):
            return True
        return await self._callers.claim(post.request, post.body)

    async def _leave(self, post: _Post) -> bool:
        """Whether another node has answered, because this one opens no more pooled sessions."""
        keeps_state = await self._sessionless.is_of_one_node(post.caller)
        return await self._callers.leave(post.request, post.body, keeps_state=keeps_state)

    async def _require_mirrors(self, post: _Post) -> None:
        """Compares the arguments that a tool wants repeated in headers, which stdio servers never see.

        A call waits for the list of tools only where it repeats arguments and nothing is known of them, or where the
        known list would refuse it.
        """
        caller, envelope = post.caller, post.envelope
        params = post.message.params or {}
        tool = string_of(params.get("name")) or ""
        mirrored = self._sessionless.known_mirrors(caller, envelope, tool)
        if mirrored == []:
            return  # the usual case
        headers = _parameter_headers(post.request)
        goes_on = self._sessionless.suspended_at(caller, post.message) is not None
        if mirrored is None and headers and not goes_on:  # intermediaries act on these headers: they must be true
            mirrored = await self._sessionless.mirrored(caller, envelope, tool, max_age_s=LOOK_AGAIN_S)
        if not mirrored:
            return
        arguments = _arguments(params)
        rejection = check_mirrors(mirrored, arguments, headers)
        if rejection is not None and not goes_on:
            mirrored = await self._sessionless.mirrored(caller, envelope, tool, max_age_s=LOOK_AGAIN_S)
            rejection = check_mirrors(mirrored, arguments, headers)
        if rejection is not None:
            raise _refusal(rejection)

    async def _call(self, post: _Post) -> None:
        request, accepted = post.request, post.accepted
        reply = Reply(1, may_stream=accepted.events, make_stream=post.make_stream)
        try:
            await unless_gone(request, partial(post.until_head, self._sessionless, reply))
            if not accepted.json:
                reply.become_stream()
            if reply.allowances:
                request.limited_by(reply.allowances)
            if reply.stream is not None:
                assert post.call is not None
                options, expire = StreamOptions(self._call_streams, self._keepalive_s), partial(post.call.expire, reply)
                await send_events(request, reply.stream, options, reply.stream.end, expire)
                return
        finally:
            request.answered_as(reply.failure)
            if post.call is not None:
                request.served_by(post.call.session.id)
                post.call.leave(reply)
        (outcome,) = reply.take()
        if not isinstance(outcome, Answer):
            raise outcome.error
        await answer_with(request, _status(outcome), outcome)

    async def _listen(self, post: _Post) -> bool:
        """Serves the subscription; False where the backend serves it itself."""
        subscription = await self._sessionless.listen(post.caller, post.message, post.envelope)
        if subscription is None:
            return False
        subscriptions = self._sessionless.subscriptions
        close, end = partial(subscriptions.close, subscription), partial(subscriptions.end, subscription)
        options = StreamOptions(self._listen_streams, self._keepalive_s)
        await send_events(post.request, subscription.stream, options, close, end)
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
        raise _refusal(Rejection(INVALID_PARAMS, "params.arguments cannot be compared with headers")) from None


def _routing_headers(request: McpRequest) -> RoutingHeaders:
    values = {name: request.values(name) for name in ROUTING_HEADERS}
    repeated = next((name.decode() for name, found in values.items() if len(found) > 1), None)
    version, method, name = (found[0].decode("latin-1").strip() if found else None for found in values.values())
    return RoutingHeaders(version, method, name, repeated)


def _refusal(rejection: Rejection) -> HttpRefusal:
    reason = "unsupported_protocol_version" if rejection.code == -32022 else "invalid_request"
    return HttpRefusal(400, reason, rejection.message, code=rejection.code, data=rejection.data)


def _status(outcome: Answer) -> int:
    return _STATUS.get(code_of(outcome.response) or 0, 200) if outcome.response.member == "error" else 200
