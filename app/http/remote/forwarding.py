"""Forwarding: sends a request to the node that has its session, and streams the answer back.

No request is sent twice. When the client disconnects, so does this node; what that means is up to the owner.
"""

import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from app.cluster.durability import DURABLE, is_durable
from app.cluster.peers.client import (
    CLIENT_ADDRESS,
    SESSION,
    PeerClient,
    PeerLost,
    PeerRefused,
    PeerRequest,
    PeerResponse,
)
from app.cluster.peers.credentials import Word
from app.cluster.peers.passing import Kind, Passing
from app.domain import BackendSpec
from app.errors import ClientError, GatewayError, InvalidMessage, NodeUnavailable, StorageUnavailable
from app.http.errors import HttpRefusal
from app.http.transports.event_stream import STALLED_S
from app.http.transports.request import ClientGone, McpRequest, unless_gone
from app.http.transports.request_spans import hop_to
from app.protocol.jsonrpc import Request
from app.protocol.sse_format import encode_message, encode_retry
from app.sessions.endings import DRAIN_RETRY_MS
from app.sessions.routes import NodeRecord, is_there
from app.telemetry.metrics import Metrics

NOT_OWNER, REFUSED = b"trunkline-not-owner", b"trunkline-forward-refused"
CLOCK = b"clock"  # the only reason of a refusal that is told
_OWN_WORD = frozenset({403, 421})  # statuses that may come from the node itself, not from its session
EVENT_END = b"\n\n"
RESULTS = ("ok", "not_owner", "unreachable", "lost", "refused", "client_gone")

# What the endpoints read; also all headers that begin with "mcp-". Credentials and hop-by-hop headers were for us.
_PASSED_ON = frozenset({
    b"accept", b"content-type", b"last-event-id", b"mcp-session-id", b"mcp-protocol-version",
})  # fmt: skip
_PASSED_BACK = frozenset({
    b"allow", b"cache-control", b"content-length", b"content-type", b"retry-after", b"www-authenticate",
    b"x-accel-buffering",
})  # fmt: skip

FindBackend = Callable[[str, str], Awaitable[BackendSpec]]
"""The backend of this tenant and name (`SessionRegistry.backend`). Raises GatewayError."""

log = logging.getLogger(__name__)


class NotOwner(GatewayError):
    """The node does not have this session; it has done nothing with the request."""

    reason = "not_owner"


def not_owner() -> HttpRefusal:
    """For a forwarded request whose session this node does not have."""
    return HttpRefusal(421, "not_owner", "this node does not have the session", headers=((NOT_OWNER, b"1"),))


def forward_refused(*, clock: bool = False) -> HttpRefusal:
    """For a request that no other node vouches for. It tells a node only whether its clock is the reason."""
    message = "this request has no valid signature of another node"
    return HttpRefusal(403, "forward_refused", message, headers=((REFUSED, CLOCK if clock else b"1"),))


class Forwarding:
    """Forwards requests to other nodes. Those under way are in `passing`."""

    def __init__(self, peers: PeerClient, metrics: Metrics, passing: Passing, backend: FindBackend) -> None:
        self._peers, self.passing, self._backend = peers, passing, backend
        self._results = {result: metrics.forwards.labels(result) for result in RESULTS}
        self._head_seconds = metrics.forward_seconds.labels()

    async def forward(self, request: McpRequest, body: bytes, node: NodeRecord) -> None:
        """Has the node answer the request, whose principal is known.

        Where the connection breaks in the middle of the answer, the client's answer ends too, so that it can resume;
        where that would tell it nothing, the last event says that the outcome is not known.

        Raises:
            NotOwner: the node does not have the session; nothing was executed.
            PeerUnreachable: the node cannot be reached; nothing was sent.
            NodeLost: the connection broke before the answer, or the node did not answer in time; whether the request
                was executed is not known.
            NodeUnavailable: too many requests are under way to the node, it refuses this node's word, or the
                connection broke before a GET was answered, which has no effect.
            ClientGone: there is nobody to answer.
            ShuttingDown: this node forwards nothing any more.
            GatewayError: as `require_still_allowed`.
        """
        if request.ids.trace is None:
            await self._forward(request, body, node)
            return
        with hop_to(node.id, request):
            await self._forward(request, body, node)

    async def _forward(self, request: McpRequest, body: bytes, node: NodeRecord) -> None:
        await request.require_still_allowed()
        passage = _Passage(request)
        self.passing.begin(passage)
        try:
            response = await self._answered(request, body, node, passage)
            try:
                if response.status in _OWN_WORD:
                    self._require_served(response, node)
                await self._pass_back(request, body, node, response, passage)
            finally:
                response.close()
        except GatewayError as error:
            self._results[_result(error)].inc()
            if isinstance(error, PeerLost) and request.method == "GET":
                raise NodeUnavailable from None
            raise
        except ClientGone:
            self._results["client_gone"].inc()
            raise
        finally:
            self.passing.over(passage)

    async def _answered(self, request: McpRequest, body: bytes, node: NodeRecord, passage: "_Passage") -> PeerResponse:
        """The node's answer, once its head has arrived."""
        began_at = time.monotonic()
        headers = [pair for pair in request.scope["headers"] if pair[0] in _PASSED_ON or pair[0].startswith(b"mcp-")]
        headers += request.ids.headers
        request.sent_on_to(node.id)
        if SESSION not in request.headers:  # it opens one, which keeps the client's address
            headers.append((CLIENT_ADDRESS, request.client_address().encode("latin-1")))
        word = Word(request.principal, request.base_url())
        response = await self._peers.begin(node, PeerRequest(request.method, request.raw_target(), headers, word), body)
        passage.has_begun(response)
        try:
            if not await response.has_head_soon():  # watching the client costs a little, so not from the start
                await unless_gone(request, response.head)
        except BaseException:
            response.close()
            raise
        self._head_seconds.observe(time.monotonic() - began_at)
        return response

    def _require_served(self, response: PeerResponse, node: NodeRecord) -> None:
        """Raises where the answer comes from the node itself, and not from its session."""
        said = dict(response.headers)
        if NOT_OWNER in said:
            raise NotOwner
        if REFUSED in said:
            what = "their clocks are too far apart" if said[REFUSED] == CLOCK else "it does not accept this node's key"
            raise self._peers.refused(node.url, what)

    async def _pass_back(
        self, request: McpRequest, body: bytes, node: NodeRecord, response: PeerResponse, passage: "_Passage"
    ) -> None:
        headers = [pair for pair in response.headers if pair[0] in _PASSED_BACK or pair[0].startswith(b"mcp-")]
        await request.send({"type": "http.response.start", "status": response.status, "headers": headers})
        result, is_whole, last = "ok", True, b""
        if not response.is_complete:
            try:
                await unless_gone(request, partial(_stream, request, response, passage))
                if passage.last_words:  # the rest is for the client's next connection
                    response.take()
                    last = passage.last_words
            except PeerLost as lost:
                # An event stream ends cleanly; anything else stays shorter than announced, which shows the loss.
                result, is_whole = "lost", _is_events(response)
                error = _error_event(request, body, lost)
                if is_whole and passage.is_between_events and not await self._can_resume(request, node, passage):
                    last = error
            except _Stalled:
                result, is_whole = "client_gone", False
            except ClientError:  # access was lost: what its owner still says is not for this client
                response.take()
                is_whole = _is_events(response)
        if is_whole:  # not within unless_gone: the end of the answer would look like a disconnect
            await request.send({"type": "http.response.body", "body": response.take() + last})
        self._results[result].inc()

    async def _can_resume(self, request: McpRequest, node: NodeRecord, passage: "_Passage") -> bool:
        """Whether the client learns what became of its call when it resumes the stream: here or there."""
        if SESSION not in request.headers or not passage.has_id:
            return False
        try:
            spec = await self._backend(request.tenant, request.backend)
        except GatewayError:
            return True  # it is not known, and the next request says why
        return is_durable(spec, DURABLE) or is_there(await self._peers.probe(node.url), node.id)


class _Passage:
    """One forwarded request, until it is answered (fulfils `peers.passing.Passage`)."""

    __slots__ = ("_can_resume", "_is_cut", "_is_ending", "_response", "_tail", "has_id", "kind", "last_words")

    def __init__(self, request: McpRequest) -> None:
        self.kind = _kind(request)
        # The stream of a call without a session (2026-07-28) cannot be resumed: it must not end before its answer.
        self._can_resume = self.kind is not Kind.CALL or b"mcp-session-id" in request.headers
        self._response: PeerResponse | None = None
        self._is_ending = self._is_cut = False
        self._tail = EVENT_END  # the last bytes that were sent to the client
        self.last_words = b""  # the last event, where we end the stream
        self.has_id = False  # an event from which the stream can be resumed was sent

    def has_begun(self, response: PeerResponse) -> None:
        self._response = response
        if self._is_cut:
            self.cut()

    @property
    def is_between_events(self) -> bool:
        return self._tail == EVENT_END

    def end(self) -> None:
        self._is_ending = self._can_resume
        if self._response is not None:
            self._response.nudge()

    def cut(self) -> None:
        self._is_cut = True
        if self._response is not None:
            self._response.give_up(
                PeerLost("This node stopped before the call was answered; it may have been carried out")
            )

    def part(self, chunk: bytes, *, is_events: bool) -> bytes:
        """The part of this chunk that is sent to the client. Sets `last_words` where the stream is to end there."""
        if self._is_ending and is_events:
            whole, end, _ = chunk.rpartition(EVENT_END)
            if end or (self.is_between_events and not chunk):
                chunk = whole + end
                self.last_words = encode_retry(random.randint(*DRAIN_RETRY_MS), None)  # noqa: S311 - no secret
        self.has_id = self.has_id or chunk.startswith(b"id: ") or b"\nid: " in chunk
        self._tail = (self._tail + chunk)[-len(EVENT_END) :]
        return chunk


class _Stalled(GatewayError):
    """The client reads nothing any more."""


def _result(error: GatewayError) -> str:
    """The result, for the metric, of a request that was not answered; "unreachable" may be tried again."""
    if isinstance(error, NotOwner):
        return "not_owner"
    if isinstance(error, PeerRefused):
        return "refused"
    return "lost" if isinstance(error, PeerLost) else "unreachable"


async def _stream(request: McpRequest, response: PeerResponse, passage: _Passage) -> None:
    """Chunk by chunk, no faster than the client reads, so that its back-pressure reaches the other node."""
    is_events = _is_events(response)
    async for received in response:
        chunk = passage.part(received, is_events=is_events)
        with contextlib.suppress(StorageUnavailable):  # the owner asks as well
            await request.require_still_allowed()
        with anyio.move_on_after(STALLED_S) as patience:
            await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
        if patience.cancelled_caught:
            log.warning("Client read nothing for %.0f s; closed its stream", STALLED_S)
            raise _Stalled
        if passage.last_words:
            return


def _kind(request: McpRequest) -> Kind:
    if request.kind == "sse":
        return Kind.SESSION
    is_listening = request.method == "GET" or request.headers.get(b"mcp-method") == b"subscriptions/listen"
    return Kind.LISTENING if is_listening else Kind.CALL


def _error_event(request: McpRequest, body: bytes, lost: PeerLost) -> bytes:
    """The error event of a call, which is logged as lost; empty for a batch: what of it was answered is not known."""
    if request.method != "POST":
        return b""
    with contextlib.suppress(InvalidMessage):
        request.parse(body)
    call = request.message
    error = request.error_body(lost, call.id if isinstance(call, Request) else b"null")
    return encode_message(error) if isinstance(call, Request) else b""


def _is_events(response: PeerResponse) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in response.headers)
