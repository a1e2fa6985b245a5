"""McpRequest: one HTTP request to an MCP endpoint, and the plain ASGI answers to it."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import parse_qs

import anyio
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from app.auth.credential_watch import CredentialWatch
from app.auth.policy import has_scope
from app.auth.tokens import Target
from app.domain import Principal, public_id
from app.domain import Scope as Permission
from app.errors import (
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
from app.http.client_address import UNKNOWN, client_address, named_address
from app.http.errors import ALIKE, HttpRefusal, http_status, retry_after, rpc_error
from app.http.request_ids import IDS, request_ids
from app.http.resource_metadata import challenge
from app.http.scope import AT_ONCE
from app.memo import memo
from app.peers.client import CLIENT_ADDRESS
from app.protocol.jsonrpc import Message

BODY_DEADLINE_S = 30.0
DISCARD_S, MAX_DISCARDED_BYTES = 1.0, 8 << 20
MAX_NAME = 128  # characters of a word in a log line that clients make up: a method, a tool, a tenant
JSON_TYPE = (b"content-type", b"application/json")
_UNIQUE = (
    b"authorization", b"content-length", b"content-type", b"host", b"idempotency-key", b"if-match", b"mcp-session-id",
)  # fmt: skip

_UNFOUND = NotFound | StateRefused | RoutesUnavailable | NodeUnavailable

RawHeaders = list[tuple[bytes, bytes]]
AskAgain = Callable[["McpRequest"], Awaitable[Principal]]
RequireOn = Callable[["McpRequest", GatewayError], Awaitable[None]]


class ClientGone(Exception):
    """The client hung up before its request was complete; there is nobody to answer."""


def _tell_nobody(request: "McpRequest", error: GatewayError) -> None:
    """For a request of which there is no log."""


class Watcher(Protocol):
    """Who looks at an answer."""

    async def send(self, message: AsgiMessage) -> None:
        """Stands where the request's `send` was, and hands on."""

    def sent(self, status: int, size: int) -> None:
        """A whole answer with so many bytes went out another way."""


class McpRequest:
    """A request to `/t/{tenant}/{backend}/{kind}`. The front sets `public_url` and `principal` before others look.

    For the log: `message` is what the body was read as, `session_id` that of a session which was opened for it,
    `sent_to` the node that it was sent on to, `outcome` what the backend's answer is counted as, where that is no
    success, `bytes_in` how much was read of the body. `on_error` hears of each error that the client is told.
    """

    __slots__ = (
        "_ask_again", "_kept_body", "_plain_send", "_require_on", "_seen", "_watch", "_watcher", "backend", "bytes_in",
        "headers", "ids", "is_forwarded", "kind", "message", "method", "on_error", "outcome", "principal", "public_url",
        "receive", "scope", "send", "sent_to", "session_id", "tenant",
    )  # fmt: skip
    principal: Principal
    public_url: str | None

    def __init__(self, scope: Scope, receive: Receive, send: Send, tenant: str, backend: str, kind: str) -> None:
        self.scope, self.receive = scope, receive
        self.send = self._plain_send = send
        self.tenant, self.backend, self.kind = tenant, backend, kind
        self.is_forwarded = False  # whether another node has sent it, and vouches for its principal
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.ids = scope[IDS] = request_ids(self.headers)
        self._kept_body: bytes | None = None
        self._watch: CredentialWatch | None = None  # None: nobody was let in yet
        self._watcher: Watcher | None = None
        self.message: Message | list[Message] | None = None
        self.session_id = self.sent_to = self.outcome = ""
        self.bytes_in = 0
        self.on_error: Callable[[McpRequest, GatewayError], None] = _tell_nobody

    # --- who asks

    def admit(
        self, principal: Principal, watch: CredentialWatch, seen: int, ask_again: AskAgain, require_on: RequireOn
    ) -> None:
        """Lets the principal in, who was found when `watch` had seen so many revocations; `ask_again` asks anew.
        `require_on` raises Disabled where what is not found is switched off, for who may know."""
        self.principal, self._watch, self._seen, self._ask_again = principal, watch, seen, ask_again
        self._require_on = require_on

    @property
    def is_let_in(self) -> bool:
        """Whether anybody has found out yet who asks."""
        return self._watch is not None

    async def require_still_allowed(self) -> None:
        """Asks again after a wait, before anything is made or sent; free while nothing was revoked or has expired.

        Raises:
            CredentialExpired, Unauthenticated, Forbidden, Disabled, BackendNotFound: the client may not any more.
            StorageUnavailable: nobody can tell.
        """
        watch = self._watch
        if watch is None:
            return
        while True:
            principal = self.principal
            if principal.expires_at is not None and watch.has_expired(principal):
                raise CredentialExpired
            count, since = watch.count, self._seen
            if count == since:
                return
            if watch.may_concern(principal, since):
                self.principal = await self._ask_again(self)
            self._seen = count  # while that was asked, more may have been revoked

    @contextmanager
    def while_credential_lasts(self, end: Callable[[], None]) -> Iterator[None]:
        """Within this block, `end` is called when the credential expires."""
        if self._watch is None:
            yield
            return
        with self._watch.hold(self.principal, end):
            yield

    def client_address(self) -> str:
        """From where the client asks, also where another node has sent the request on; empty where nobody knows."""
        if self.is_forwarded:
            address = named_address(self.headers.get(CLIENT_ADDRESS, b"").decode("latin-1"))
        else:
            address = client_address(self.scope)
        return "" if address == UNKNOWN else address

    # --- what is asked

    def keep_body(self, body: bytes) -> None:
        """The body is here already; `body` gives it from now on."""
        self._kept_body, self.bytes_in = body, len(body)

    def raw_target(self) -> bytes:
        """Path and query as they came."""
        path: bytes = self.scope.get("raw_path") or self.scope["path"].encode("utf-8", "surrogateescape")
        query: bytes = self.scope["query_string"]
        return b"%b?%b" % (path, query) if query else path

    def base_url(self) -> str:
        """Under which URL the client reaches us: PUBLIC_URL, else its own word, once its Host was checked."""
        if self.public_url is not None:
            return self.public_url
        return f"{self.scope.get('scheme', 'http')}://{self.headers[b'host'].decode('latin-1').lower()}"

    def target(self) -> Target:
        """What a token must be for."""
        return Target(self.tenant, self.backend, self.base_url())

    def refuse_repeated_headers(self) -> None:
        """Raises HttpRefusal where a header that decides something stands twice."""
        names = [name for name, _ in self.scope["headers"]]
        for name in _UNIQUE:
            if names.count(name) > 1:
                raise HttpRefusal(400, "repeated_header", f"the header {name.decode()} stands twice")

    def values(self, name: bytes) -> tuple[bytes, ...]:
        """Every value of a header."""
        if len(self.headers) == len(self.scope["headers"]):
            value = self.headers.get(name)
            return () if value is None else (value,)
        return tuple(value for found, value in self.scope["headers"] if found == name)

    def refuse_declared_size(self, limit: int) -> None:
        """Raises HttpRefusal where the head alone says that the body is too long, or encoded."""
        headers = self.headers
        if b"content-encoding" in headers:
            raise HttpRefusal(415, "unsupported_media_type", "an encoded body is not accepted")
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > limit:
            raise _too_large(limit)

    async def body(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            HttpRefusal: it is longer than `limit` bytes (413), encoded (415), or takes too long (408).
            ClientGone: the connection ended first.
            GatewayError: the client may not any more, see `require_still_allowed`.
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
            body = await self._rest_of_body(message, limit)
        if len(body) > limit:
            raise _too_large(limit)
        await self.require_still_allowed()
        return body

    async def _rest_of_body(self, message: AsgiMessage, limit: int) -> bytes:
        chunks = [message.get("body", b"")]
        with anyio.move_on_after(BODY_DEADLINE_S):
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientGone
                if self.bytes_in > limit:
                    raise _too_large(limit)
                if not message.get("more_body"):
                    return b"".join(chunks)
                message = await self.receive()
                chunks.append(message.get("body", b""))
                self.bytes_in += len(chunks[-1])
        raise HttpRefusal(408, "timeout", f"the body did not arrive within {BODY_DEADLINE_S:.0f} s", headers=_CLOSE)

    async def discard_body(self) -> None:
        """Reads on for a moment after a refusal: closing on what the client still writes would reset its
        connection before it has read the answer."""
        if b"expect" in self.headers:  # it waits for our word before it sends anything
            return
        left = MAX_DISCARDED_BYTES
        with anyio.move_on_after(DISCARD_S):
            while left > 0:
                message = await self.receive()
                size = len(message.get("body", b""))
                self.bytes_in += size
                if not message.get("more_body"):
                    return
                left -= size

    async def unless_gone(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does the work, whose body has been read; if the client leaves first, it is cancelled.

        Raises:
            ClientGone: there is nobody to answer.
            GatewayError: what the work raised.
        """
        is_gone, failure = False, None

        async def watch() -> None:
            nonlocal is_gone
            while (await self.receive())["type"] != "http.disconnect":
                pass
            is_gone = True
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            try:
                await work()
            except GatewayError as error:
                failure = error
            tasks.cancel_scope.cancel()
        if is_gone:
            raise ClientGone
        if failure is not None:
            raise failure

    # --- answers

    def watch(self, watcher: "Watcher") -> None:
        """Who looks at all that goes out as the answer, in either way."""
        is_plain = self.send is self._plain_send
        self.send, self._watcher = watcher.send, watcher
        if is_plain:
            self._plain_send = self.send

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Sends a JSON body."""
        if status == 200 and not headers and self.send is self._plain_send:  # nobody wants to see it on its way
            at_once = self.scope.get(AT_ONCE)
            if at_once is not None and at_once(self.scope, body):
                if self._watcher is not None:
                    self._watcher.sent(200, len(body))
                return
        raw: RawHeaders = [JSON_TYPE, (b"content-length", b"%d" % len(body)), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})

    async def answer_empty(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Sends no body."""
        raw: RawHeaders = [*headers]
        if status != 204:
            raw.append((b"content-length", b"0"))
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": b""})

    async def answer_error(self, error: GatewayError, request_id: bytes = b"null") -> None:
        """Sends a JSON-RPC error with its HTTP status and the headers that go with it."""
        if isinstance(error, _UNFOUND):
            error = await self._refusal_or(error)
        headers: RawHeaders = list(error.headers) if isinstance(error, HttpRefusal) else []
        if isinstance(error, HttpRefusal) and error.status == 413:
            await self.discard_body()
        wait = retry_after(error)
        if wait is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait))))
        if isinstance(error, Unauthenticated | Forbidden):
            headers.append((b"www-authenticate", challenge(error, self.target())))
        await self.answer(http_status(error), self.error_body(error, request_id), headers)

    async def _refusal_or(self, error: GatewayError) -> GatewayError:
        """What ended with its credential while the request waited is not missing: the credential is. And what ended
        because something was switched off will not be found by beginning anew."""
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
        """The JSON-RPC error that the client is told now; those who administer the tenant see the backend's last lines
        in it."""
        self.on_error(self, error)
        principal = getattr(self, "principal", None)
        is_admin = principal is not None and has_scope(principal, self.tenant, Permission.TENANT_ADMIN)
        # Who may not know what there is gets the same bytes each time; the header has the id all the same.
        named = "" if http_status(error) in ALIKE else self.ids.request
        return rpc_error(error, request_id, http_request=named, with_stderr=is_admin)

    # --- what is logged

    def log_fields(self) -> dict[str, object]:
        """What every line that concerns this request says of it. A session stands there by its public id."""
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
        """The public id of the session that it opened or names; empty where it does neither."""
        if self.session_id:
            return public_id(self.session_id)
        if self.kind == "messages":
            named = parse_qs(self.scope["query_string"].decode("latin-1")).get("sessionId", ("",))[0].encode()
        else:
            named = self.headers.get(b"mcp-session-id", b"")
        return _public_id(named) if named else ""

    @property
    def principal_name(self) -> str:
        """Who asks; empty until that is known."""
        return self.principal.name if self._watch is not None or self.is_forwarded else ""


@memo(4096)
def _public_id(named: bytes) -> str:
    return public_id(named.decode("latin-1"))


_CLOSE = ((b"connection", b"close"),)


def _too_large(limit: int) -> HttpRefusal:
    return HttpRefusal(413, "body_too_large", f"the body is over the limit of {limit} bytes", headers=_CLOSE)
