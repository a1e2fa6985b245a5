"""Forwarding: a request for another node's session goes to that node, and its answer comes back as it is made.

Nothing is sent twice. What it means that a client leaves is the owner's to say: this node hangs up on it in its turn.
"""

import contextlib
import logging
import random
import time
from contextlib import AbstractContextManager
from functools import partial

import anyio

from app.errors import GatewayError, InvalidMessage, NodeUnavailable
from app.http.errors import HttpRefusal
from app.metrics import Metrics
from app.peers.client import CLIENT_ADDRESS, SESSION, PeerClient, PeerLost, PeerRefused, PeerRequest, PeerResponse
from app.peers.credentials import Word
from app.peers.passing import Kind, Passing
from app.protocol.jsonrpc import Request, parse_client
from app.protocol.sse import encode_message, encode_retry
from app.routing.routes import NodeRecord
from app.sessions.endings import DRAIN_RETRY_MS
from app.transports.event_stream import STALLED_S
from app.transports.request import ClientGone, McpRequest

NOT_OWNER, REFUSED = b"trunkline-not-owner", b"trunkline-forward-refused"
CLOCK = b"clock"  # why it was refused; nothing else is told
_OWN_WORD = frozenset({403, 421})  # what a node may say for itself, not for a session of its own
EVENT_END = b"\n\n"
RESULTS = ("ok", "not_owner", "unreachable", "lost", "refused", "client_gone")

# What the endpoints read, and all that begins with "mcp-". The rest was for this node (a credential, names, what
# is for one hop) or for nobody.
_PASSED_ON = frozenset({
    b"accept", b"content-type", b"last-event-id", b"mcp-session-id", b"mcp-protocol-version",
})  # fmt: skip
_PASSED_BACK = frozenset({
    b"allow", b"cache-control", b"content-length", b"content-type", b"retry-after", b"www-authenticate",
    b"x-accel-buffering",
})  # fmt: skip

log = logging.getLogger(__name__)


class NotOwner(GatewayError):
    """The node that was asked does not have this session; it has done nothing with the request."""

    reason = "not_owner"


def not_owner() -> HttpRefusal:
    """What a node raises when it is sent a request for a session that it does not have."""
    return HttpRefusal(421, "not_owner", "this node does not have the session", headers=((NOT_OWNER, b"1"),))


def forward_refused(*, clock: bool = False) -> HttpRefusal:
    """What a node raises when no other node vouches for a request. It does not say what is wrong, but to a node whose
    clock is."""
    message = "no other node vouches for this request"
    return HttpRefusal(403, "forward_refused", message, headers=((REFUSED, CLOCK if clock else b"1"),))


class Forwarding:
    """Sends requests on to other nodes. Holds nothing but what is under way, in `passing`."""

    def __init__(self, peers: PeerClient, metrics: Metrics, passing: Passing) -> None:
        self._peers, self._passing = peers, passing
        self._results = {result: metrics.forwards.labels(result) for result in RESULTS}
        self._head_seconds = metrics.forward_seconds.labels()

    async def forward(self, request: McpRequest, body: bytes, node: NodeRecord) -> None:
        """Lets the node answer the request, whose body has been read and whose principal is known.

        When the connection breaks in the middle of the answer, the client's answer ends there: it can resume. Where it
        cannot, the last event says that the outcome is not known.

        Raises:
            NotOwner: the node does not have the session; nothing was executed.
            PeerUnreachable: the node cannot be reached; nothing was sent.
            NodeLost: the connection broke before the answer, or the node has let its time pass; whether the request
                was executed is not known.
            NodeUnavailable: too many requests are under way to the node, it does not believe us, or the connection
                broke before it had answered a GET, which carries nothing out.
            ClientGone: there is nobody to answer.
            ShuttingDown: this node passes nothing on any more.
            GatewayError: the client may not any more.
        """
        await request.require_still_allowed()
        passage = _Passage(request)
        self._passing.begin(passage)
        try:
            response = await self._answered(request, body, node, passage)
            try:
                if response.status in _OWN_WORD:
                    self._require_served(response, node)
                await self._pass_back(request, body, response, passage)
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
            self._passing.over(passage)

    def waiting(self) -> AbstractContextManager[None]:
        """While a request waits for a node that it can be sent to: see `Passing.waiting`."""
        return self._passing.waiting()

    async def _answered(self, request: McpRequest, body: bytes, node: NodeRecord, passage: "_Passage") -> PeerResponse:
        """The node's answer, once its head is there."""
        began_at = time.monotonic()
        headers = [pair for pair in request.scope["headers"] if pair[0] in _PASSED_ON or pair[0].startswith(b"mcp-")]
        headers += request.ids.headers
        request.sent_to = node.id
        if SESSION not in request.headers:  # what opens one
            headers.append((CLIENT_ADDRESS, request.client_address().encode("latin-1")))
        word = Word(request.principal, request.base_url())
        response = await self._peers.begin(node, PeerRequest(request.method, request.raw_target(), headers, word), body)
        passage.has_begun(response)
        try:
            if not await response.has_head_soon():  # from now on also for the client to leave: that costs a task group
                await request.unless_gone(response.head)
        except BaseException:
            response.close()
            raise
        self._head_seconds.observe(time.monotonic() - began_at)
        return response

    def _require_served(self, response: PeerResponse, node: NodeRecord) -> None:
        """Raises where the answer is not the session's, but the node's own word to this one."""
        said = dict(response.headers)
        if NOT_OWNER in said:
            raise NotOwner
        if REFUSED in said:
            what = "their clocks are too far apart" if said[REFUSED] == CLOCK else "it does not believe this one"
            raise self._peers.refused(node.url, what)

    async def _pass_back(self, request: McpRequest, body: bytes, response: PeerResponse, passage: "_Passage") -> None:
        headers = [pair for pair in response.headers if pair[0] in _PASSED_BACK or pair[0].startswith(b"mcp-")]
        await request.send({"type": "http.response.start", "status": response.status, "headers": headers})
        result, is_whole, last = "ok", True, b""
        if not response.is_complete:
            try:
                await request.unless_gone(partial(_stream, request, response, passage))
                if passage.last_words:  # what has come since is not for this client any more
                    response.take()
                    last = passage.last_words
            except PeerLost as lost:
                # An event stream ends cleanly; anything else stays short of its length, so that it shows.
                result, is_whole = "lost", _is_events(response)
                if is_whole and passage.is_between_events:
                    last = _last_words(request, body, lost)
            except _Stalled:
                result, is_whole = "client_gone", False
        if is_whole:  # not while the client is watched: the end of the answer looks as if it had left
            await request.send({"type": "http.response.body", "body": response.take() + last})
        self._results[result].inc()


class _Passage:
    """One request, until its answer has been passed on (fulfils `peers.passing.Passage`)."""

    __slots__ = ("_can_resume", "_is_cut", "_is_ending", "_response", "_tail", "kind", "last_words")

    def __init__(self, request: McpRequest) -> None:
        self.kind = _kind(request)
        # Without a session (2026-07-28) the stream of a call cannot be opened again: it hears what became of it.
        self._can_resume = self.kind is not Kind.CALL or b"mcp-session-id" in request.headers
        self._response: PeerResponse | None = None
        self._is_ending = self._is_cut = False
        self._tail = EVENT_END  # the last bytes that were passed on
        self.last_words = b""  # what the client is told where we end its stream

    def has_begun(self, response: PeerResponse) -> None:
        """The request has been sent."""
        self._response = response
        if self._is_cut:
            self.cut()

    @property
    def is_between_events(self) -> bool:
        """Whether the client has got whole events only."""
        return self._tail == EVENT_END

    def end(self) -> None:
        self._is_ending = self._can_resume
        if self._response is not None:
            self._response.nudge()

    def cut(self) -> None:
        self._is_cut = True
        if self._response is not None:
            self._response.give_up(PeerLost("This node stops, and waits no longer; the call may have been carried out"))

    def part(self, chunk: bytes, *, is_events: bool) -> bytes:
        """As much of this chunk as is to be passed on. Where the stream ends with it there are last words."""
        if self._is_ending and is_events:
            whole, end, _ = chunk.rpartition(EVENT_END)
            if end or (self.is_between_events and not chunk):
                chunk = whole + end
                self.last_words = encode_retry(random.randint(*DRAIN_RETRY_MS), None)  # noqa: S311 - no secret
        self._tail = (self._tail + chunk)[-len(EVENT_END) :]
        return chunk


class _Stalled(GatewayError):
    """The client accepts nothing any more."""


def _result(error: GatewayError) -> str:
    """What became of a request that was not answered; "unreachable" is what may be tried again."""
    if isinstance(error, NotOwner):
        return "not_owner"
    if isinstance(error, PeerRefused):
        return "refused"
    return "lost" if isinstance(error, PeerLost) else "unreachable"


async def _stream(request: McpRequest, response: PeerResponse, passage: _Passage) -> None:
    """Chunk by chunk, no faster than the client takes them: then the other node waits as it would for the client."""
    is_events = _is_events(response)
    async for received in response:
        chunk = passage.part(received, is_events=is_events)
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


def _last_words(request: McpRequest, body: bytes, lost: PeerLost) -> bytes:
    """The error of a call whose stream nobody can resume, because it is of no session (2026-07-28)."""
    if request.method != "POST" or b"mcp-session-id" in request.headers:
        return b""
    with contextlib.suppress(InvalidMessage):
        message = parse_client(body)
        if isinstance(message, Request):
            return encode_message(request.error_body(lost, message.id))
    return b""


def _is_events(response: PeerResponse) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in response.headers)
