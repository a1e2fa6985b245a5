"""HTTP+SSE of 2024-11-05: a GET opens the session and its stream; POSTs are answered on that stream."""

from functools import partial
from urllib.parse import parse_qs

from app.errors import GatewayError, InvalidMessage
from app.http.errors import HttpRefusal
from app.http.remote.remote_sessions import RemoteSessions
from app.http.transports.arriving_bodies import ArrivingBodies
from app.http.transports.event_stream import StreamOptions, send_events
from app.http.transports.request import McpRequest, parsed, turn_for
from app.limits.loop_shares import LoopShares
from app.protocol.commands import Listen
from app.protocol.headers import is_json, parse_accept
from app.protocol.jsonrpc import Notification, Request
from app.protocol.sse_format import encode_endpoint
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.telemetry.metrics import Metrics

TRANSPORT = "sse"


class HttpSse:
    """Answers both endpoints, for requests that Front has authenticated."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        registry: SessionRegistry,
        remote: RemoteSessions,
        metrics: Metrics,
        *,
        max_body_bytes: int,
        arriving: ArrivingBodies,
        keepalive_s: float,
        shares: LoopShares | None = None,
    ) -> None:
        self._registry, self._remote, self._shares = registry, remote, shares or LoopShares()
        self._max_body_bytes, self._arriving, self._keepalive_s = max_body_bytes, arriving, keepalive_s
        self._streams = metrics.streams.labels("sse")

    async def stream(self, request: McpRequest) -> None:
        """Opens a session, which ends with its stream."""
        if not parse_accept(request.headers.get(b"accept")).events:
            raise HttpRefusal(406, "not_acceptable", "Accept must allow text/event-stream")
        if self._registry.is_stopping and await self._remote.opening(request, b""):
            return
        session = await self._registry.open(
            request.principal, request.tenant, request.backend, TRANSPORT, request.require_still_allowed
        )
        request.served_by(session.id)
        session.opened_by(request.client_address())
        # As clients see it: a proxy may strip the path of PUBLIC_URL.
        _, slash, path = request.base_url().partition("://")[2].partition("/")
        endpoint = f"{slash}{path}/t/{request.tenant}/{request.backend}/messages?sessionId={session.id}"
        options = StreamOptions(self._streams, self._keepalive_s, first=encode_endpoint(endpoint))
        listener, expired = session.streams.open_listener(), partial(session.close, "credential_expired")
        await send_events(request, listener, options, partial(session.close, "client_gone"), expired)

    async def message(self, request: McpRequest) -> None:
        """One message: 202; its answer or error goes to the stream."""
        session_id = _session_id(request)
        if not is_json(request.headers.get(b"content-type")):
            raise HttpRefusal(415, "unsupported_media_type", "Content-Type must be application/json")
        body = await request.body(self._max_body_bytes, self._arriving)
        await turn_for(request, body, self._shares)
        session = self._find(request, session_id, body) or await self._remote.session(request, session_id, body)
        if session is None:
            return
        message = parsed(request, body, self._shares)
        if isinstance(message, list):
            raise InvalidMessage("HTTP+SSE has no batches")
        await turn_for(request, body, self._shares)
        if isinstance(message, Request):
            await self._request(request, session, message)
        elif isinstance(message, Notification):
            session.notify(message)
        else:
            session.respond(message)
        await request.answer_empty(202)

    def _find(self, request: McpRequest, session_id: str, body: bytes) -> Session | None:
        """The session if it is on this node, and takes such a message."""
        who = request.principal, request.tenant, request.backend
        session = self._registry.get(session_id, *who)
        if session is None and session_id in self._registry:
            message = parsed(request, body, self._shares)
            if isinstance(message, Notification):
                session = self._registry.get(session_id, *who, message)
        return session

    async def _request(self, request: McpRequest, session: Session, message: Request) -> None:
        """Raises only where access was lost; other errors are answered on the stream."""
        try:
            if message.method == "initialize":
                await self._registry.connect(session)
                await request.require_still_allowed()
            session.request(message, Listen.STREAM)
        except GatewayError as error:
            await request.require_still_allowed()
            request.ids.trace_failed(error.reason)
            session.refuse(message, error)


def _session_id(request: McpRequest) -> str:
    values: list[str] = parse_qs(request.scope["query_string"].decode("latin-1")).get("sessionId", [])
    if len(values) != 1:
        raise HttpRefusal(400, "session_required", "the query needs one sessionId; open the stream first")
    return values[0]
