"""McpRequest: one HTTP request to an MCP endpoint, and its answers as plain ASGI."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol
from urllib.parse import parse_qs

import anyio
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from app.auth.authenticator import CredentialExpiry
from app.auth.policy import has_scope
from app.auth.tokens import Target
from app.cluster.peers.client import CLIENT_ADDRESS
from app.cluster.peers.credentials import Word
from app.concurrency.loop_share import UNLIMITED, Shares
from app.domain import Principal, public_id
from app.domain import Scope as Permission
from app.errors import (
    CannotOpen,
    CredentialExpired,
    Disabled,
    Forbidden,
    GatewayError,
    NodeUnavailable,
    NotFound,
    RoutesUnavailable,
    StateRefused,
    Unauthenticated,
)
from app.http.client_address import UNKNOWN, client_address, limited_address, named_address
from app.http.errors import ALIKE, HttpRefusal, http_status, retry_after, rpc_error
from app.http.header_fields import API_KEY, Fields, refuse_repeated, trimmed, with_lists_joined, with_one_credential
from app.http.request_ids import IDS, request_ids
from app.http.resource_metadata import Remembered, challenge
from app.http.scope import AT_ONCE, LEFT, WHEN_GONE
from app.http.transports._rate_limit_fields import rate_limit_fields
from app.http.transports.access_lines import Seen
from app.http.transports.arriving_bodies import ALL_AT_ONCE, ArrivingBodies
from app.limits.caller_limits import Allowance
from app.limits.loop_shares import LoopShares
from app.protocol.commands import Answer
from app.protocol.jsonrpc import Message, parse_client
from app.telemetry.tracing.tracer import Tracer
from app.text.memo import memo

BODY_DEADLINE_S, DISCARD_S, MAX_DISCARDED_BYTES = 30.0, 1.0, 8 << 20
NO_NAMES = ("", "", "")  # of a path that is no MCP endpoint
MAX_NAME = 128  # characters in a log line of what clients may make up: a method, a tool, a tenant
JSON_TYPE = (b"content-type", b"application/json")
_UNFOUND = NotFound | StateRefused | RoutesUnavailable | NodeUnavailable
RawHeaders = list[tuple[bytes, bytes]]
AskAgain = Callable[["McpRequest"], Awaitable[Principal]]
RequireOn = Callable[["McpRequest", GatewayError], Awaitable[None]]


class McpRequest:
    """A request to `/t/{tenant}/{backend}/{kind}`: its `names`. `principal` is set by `admit` or `vouched_for`.

    For the log: `message` is the parsed body, `session_id` the session that was opened for it, `sent_to` the node that
    it was forwarded to, `outcome` the failure in the backend's answer, `bytes_in` how much of the body was read.
    """

    __slots__ = (
        "_ask_again", "_has_repeated", "_kept_body", "_on_error", "_plain_send", "_public_url", "_require_on",
        "_revocations", "_seen", "_watch", "backend", "bytes_in", "headers", "ids", "is_forwarded", "issuers", "kind",
        "message", "method", "outcome", "principal", "receive", "scope", "send", "sent_to", "session_id", "shares",
        "tenant", "tracer",
    )  # fmt: skip
    principal: Principal
    message: Message | list[Message] | None
    _kept_body: bytes | None
    _watch: CredentialExpiry | None  # None: not authenticated yet
    _seen: Seen | None
    tracer: Tracer | None

    def __init__(  # noqa: PLR0913 - on the message path
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        names: tuple[str, str, str] = NO_NAMES,
        public_url: str | None = None,
        on_error: Callable[["McpRequest", GatewayError], None] | None = None,
        issuers: Remembered | None = None,  # of tenants; None: nobody can sign in
        shares: Shares = UNLIMITED,
    ) -> None:
        self.scope, self.receive = scope, receive
        self.send = self._plain_send = send
        self.tenant, self.backend, self.kind = names
        self._public_url, self._on_error = public_url, on_error
        self.is_forwarded = False  # by another node, which vouches for the principal
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._has_repeated = len(self.headers) != len(scope["headers"])
        if self._has_repeated:
            self.take(with_lists_joined(scope["headers"]))
        self.ids = scope[IDS] = request_ids(self.headers)
        self.message = self._kept_body = self._watch = self._seen = self.tracer = None
        self.session_id = self.sent_to = self.outcome = ""
        self.bytes_in, self.issuers, self.shares = 0, issuers, shares

    def trace_with(self, tracer: Tracer) -> None:
        """From now on it is known where the request stands in its trace: by its headers, then by its message."""
        self.tracer = tracer
        self.ids.begin_trace(tracer, self.headers)

    # --- who asks

    def admit(
        self,
        principal: Principal,
        watch: CredentialExpiry,
        revocations: int,
        ask_again: AskAgain,
        require_on: RequireOn,
    ) -> None:
        """The principal was authenticated when `watch` had counted so many `revocations`; `ask_again` does it anew.
        `require_on` raises Disabled where what was not found is switched off, if the principal may know."""
        self.principal, self._watch, self._revocations, self._ask_again = principal, watch, revocations, ask_again
        self._require_on = require_on

    def vouched_for(self, word: Word) -> None:
        """Takes the principal and the base URL from another node, which has checked Host, Origin and credential."""
        self.principal, self.is_forwarded = word.principal, True
        self._public_url = self._public_url or word.base_url

    @property
    def is_let_in(self) -> bool:
        return self._watch is not None

    async def require_still_allowed(self) -> None:
        """Checks again after a wait, before anything is made or sent; costs nothing while nothing was revoked.

        Raises:
            CredentialExpired, Unauthenticated, Forbidden, Disabled, BackendNotFound: access was lost.
            StorageUnavailable: the credential cannot be looked up now.
        """
        watch = self._watch
        if watch is None:
            return
        while True:
            principal = self.principal
            if principal.expires_at is not None and watch.has_expired(principal):
                raise CredentialExpired
            count, since = watch.count, self._revocations
            if count == since:
                return
            if watch.may_concern(principal, since):
                self.principal = await self._ask_again(self)
            self._revocations = count  # more may have been revoked during the look-up

    def while_credential_lasts(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Calls `end` when the credential expires within this block."""
        return nullcontext() if self._watch is None else self._watch.hold(self.principal, end)

    def client_address(self) -> str:
        """The client's, also of a forwarded request; empty where it is not known."""
        if self.is_forwarded:
            address = named_address(self.headers.get(CLIENT_ADDRESS, b"").decode("latin-1"))
        else:
            address = client_address(self.scope)
        return "" if address == UNKNOWN else address

    # --- what is asked

    def keep_body(self, body: bytes) -> None:
        """`body` returns this from now on."""
        self._kept_body, self.bytes_in = body, len(body)

    def raw_target(self) -> bytes:
        """Path and query as they were sent."""
        path: bytes = self.scope.get("raw_path") or self.scope["path"].encode("utf-8", "surrogateescape")
        query: bytes = self.scope["query_string"]
        return b"%b?%b" % (path, query) if query else path

    def base_url(self) -> str:
        """The URL under which the client reaches us: PUBLIC_URL, else by its Host, which has been checked."""
        if self._public_url is not None:
            return self._public_url
        return f"{self.scope.get('scheme', 'http')}://{self.headers[b'host'].decode('latin-1').lower()}"

    def target(self) -> Target:
        """The audience that a token must have."""
        return Target(self.tenant, self.backend, self.base_url())

    def settle_headers(self) -> None:
        """X-API-Key becomes Authorization. Raises HttpRefusal: a header is repeated, or there are two credentials."""
        if self._has_repeated:
            refuse_repeated(self.scope["headers"])
        if API_KEY in self.headers or self.headers.get(b"mcp-session-id", b"-")[-1:] in b" \t":  # or it is empty
            self.take(with_one_credential(trimmed(self.scope["headers"])))

    def take(self, fields: Fields) -> None:
        self.scope["headers"], self.headers = fields, dict(fields)

    def values(self, name: bytes) -> tuple[bytes, ...]:
        if len(self.headers) == len(self.scope["headers"]):
            value = self.headers.get(name)
            return () if value is None else (value,)
        return tuple(value for found, value in self.scope["headers"] if found == name)

    def refuse_declared_size(self, limit: int) -> None:
        """Raises HttpRefusal where the headers say that the body is too long, or encoded."""
        headers = self.headers
        if b"content-encoding" in headers:
            raise HttpRefusal(415, "unsupported_media_type", "Content-Encoding is not supported")
        if int(headers.get(b"content-length", 0)) > limit:
            raise _too_large(limit)

    async def body(self, limit: int, arriving: ArrivingBodies = ALL_AT_ONCE) -> bytes:
        """The whole body; a large one needs a place among the `arriving` ones.

        Raises:
            HttpRefusal: it is longer than `limit` bytes (413), encoded (415), or takes too long (408).
            ClientGone: the connection ended first.
            GatewayError: as `require_still_allowed`.
        """
        if self._kept_body is not None:
            if len(self._kept_body) > limit:
                raise _too_large(limit)
            return self._kept_body
        self.refuse_declared_size(limit)
        message = await self.receive()
        body: bytes = message.get("body", b"")
        self.bytes_in = len(body)
        if message.get("more_body") or message["type"] == "http.disconnect":
            body = await self._rest_of_body(message, limit, arriving)
        if len(body) > limit:
            raise _too_large(limit)
        await self.require_still_allowed()
        return body

    async def _rest_of_body(self, message: AsgiMessage, limit: int, arriving: ArrivingBodies) -> bytes:
        chunks = [message.get("body", b"")]
        with anyio.move_on_after(BODY_DEADLINE_S):
            async with arriving.arrival(self.tenant) as read_on:
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    if self.bytes_in > limit:
                        raise _too_large(limit)
                    if not message.get("more_body"):
                        return b"".join(chunks)
                    await read_on(self.bytes_in)
                    message = await self.receive_part()
                    chunks.append(message.get("body", b""))
        raise HttpRefusal(408, "timeout", f"the body did not arrive within {BODY_DEADLINE_S:.0f} s", headers=_CLOSE)

    async def receive_part(self) -> AsgiMessage:
        """`receive`, counted in `bytes_in`."""
        message = await self.receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def discard_body(self) -> None:
        """Reads on for a moment after a refusal: closing at once resets the connection before its answer is read."""
        if b"expect" in self.headers:  # it sends nothing before our 100 Continue
            return
        left = MAX_DISCARDED_BYTES
        with anyio.move_on_after(DISCARD_S):
            while left > 0:
                message = await self.receive_part()
                if not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))

    def parse(self, body: bytes) -> Message | list[Message]:
        """`parse_client`, kept for the log. A trace goes on with what the message says of it."""
        message = self.message = parse_client(body)
        if self.tracer is not None:
            self.ids.continue_trace(self.tracer, message, is_forwarded=self.is_forwarded)
        return message

    # --- what becomes of it

    def served_by(self, session_id: str) -> None:
        """For the log: the session that was opened or found."""
        self.session_id = session_id

    def sent_on_to(self, node_id: str) -> None:
        self.sent_to = node_id

    def answered_as(self, failure: str) -> None:
        """For the log: what is wrong with the backend's answer, if anything."""
        self.outcome = failure

    # --- answers

    def answer_through(self, send: Send) -> None:
        """Sends all of the answer this way from now on; disables the short cut for whole answers."""
        self.send = send

    def limited_by(self, allowances: Sequence[Allowance]) -> None:
        """The answer says what its caller has left of these."""
        fields = rate_limit_fields(allowances)
        if fields:
            self.answer_through(sending_with(self.send, fields))

    def watch(self, seen: Seen) -> None:
        """Lets `seen` see all of the answer, whichever way it is sent."""
        is_plain = self.send is self._plain_send
        self.send, self._seen = seen.send, seen
        if is_plain:
            self._plain_send = self.send

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Sends a JSON body."""
        if status == 200 and not headers and self.send is self._plain_send:  # nothing is added to it
            at_once = self.scope.get(AT_ONCE)
            if at_once is not None and at_once(self.scope, body):
                if self._seen is not None:
                    self._seen.sent(200, len(body))
                return
        raw: RawHeaders = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})

    async def answer_empty(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        raw: RawHeaders = [*headers] if status == 204 else [*headers, (b"content-length", b"0")]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": b""})

    async def answer_error(self, error: GatewayError, request_id: bytes = b"null") -> None:
        """Sends a JSON-RPC error with its HTTP status and the headers that go with it."""
        if isinstance(error, _UNFOUND):
            error = await self._refusal_or(error)
        if type(error) is RoutesUnavailable and not self.public_session:
            error = CannotOpen()
        headers: RawHeaders = list(error.headers) if isinstance(error, HttpRefusal) else []
        if isinstance(error, HttpRefusal) and error.status == 413:
            await self.discard_body()
        wait = retry_after(error)
        if wait is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait))))
        if isinstance(error, Unauthenticated | Forbidden):
            who, issuers = limited_address(self.client_address()), self.issuers
            can_sign_in = issuers is not None and await issuers.has_any(self.tenant, who)
            headers.append(
                (b"www-authenticate", challenge(error, self.base_url(), self.scope["path"], can_sign_in=can_sign_in))
            )
        await self.answer(http_status(error), self.error_body(error, request_id), headers)

    async def _refusal_or(self, error: GatewayError) -> GatewayError:
        """The reason behind "not found": what was looked for may have ended because the credential was lost or the
        backend was switched off while the request waited."""
        if self._watch is None:
            return error
        try:
            await self.require_still_allowed()
            await self._require_on(self, error)
        except (Unauthenticated, Forbidden, Disabled) as refusal:
            return refusal
        except GatewayError:
            pass
        return error

    def error_body(self, error: GatewayError, request_id: bytes = b"null") -> bytes:
        """The error as JSON-RPC, counted and logged; for those who administer the tenant with the backend's stderr."""
        if self._seen is not None:
            self._seen.told(error)
        self.ids.trace_failed(error.reason)
        if self._on_error is not None:
            self._on_error(self, error)
        principal = getattr(self, "principal", None)
        is_admin = principal is not None and has_scope(principal, self.tenant, Permission.TENANT_ADMIN)
        # Without the id where the bytes must not differ; the header X-Request-Id has it all the same.
        named = "" if http_status(error) in ALIKE else self.ids.request
        return rpc_error(error, request_id, http_request=named, with_stderr=is_admin)

    # --- what is logged

    def log_fields(self) -> dict[str, object]:
        """The fields of every log line about this request. A session is named by its public id."""
        fields = self.ids.fields()
        if self.tenant:
            fields |= {"tenant": self.tenant[:MAX_NAME], "backend": self.backend[:MAX_NAME]}
        if session := self.public_session:
            fields["session"] = session
        if principal := self.principal_name:
            fields["principal"] = principal
        return fields

    @property
    def public_session(self) -> str:
        """The public id of the session that the request opened or names, or ""."""
        if self.session_id:
            return public_id(self.session_id)
        if self.kind == "messages":
            named = parse_qs(self.scope["query_string"].decode("latin-1")).get("sessionId", ("",))[0].encode()
        else:
            named = self.headers.get(b"mcp-session-id", b"")
        return _public_id(named) if named else ""

    @property
    def principal_name(self) -> str:
        """Empty until it is known."""
        return self.principal.name if self._watch is not None or self.is_forwarded else ""


@memo(4096)
def _public_id(named: bytes) -> str:
    return public_id(named.decode("latin-1"))


_CLOSE = ((b"connection", b"close"),)


def _too_large(limit: int) -> HttpRefusal:
    return HttpRefusal(413, "body_too_large", f"the body is over the limit of {limit} bytes", headers=_CLOSE)


# --- Large answers: each piece is written when the client has read those before it. So what a connection has to write
# is never more than a piece, whatever the answer's size.

PIECE_BYTES = 128 << 10


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, none of them longer than PIECE_BYTES."""
    for part in parts:
        if len(part) <= PIECE_BYTES:
            yield part
        else:
            yield from (part[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES))


def answer_with(
    request: McpRequest, status: int, outcome: Answer, headers: Iterable[tuple[bytes, bytes]] = ()
) -> Awaitable[None]:
    """Sends the answer to a call, as JSON."""
    if outcome.large is None:
        return request.answer(status, outcome.payload(), headers)
    return _send_in_pieces(request.send, status, outcome.parts(), headers)


async def _send_in_pieces(
    send: Send, status: int, parts: Sequence[bytes], headers: Iterable[tuple[bytes, bytes]]
) -> None:
    raw = [JSON_TYPE, (b"content-length", b"%d" % sum(map(len, parts))), *headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for piece in pieces(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # to a client that reads fast it never waits
    await send({"type": "http.response.body", "body": b""})


# --- Large bodies: reading one can take the loop tens of milliseconds, and cannot be cut. So it has a turn, and is
# counted.

HEAVY_BODY = 64 << 10  # bytes: from here on its tenant is charged for reading it


def sending_with(send: Send, fields: RawHeaders) -> Send:
    """Sends an answer with these fields besides its own."""

    async def send_with(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *fields]
        await send(message)

    return send_with


async def turn_for(request: McpRequest, body: bytes, shares: LoopShares) -> None:
    """Waits until this body may be read. Raises what `require_still_allowed` raises."""
    if len(body) >= HEAVY_BODY:
        await shares.turn(request.tenant)
        await request.require_still_allowed()


def parsed(request: McpRequest, body: bytes, shares: LoopShares) -> Message | list[Message]:
    """What is in it."""
    if len(body) < HEAVY_BODY:
        return request.parse(body)
    with shares.measured(request.tenant):
        return request.parse(body)


async def read_in_turn(request: McpRequest, body: bytes, shares: LoopShares) -> Message | list[Message]:
    """Both. Whoever handles the message reads it again: that has a turn of its own."""
    await turn_for(request, body, shares)
    message = parsed(request, body, shares)
    await turn_for(request, body, shares)
    return message


# --- unless_gone: cancels the work for a request whose client disconnects.

Work = Callable[[], Awaitable[None]]


class ClientGone(Exception):
    """The client has disconnected; there is nobody to answer."""


class Watched(Protocol):
    """A request whose body has been read."""

    scope: Scope
    receive: Receive


async def unless_gone(request: Watched, work: Work) -> None:
    """Does the work for the request; raises ClientGone if its client disconnects first.

    Where the edge tells of that (`WHEN_GONE`) no task watches: one costs more than all else that a call needs here.
    """
    with anyio.CancelScope() as working:
        if WHEN_GONE in request.scope:
            failure = await _told(request.scope, working, work)
        else:
            failure = await _watched(request.receive, working, work)
    if working.cancel_called:
        raise ClientGone
    if failure is not None:
        raise failure


async def _told(scope: Scope, working: anyio.CancelScope, work: Work) -> GatewayError | None:
    if LEFT in scope:
        working.cancel()
    scope[WHEN_GONE] = working.cancel
    try:
        await work()
    except GatewayError as error:
        return error
    finally:
        scope[WHEN_GONE] = None
    return None


async def _watched(receive: Receive, working: anyio.CancelScope, work: Work) -> GatewayError | None:
    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    failure = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await work()
        except GatewayError as error:
            failure = error
        tasks.cancel_scope.cancel()
    return failure
