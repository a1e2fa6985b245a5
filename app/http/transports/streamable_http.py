"""Streamable HTTP of the handshake era (2025-03-26 to 2025-11-25): one URL for POST, GET and DELETE."""

from functools import partial

from prometheus_client import Gauge

from app.errors import GatewayError, InvalidMessage
from app.http.errors import HttpRefusal
from app.http.remote.remote_sessions import RemoteSessions
from app.http.transports.arriving_bodies import ArrivingBodies
from app.http.transports.event_stream import StreamOptions, send_events
from app.http.transports.request import HEAVY_BODY, McpRequest, answer_with, parsed, read_in_turn, unless_gone
from app.http.transports.request_spans import message_over
from app.http.transports.sessionless_http import SessionlessHttp
from app.limits.loop_shares import LoopShares
from app.protocol.commands import Answer, Call, Failed
from app.protocol.eras.sessionless_envelope import SESSIONLESS, envelope_version, unsupported
from app.protocol.event_ids import EventId, is_primed, parse_event_id
from app.protocol.headers import Accepted, is_json, parse_accept, parse_version
from app.protocol.jsonrpc import Message, Notification, Request, Response
from app.protocol.revisions import HANDSHAKE, allows_batches, is_handshake
from app.protocol.sse_format import FIRST_BYTE, encode_primer
from app.sessions.endings import DELETED
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams.resumption import Reader
from app.sessions.streams.streams import Reply
from app.telemetry.metrics import Metrics

TRANSPORT = "streamable_http"
MAX_BATCH = 50
SESSION_HEADER, VERSION_HEADER = b"mcp-session-id", b"mcp-protocol-version"
_HANDSHAKE_VALUES = frozenset(version.encode() for version in HANDSHAKE)


class StreamableHttp:
    """Answers the three methods, for requests that Front has authenticated."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        registry: SessionRegistry,
        remote: RemoteSessions,
        sessionless: SessionlessHttp,
        metrics: Metrics,
        *,
        max_body_bytes: int,
        arriving: ArrivingBodies,
        keepalive_s: float,
        shares: LoopShares | None = None,
    ) -> None:
        self._registry, self._remote, self._sessionless = registry, remote, sessionless
        self._max_body_bytes, self._keepalive_s = max_body_bytes, keepalive_s
        self._shares, self._arriving = shares or LoopShares(), arriving
        self._get_streams, self._post_streams = metrics.streams.labels("get"), metrics.streams.labels("post")

    async def post(self, request: McpRequest) -> None:
        """One message; in 2025-03-26 also a batch."""
        headers = request.headers
        accepted = parse_accept(headers.get(b"accept"))
        if not (accepted.json or accepted.events):
            raise HttpRefusal(406, "not_acceptable", "Accept must allow application/json or text/event-stream")
        if not is_json(headers.get(b"content-type")):
            raise HttpRefusal(415, "unsupported_media_type", "Content-Type must be application/json")
        body = await request.body(self._max_body_bytes, self._arriving)
        if self._is_for_another(request, body) and await self._is_answered(request, body):
            return
        message = request.parse(body) if len(body) < HEAVY_BODY else await read_in_turn(request, body, self._shares)
        if type(message) is Request:
            try:
                if _is_sessionless(request, message):
                    await self._sessionless.post(request, message, accepted, body)
                    return
                await self._request(request, message, body, accepted)
            except GatewayError as error:
                await request.answer_error(error, message.id)
            return
        if _is_sessionless(request, message):
            await self._sessionless.post(request, message, accepted, body)
            return
        session = self._session(request) or self._leaving(request, message) or await self._fetch(request, body)
        if session is None:
            return
        _require_version_of(session, request)
        if isinstance(message, list):
            await self._batch(request, session, message, len(body), accepted)
            return
        _pass_on(session, message)
        await request.answer_empty(202)

    async def get(self, request: McpRequest) -> None:
        """The session's listen stream, or the stream of Last-Event-ID from there on."""
        if SESSION_HEADER not in request.headers:
            raise _post_only("GET needs a session; start one with POST")
        if not parse_accept(request.headers.get(b"accept")).events:
            raise HttpRefusal(406, "not_acceptable", "Accept must allow text/event-stream")
        if parse_version(request.values(VERSION_HEADER)) == SESSIONLESS:
            raise _post_only("this revision has POST only")
        session = self._find(request) or self._ended(request) or await self._fetch(request)
        if session is None:
            return
        _require_version_of(session, request)
        reader = _reader(session, request.values(b"last-event-id"))
        if reader is None:
            await request.answer_empty(204)
            return
        await self._send(request, session, reader, self._get_streams)

    async def delete(self, request: McpRequest) -> None:
        if SESSION_HEADER not in request.headers:
            raise _post_only("DELETE needs a session")
        session = self._find(request) or await self._fetch(request)
        if session is None:
            return
        session.close(DELETED)
        await request.answer_empty(204)

    # --- POST

    async def _request(self, request: McpRequest, message: Request, body: bytes, accepted: Accepted) -> None:
        if message.method == "initialize":
            if not await self._is_answered_elsewhere(request, body):
                await self._initialize(request, message, accepted)
            return
        session = self._session(request) or await self._fetch(request, body)
        if session is None:
            return
        _require_version_of(session, request)
        reply = session.reply(1, may_stream=accepted.events, expires_at=request.principal.expires_at)
        session.request(message, reply)
        if not accepted.json:
            reply.become_stream()
        await reply.outcome
        if reply.allowances:
            request.limited_by(reply.allowances)
        if reply.stream is not None:
            await self._send_stream(request, session, reply)
            return
        (outcome,) = reply.take()
        if type(outcome) is not Answer:
            raise outcome.error  # type: ignore[union-attr]
        request.answered_as(reply.failure)
        await answer_with(request, 200, outcome)

    async def _initialize(self, request: McpRequest, message: Request, accepted: Accepted) -> None:
        session = await self._registry.open(
            request.principal, request.tenant, request.backend, TRANSPORT, request.require_still_allowed
        )
        request.served_by(session.id)
        session.opened_by(request.client_address())
        reply = session.reply(1, may_stream=accepted.events)
        try:
            await unless_gone(request, partial(self._handshake, request, session, message, reply))
            if not accepted.json:
                reply.become_stream()
            if reply.stream is not None:
                await self._send_stream(request, session, reply)
                return
            (outcome,) = reply.take()
            if isinstance(outcome, Failed):
                raise outcome.error
        except BaseException:
            session.close("not_initialized")
            raise
        if outcome.response.member == "error":
            request.answered_as(reply.failure)
            session.close("not_initialized")
            await answer_with(request, 200, outcome)
            return
        await answer_with(request, 200, outcome, [(SESSION_HEADER, session.id.encode())])

    async def _is_answered_elsewhere(self, request: McpRequest, body: bytes) -> bool:
        """Whether another node has answered `initialize`. Raises InvalidMessage where the session exists already."""
        if SESSION_HEADER not in request.headers:
            return self._registry.is_stopping and await self._remote.opening(request, body)
        if self._find(request) is None and await self._fetch(request, body) is None:
            return True
        raise InvalidMessage("the session is initialized already")

    async def _handshake(self, request: McpRequest, session: Session, message: Request, reply: Reply) -> None:
        await self._registry.connect(session)
        await request.require_still_allowed()
        session.request(message, reply)
        await reply.outcome
        await self._registry.make_safe(session)

    async def _batch(
        self, request: McpRequest, session: Session, batch: list[Message], size: int, accepted: Accepted
    ) -> None:
        """A batch of so many bytes; it is refused as a whole, before anything of it has run."""
        if not allows_batches(session.version):
            raise InvalidMessage(f"revision {session.version} has no batches")
        if not 1 <= len(batch) <= MAX_BATCH:
            raise InvalidMessage(f"a batch has 1 to {MAX_BATCH} messages")
        requests = [message for message in batch if isinstance(message, Request)]
        if any(message.method == "initialize" for message in requests):
            raise InvalidMessage("`initialize` must not be part of a batch")
        if len({message.id for message in requests}) < len(requests):
            raise InvalidMessage("two requests of the batch have the same id")
        counted = sum(not isinstance(message, Response) for message in batch)
        session.calls.require_room(counted, len(requests), size)
        reply = session.reply(len(requests), may_stream=accepted.events, expires_at=request.principal.expires_at)
        for message in batch:
            if isinstance(message, Request):
                _submit(request, session, message, reply)
            else:
                _pass_on(session, message)
                message_over(request, message)
        if not requests:
            await request.answer_empty(202)
            return
        if not accepted.json:
            reply.become_stream()
        await reply.outcome
        request.limited_by(reply.allowances)
        if reply.stream is not None:
            await self._send_stream(request, session, reply)
            return
        answers = [
            outcome.payload() if isinstance(outcome, Answer) else request.error_body(outcome.error, outcome.call.id)
            for outcome in reply.take()
        ]
        request.answered_as(reply.failure)
        await request.answer(200, b"[" + b",".join(answers) + b"]")

    async def _send_stream(self, request: McpRequest, session: Session, reply: Reply) -> None:
        """The reply as a stream. Disconnecting does not cancel it: the client may resume the stream."""
        assert reply.stream is not None
        await self._send(request, session, session.streams.read(reply.stream), self._post_streams)
        request.answered_as(reply.failure)

    async def _send(self, request: McpRequest, session: Session, reader: Reader, gauge: Gauge) -> None:
        primed = is_primed(session.version)
        options = StreamOptions(
            gauge,
            self._keepalive_s,
            first=encode_primer(reader.event_id) if primed else FIRST_BYTE,
            primed=primed,
            headers={"Mcp-Session-Id": session.id},
        )
        await send_events(request, reader, options, reader.leave, on_expired=reader.end)

    # --- whose session

    def _session(self, request: McpRequest) -> Session | None:
        """The session if it is on this node."""
        if SESSION_HEADER not in request.headers:
            raise HttpRefusal(400, "session_required", "the header Mcp-Session-Id is missing; start with `initialize`")
        return self._find(request)

    def _leaving(self, request: McpRequest, message: Message | list[Message]) -> Session | None:
        """The session if it is about to leave this node, and the message cancels one of its last calls."""
        return self._find(request, message) if isinstance(message, Notification) else None

    def _find(self, request: McpRequest, cancel: Notification | None = None) -> Session | None:
        session_id = request.headers[SESSION_HEADER].decode("latin-1")
        return self._registry.get(session_id, request.principal, request.tenant, request.backend, cancel)

    def _ended(self, request: McpRequest) -> Session | None:
        """A session that has ended, for a client that resumes a stream of it."""
        place = _place(request.values(b"last-event-id"))
        if place is None:
            return None
        session_id = request.headers[SESSION_HEADER].decode("latin-1")
        return self._registry.ended(session_id, place, request.principal, request.tenant, request.backend)

    def _is_for_another(self, request: McpRequest, body: bytes) -> bool:
        """Whether the message certainly belongs to a session that is not here: then only its owner parses it.

        A sessionless request has "_meta" in its body, which JSON can hide only with "\\u".
        """
        session_id = request.headers.get(SESSION_HEADER)
        return (
            session_id is not None
            and session_id.decode("latin-1") not in self._registry
            and request.headers.get(VERSION_HEADER) in _HANDSHAKE_VALUES
            and b"_meta" not in body
            and b"\\u" not in body
        )

    async def _is_answered(self, request: McpRequest, body: bytes) -> bool:
        """False where the session has been taken over by this node; else the request was answered."""
        try:
            return await self._fetch(request, body) is None
        except GatewayError as error:
            message = parsed(request, body, self._shares)  # raises what is wrong with it, which comes first
            await request.answer_error(error, message.id if type(message) is Request else b"null")
            return True

    async def _fetch(self, request: McpRequest, body: bytes = b"") -> Session | None:
        """The session, taken over from another node; None once that has answered the request."""
        return await self._remote.session(request, request.headers[SESSION_HEADER].decode("latin-1"), body)


def _post_only(message: str) -> HttpRefusal:
    return HttpRefusal(405, "method_not_allowed", message, headers=((b"allow", b"POST"),))


def _reader(session: Session, values: tuple[bytes, ...]) -> Reader | None:
    """A reader of the listen stream, or of the stream of Last-Event-ID; None where that has no more events.

    It never falls back to the listen stream: a client that waits for the rest of a call would wait for ever. Not 404,
    which would mean that the session has ended.
    """
    if not values:
        return session.streams.read(session.streams.listen)
    place = _place(values)
    reader = None if place is None else session.streams.resume(place)
    if reader is None and (place is None or not session.streams.has_told_all(place)):
        problem = "Last-Event-ID must be an event id of this session, of a stream of which something is kept"
        raise HttpRefusal(400, "invalid_event_id", problem)
    return reader


def _place(values: tuple[bytes, ...]) -> EventId | None:
    return parse_event_id(values[0]) if len(values) == 1 else None


def _submit(request: McpRequest, session: Session, message: Request, reply: Reply) -> None:
    """One request of a batch; a refusal answers only this one."""
    try:
        session.request(message, reply)
    except GatewayError as error:
        message_over(request, message, error.reason)
        refused = Call(message.id, b"", message.method, reply, reply.may_stream, 0.0, 0.0)
        reply.answer(Failed(refused, error))


def _pass_on(session: Session, message: Message) -> None:
    if isinstance(message, Notification):
        session.notify(message)
    else:
        assert not isinstance(message, Request)
        session.respond(message)


def _is_sessionless(request: McpRequest, message: Message | list[Message]) -> bool:
    """Whether this is of the sessionless era: by its body; else by a version header that names the revision, or by an
    unknown one without a session that could have agreed on it."""
    header = request.headers.get(VERSION_HEADER)
    has_meta = type(message) is Request and message.params is not None and "_meta" in message.params
    if type(message) is Request and not has_meta and (header is None or header in _HANDSHAKE_VALUES):
        return False  # the usual case on the message path
    if envelope_version(message) is not None:
        return True
    if type(message) is Request and message.method == "initialize":
        return False  # a handshake, whatever the headers say
    version = parse_version(request.values(VERSION_HEADER))
    if version is None or is_handshake(version):
        return False
    return version == SESSIONLESS or SESSION_HEADER not in request.headers


def _require_version_of(session: Session, request: McpRequest) -> None:
    """Any handshake revision will do, as clients send others than they agreed on; any other must be the session's."""
    if request.headers.get(VERSION_HEADER, b"") in _HANDSHAKE_VALUES:
        return
    version = parse_version(request.values(VERSION_HEADER))
    if version is not None and version != session.version and not is_handshake(version):
        refusal = unsupported(version)
        raise HttpRefusal(400, "unsupported_protocol_version", refusal.message, code=refusal.code, data=refusal.data)
