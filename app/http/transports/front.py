"""Front: the outermost ASGI application. Authenticates and dispatches `/t/…`; Rest takes everything else.

What pages of the console ask comes back to it, with a key instead of their cookie.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth.authenticator import Authenticator
from app.auth.policy import may_connect
from app.cluster.peers.client import FORWARDED
from app.domain import Principal
from app.domain import Scope as Permission
from app.errors import BackendNotFound, ClientError, Forbidden, GatewayError, NodeLost, ShuttingDown
from app.http.client_address import client_address, limited_address
from app.http.errors import HttpRefusal
from app.http.header_fields import trimmed
from app.http.remote.forwarding import forward_refused
from app.http.remote.late_heads import LateSend
from app.http.scope import BY_KEY, LET_IN
from app.http.transports.http_sse import HttpSse
from app.http.transports.request import NO_NAMES, ClientGone, McpRequest, sending_with
from app.http.transports.request_spans import end_trace
from app.http.transports.rest import Rest, last_word
from app.http.transports.streamable_http import StreamableHttp
from app.limits.loop_shares import LoopShares
from app.sessions.loop_pause import StandstillGuard
from app.sessions.registry import SessionRegistry
from app.telemetry.logs import LogContext, current

Endpoint = Callable[[McpRequest], Awaitable[None]]
Passage = Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]  # `console.passage`
FROM_PAGES = "/console/-/"

_REQUEST_HEADERS = (
    b"Authorization, X-API-Key, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    b"Last-Event-ID, X-Request-Id, traceparent"
)
_EXPOSED_HEADERS = (
    b"Mcp-Session-Id, WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy, X-Request-Id, traceparent"
)

log = logging.getLogger(__name__)


class Front:
    """Answers requests to MCP endpoints; hands all others to `rest`."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        rest: Rest,
        authenticator: Authenticator,
        streamable: StreamableHttp,
        sse: HttpSse,
        registry: SessionRegistry,
        guard: StandstillGuard,
        shares: LoopShares | None = None,
        from_pages: Passage | None = None,
    ) -> None:
        self._from_pages = from_pages
        self._rest, self._authenticator, self._registry, self._guard = rest, authenticator, registry, guard
        self._shares = shares or LoopShares()
        self._hosts, self._requests, self._public_url, self._inside, self._tracer, self._issuers = rest.door
        self._endpoints: dict[str, dict[str, Endpoint]] = {
            "mcp": {"POST": streamable.post, "GET": streamable.get, "DELETE": streamable.delete},
            "sse": {"GET": sse.stream},
            "messages": {"POST": sse.message},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest.app(scope, receive, send)
            return
        path: str = scope["path"]
        if self._from_pages is not None and path.startswith(FROM_PAGES):
            await self._from_pages(self, scope, receive, send)
            return
        is_nowhere = _is_nowhere(path, scope.get("raw_path") or b"")
        if is_nowhere:
            path = scope["path"] = scope["raw_path"].decode("ascii")  # matches no route: none has an encoded character
        if not path.startswith("/t/"):
            await self._rest(scope, receive, send)
            return
        names = NO_NAMES if is_nowhere else _names(path)
        asked_of = self._public_url, self._requests.error, self._issuers, self._shares
        request = McpRequest(scope, receive, send, names, *asked_of)
        if self._tracer is not None:
            request.trace_with(self._tracer)
        current.set(context := LogContext(request.log_fields, request.ids))
        await self._answer(request, context)

    async def _answer(self, request: McpRequest, context: LogContext) -> None:
        """Turns every exception into an answer."""
        seen = self._requests.watch(request) if self._requests.has_every_request else None
        late = None
        try:
            if FORWARDED in request.headers:
                late = await self._taken_from_a_node(request)
            await self._serve(request)
            if request.outcome:
                self._requests.backend_error(request)
        except ClientGone:
            request.ids.trace_failed("client_gone")
        except GatewayError as error:
            await request.answer_error(error)
        except asyncio.CancelledError:
            # The end of a drain: uvicorn cancels what still runs. Nothing was done before the principal was known;
            # after that, how far the request has come is not known here.
            stops = "This node has stopped before the request was answered; it may have been carried out"
            with suppress(RuntimeError):  # an answer has begun: it ends here
                await last_word(request.answer_error(NodeLost(stops) if request.is_let_in else ShuttingDown()))
        except Exception:
            log.exception("Request failed with an unexpected exception: a bug in the gateway")
            with suppress(RuntimeError):  # as above
                await request.answer_error(GatewayError("Internal error; this node's log has the details"))
        finally:
            context.end()
            if self._tracer is not None:
                end_trace(self._tracer, request)
            try:
                if seen is not None:
                    self._requests.over(request, seen)
            finally:
                if late is not None:
                    await late.done()

    async def _taken_from_a_node(self, request: McpRequest) -> LateSend:
        """Accepts a request that another node has forwarded. Raises HttpRefusal where no node vouches for it."""
        if self._inside is None:
            raise forward_refused()
        await self._inside.accept(request)
        return self._inside.watch(request)

    async def _serve(self, request: McpRequest) -> None:
        request.settle_headers()
        if not request.is_forwarded:
            self._check_names(request)
        methods = self._endpoints.get(request.kind)
        if methods is None:
            raise HttpRefusal(404, "not_found", "there is nothing at this address")
        if request.method == "OPTIONS":
            await _preflight(request, methods)
            return
        endpoint = methods.get(request.method)
        if endpoint is None:
            allow = ", ".join(methods).encode()
            raise HttpRefusal(405, "method_not_allowed", "method not supported", headers=((b"allow", allow),))
        await self._admit(request)
        if self._guard.standstill.is_detected():
            await self._guard.prove()
        if request.method == "POST" and request.tenant in self._shares.over:
            await self._shares.enter(request.tenant)
        await request.require_still_allowed()
        await endpoint(request)

    async def _admit(self, request: McpRequest) -> None:
        """Authenticates the request and checks that the principal may connect."""
        watch = self._authenticator.watch
        if request.is_forwarded:
            since = self._authenticator.known_good_since(request.principal)
            request.admit(request.principal, watch, since, self._ask_again, self._require_on)
        else:
            seen = watch.count  # before anything is looked up
            authorization = request.headers.get(b"authorization")
            principal = None if authorization is None else self._authenticator.remembered(authorization, request.target)
            if principal is None:
                request.take(trimmed(request.scope["headers"]))  # not for each: it was not known as it stands
                authorization = request.headers.get(b"authorization")
                address = limited_address(client_address(request.scope))
                principal = await self._authenticator.authenticate(authorization, request.target(), address)
            request.admit(principal, watch, seen, self._ask_again, self._require_on)
            request.scope[LET_IN] = BY_KEY
            self._authenticator.uses.note(principal, client_address(request.scope))
        _require_access(request.principal, request)

    async def _ask_again(self, request: McpRequest) -> Principal:
        """Authenticates again, without what is remembered."""
        if request.is_forwarded:
            await self._authenticator.confirm(request.principal)
            return request.principal
        authorization = request.headers.get(b"authorization")
        principal = await self._authenticator.authenticate(authorization, request.target())
        _require_access(principal, request)
        return principal

    async def _require_on(self, request: McpRequest, error: GatewayError) -> None:
        """Raises Disabled where the backend or its tenant is switched off, and the principal may connect to it."""
        if not may_connect(request.principal, request.tenant, request.backend):
            return
        self._registry.require_on(request.tenant, request.backend)
        # Not asked again where the backend was not found; and errors of ours are answered without a database.
        if isinstance(error, ClientError) and not isinstance(error, BackendNotFound):
            await self._registry.backend(request.tenant, request.backend)

    def _check_names(self, request: McpRequest) -> None:
        """Host and Origin; an allowed origin gets the CORS headers."""
        self._hosts.require_host(request.headers.get(b"host"))
        origin = request.headers.get(b"origin")
        if origin is not None:
            self._hosts.require_origin(origin)
            request.answer_through(_with_cors(request.send, origin))


def _is_nowhere(path: str, raw_path: bytes) -> bool:
    """Whether the path has encoded slashes, which a proxy that checks paths may not have recognised, or encoded control
    characters, some of which a database refuses."""
    return len(raw_path) > len(path) and (raw_path.count(b"/") != path.count("/") or not path.isprintable())


def _names(path: str) -> tuple[str, str, str]:
    """Tenant, backend and kind in the path of an MCP endpoint, with or without a trailing slash."""
    words = path.split("/")  # "", "t", tenant, backend, kind
    if len(words) == 6 and not words[5]:
        words.pop()
    return (words[2], words[3], words[4]) if len(words) == 5 else NO_NAMES


def _require_access(principal: Principal, request: McpRequest) -> None:
    if may_connect(principal, request.tenant, request.backend):
        return
    if principal.tenant != request.tenant:
        raise BackendNotFound  # to other tenants it does not exist
    raise Forbidden([f"{Permission.CONNECT}", f"{Permission.CONNECT}:{request.backend}"], held=principal.scopes)


async def _preflight(request: McpRequest, methods: dict[str, Endpoint]) -> None:
    allow = ", ".join([*methods, "OPTIONS"]).encode()
    await request.answer_empty(
        204,
        [
            (b"allow", allow),
            (b"access-control-allow-methods", allow),
            (b"access-control-allow-headers", _allowed_headers(request)),
            (b"access-control-max-age", b"600"),
        ],
    )


def _allowed_headers(request: McpRequest) -> bytes:
    """Our list, and the Mcp-Param-* headers that the browser asks for."""
    asked = request.headers.get(b"access-control-request-headers", b"").split(b",")
    params = [name.strip() for name in asked if name.strip().lower().startswith(b"mcp-param-")]
    return b", ".join([_REQUEST_HEADERS, *params[:32]])


def _with_cors(send: Send, origin: bytes) -> Send:
    fields = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"Origin"),
    ]
    return sending_with(send, fields)
