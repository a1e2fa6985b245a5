"""Forwarding: a request for another node's session goes to that node, and its answer comes back as it is made.

Nothing is sent twice. What it means that a client leaves is the owner's to say: this node hangs up on it in its turn.
"""

import contextlib
import logging
import time
from functools import partial

import anyio

from app.errors import GatewayError, InvalidMessage
from app.http.errors import HttpRefusal
from app.metrics import Metrics
from app.protocol.jsonrpc import Request, parse_client
from app.protocol.sse import encode_message
from app.routing.node_credentials import Word
from app.routing.peers import PeerClient, PeerLost, PeerRefused, PeerRequest, PeerResponse
from app.routing.routes import NodeRecord
from app.transports.event_stream import STALLED_S
from app.transports.request import ClientGone, McpRequest

NOT_OWNER, REFUSED = b"trunkline-not-owner", b"trunkline-forward-refused"
CLOCK = b"clock"  # why it was refused; nothing else is told
_OWN_WORD = frozenset({403, 421})  # what a node may say for itself, not for a session of its own
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
    """Sends requests on to other nodes. Holds nothing but what is under way."""

    def __init__(self, peers: PeerClient, metrics: Metrics) -> None:
        self._peers = peers
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
            NodeUnavailable: too many requests are under way to the node, or it does not believe us.
            ClientGone: there is nobody to answer.
            GatewayError: the client may not any more.
        """
        await request.require_still_allowed()
        try:
            response = await self._answered(request, body, node)
            try:
                if response.status in _OWN_WORD:
                    self._require_served(response, node)
                await self._pass_back(request, body, response)
            finally:
                response.close()
        except GatewayError as error:
            self._results[_result(error)].inc()
            raise
        except ClientGone:
            self._results["client_gone"].inc()
            raise

    async def _answered(self, request: McpRequest, body: bytes, node: NodeRecord) -> PeerResponse:
        """The node's answer, once its head is there."""
        began_at = time.monotonic()
        headers = [pair for pair in request.scope["headers"] if pair[0] in _PASSED_ON or pair[0].startswith(b"mcp-")]
        word = Word(request.principal, request.base_url())
        response = await self._peers.begin(node, PeerRequest(request.method, request.raw_target(), headers, word), body)
        await _head(request, response)
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

    async def _pass_back(self, request: McpRequest, body: bytes, response: PeerResponse) -> None:
        headers = [pair for pair in response.headers if pair[0] in _PASSED_BACK or pair[0].startswith(b"mcp-")]
        await request.send({"type": "http.response.start", "status": response.status, "headers": headers})
        result, is_whole, last = "ok", True, b""
        if not response.is_complete:
            passed = _Passed()
            try:
                await request.unless_gone(partial(_stream, request, response, passed))
            except PeerLost as lost:
                # An event stream ends cleanly; anything else stays short of its length, so that it shows.
                result, is_whole = "lost", _is_events(response)
                if is_whole and passed.is_between_events:
                    last = _last_words(request, body, lost)
            except _Stalled:
                result, is_whole = "client_gone", False
        if is_whole:  # not while the client is watched: the end of the answer looks as if it had left
            await request.send({"type": "http.response.body", "body": response.take() + last})
        self._results[result].inc()


class _Stalled(GatewayError):
    """The client accepts nothing any more."""


def _result(error: GatewayError) -> str:
    """What became of a request that was not answered; "unreachable" is what may be tried again."""
    if isinstance(error, NotOwner):
        return "not_owner"
    if isinstance(error, PeerRefused):
        return "refused"
    return "lost" if isinstance(error, PeerLost) else "unreachable"


async def _head(request: McpRequest, response: PeerResponse) -> None:
    """Waits for the head; after a moment also for the client to leave, which costs a task group. Without a head the
    response is closed."""
    try:
        if not await response.has_head_soon():
            await request.unless_gone(response.head)
    except BaseException:
        response.close()
        raise


class _Passed:
    """What the client has got of an event stream."""

    def __init__(self) -> None:
        self.is_between_events = True


async def _stream(request: McpRequest, response: PeerResponse, passed: _Passed) -> None:
    """Chunk by chunk, no faster than the client takes them: then the other node waits as it would for the client."""
    async for chunk in response:
        passed.is_between_events = chunk.endswith(b"\n\n")
        with anyio.move_on_after(STALLED_S) as patience:
            await request.send({"type": "http.response.body", "body": chunk, "more_body": True})
        if patience.cancelled_caught:
            log.warning("a client accepted nothing for %.0f s; its stream was closed", STALLED_S)
            raise _Stalled


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
