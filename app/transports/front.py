"""Front: the pure-ASGI door. Checks Host and Origin on everything, and takes `/t/…` before Starlette sees it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.auth.authenticator import Authenticator
from app.auth.policy import may_connect
from app.domain import Principal
from app.domain import Scope as Permission
from app.errors import BackendNotFound, ClientError, Forbidden, GatewayError, NodeLost, ShuttingDown
from app.http.client_address import client_address, limited_address
from app.http.errors import HttpRefusal
from app.http.health import ALIVE
from app.http.hosts import HostPolicy
from app.http.scope import BY_KEY, LET_IN
from app.logs import LogContext, current
from app.peers.client import FORWARDED
from app.sessions.registry import SessionRegistry
from app.sessions.standstill import StandstillGuard
from app.transports.remote.forwarding import forward_refused
from app.transports.remote.inside import Inside
from app.transports.remote.late_heads import LateSend
from app.transports.request import ClientGone, McpRequest
from app.transports.request_log import RequestLog, Seen
from app.transports.rest import Rest, last_word
from app.transports.sse import HttpSse
from app.transports.streamable_http import StreamableHttp

Endpoint = Callable[[McpRequest], Awaitable[None]]

_PAGES: Mapping[str, ASGIApp] = {"/livez": ALIVE}
_REQUEST_HEADERS = (
    b"Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, "
    b"X-Request-Id, traceparent"
)
_NO_NAMES = ("", "", "")
_EXPOSED_HEADERS = b"Mcp-Session-Id, WWW-Authenticate, Retry-After, X-Request-Id, traceparent"

log = logging.getLogger(__name__)


class Front:
    """The outermost application: MCP endpoints are answered here, everything else goes to `app`."""

    def __init__(  # noqa: PLR0913 - everything that stands behind the door
        self,
        app: ASGIApp,
        hosts: HostPolicy,
        authenticator: Authenticator,
        streamable: StreamableHttp,
        sse: HttpSse,
        *,
        max_body_bytes: int,
        public_url: str | None = None,
        inside: Inside | None = None,
        registry: SessionRegistry | None = None,
        guard: StandstillGuard | None = None,
        requests: RequestLog | None = None,  # None: nothing is counted or logged
        pages: Mapping[str, ASGIApp] = _PAGES,
    ) -> None:
        self._app, self._hosts, self._authenticator, self._public_url = app, hosts, authenticator, public_url
        self._inside = inside  # None: there are no other nodes, so nothing can come from one
        self._registry, self._guard, self._requests = registry, guard, requests
        self._rest = Rest(
            app,
            hosts,
            pages,
            max_body_bytes=max_body_bytes,
            public_url=public_url,
            inside=inside,
            requests=requests,
        )
        self._endpoints: dict[str, dict[str, Endpoint]] = {
            "mcp": {"POST": streamable.post, "GET": streamable.get, "DELETE": streamable.delete},
            "sse": {"GET": sse.stream},
            "messages": {"POST": sse.message},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        is_nowhere = _is_nowhere(path, scope.get("raw_path") or b"")
        if is_nowhere:
            path = scope["path"] = scope["raw_path"].decode("ascii")  # no route has an encoded character
        if not path.startswith("/t/"):
            await self._rest(scope, receive, send)
            return
        request = McpRequest(scope, receive, send, *(_NO_NAMES if is_nowhere else _names(path)))
        request.public_url = self._public_url
        current.set(context := LogContext(request.log_fields))
        seen = None if self._requests is None else self._requests.watch(request)
        await self._answer(request, context, seen)

    async def _answer(self, request: McpRequest, context: LogContext, seen: Seen | None) -> None:
        """Answers it, and be it that something is wrong with us."""
        late = None
        try:
            if FORWARDED in request.headers:
                late = await self._taken_from_a_node(request)
            await self._serve(request)
            if request.outcome and self._requests is not None:
                self._requests.backend_error(request)
        except ClientGone:
            return
        except GatewayError as error:
            await request.answer_error(error)
        except asyncio.CancelledError:
            # At the end of a drain uvicorn waits for nobody any more, and who still waits has waited for the database:
            # to be let in, and then nothing was done; or later, and how far that has come is not known here.
            stops = "This node stops, and waits no longer; the request may have been carried out"
            with suppress(RuntimeError):  # an answer has begun, and ends here
                await last_word(request.answer_error(NodeLost(stops) if request.is_let_in else ShuttingDown()))
        except Exception:
            log.exception("a request could not be answered: this is a mistake in the gateway")
            with suppress(RuntimeError):  # an answer has begun, and ends here
                await request.answer_error(GatewayError("Something went wrong here; the log says what."))
        finally:
            context.end()
            try:
                if seen is not None:
                    seen.over(request)
            finally:
                if late is not None:
                    await late.done()

    async def _taken_from_a_node(self, request: McpRequest) -> LateSend:
        """What another node has sent on, if it is one; its answer is watched from now on."""
        if self._inside is None:
            raise forward_refused()
        await self._inside.accept(request)
        return self._inside.watch(request)

    async def _serve(self, request: McpRequest) -> None:
        headers = request.headers
        if len(headers) != len(request.scope["headers"]):
            request.refuse_repeated_headers()
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
            raise HttpRefusal(405, "method_not_allowed", "this address has other methods", headers=((b"allow", allow),))
        await self._admit(request)
        if self._guard is not None and self._guard.fence.is_closed():
            await self._guard.prove()
        await request.require_still_allowed()
        await endpoint(request)

    async def _admit(self, request: McpRequest) -> None:
        """Finds out who asks, and whether they may."""
        watch = self._authenticator.watch
        if request.is_forwarded:
            since = self._authenticator.known_good_since(request.principal)
            request.admit(request.principal, watch, since, self._confirm, self._require_on)
        else:
            seen = watch.count  # before anything is looked up
            authorization = request.headers.get(b"authorization")
            principal = None if authorization is None else self._authenticator.remembered(authorization, request.target)
            if principal is None:
                address = limited_address(client_address(request.scope))
                principal = await self._authenticator.authenticate(authorization, request.target(), address)
            request.admit(principal, watch, seen, self._authenticate, self._require_on)
            request.scope[LET_IN] = BY_KEY
            self._authenticator.uses.note(principal, client_address(request.scope))
        _require_access(request.principal, request)

    async def _authenticate(self, request: McpRequest) -> Principal:
        """Whose request it is, asked anew."""
        authorization = request.headers.get(b"authorization")
        principal = await self._authenticator.authenticate(authorization, request.target())
        _require_access(principal, request)
        return principal

    async def _confirm(self, request: McpRequest) -> Principal:
        """The same for what another node has let in."""
        await self._authenticator.confirm(request.principal)
        return request.principal

    async def _require_on(self, request: McpRequest, error: GatewayError) -> None:
        """Raises Disabled where the backend or its tenant is switched off. Nobody hears it who may not connect."""
        if self._registry is None or not may_connect(request.principal, request.tenant, request.backend):
            return
        self._registry.require_on(request.tenant, request.backend)
        # Where the backend is missing that was asked; and what is our fault is answered without waiting for a database.
        if isinstance(error, ClientError) and not isinstance(error, BackendNotFound):
            await self._registry.backend(request.tenant, request.backend)

    def _check_names(self, request: McpRequest) -> None:
        """By which name the client calls us, and from which web page; a page that may is told so."""
        self._hosts.require_host(request.headers.get(b"host"))
        origin = request.headers.get(b"origin")
        if origin is not None:
            self._hosts.require_origin(origin)
            request.send = _with_cors(request.send, origin)


def _is_nowhere(path: str, raw_path: bytes) -> bool:
    """Whether something was encoded that no path of ours has: slashes, which divide nothing, since a proxy that checks
    paths may not have seen them; or control characters, some of which a database refuses."""
    return len(raw_path) > len(path) and (raw_path.count(b"/") != path.count("/") or not path.isprintable())


def _names(path: str) -> tuple[str, str, str]:
    """Tenant, backend and kind in the path of an MCP endpoint, with or without a trailing slash."""
    words = path.split("/")  # "", "t", and what is asked for
    if len(words) == 6 and not words[5]:
        words.pop()
    return (words[2], words[3], words[4]) if len(words) == 5 else _NO_NAMES


def _require_access(principal: Principal, request: McpRequest) -> None:
    if may_connect(principal, request.tenant, request.backend):
        return
    if principal.tenant != request.tenant:
        raise BackendNotFound  # another tenant's backends do not exist
    raise Forbidden([f"{Permission.CONNECT}", f"{Permission.CONNECT}:{request.backend}"], held=principal.scopes)


async def _preflight(request: McpRequest, methods: dict[str, Endpoint]) -> None:
    """Answers a browser's question; a request without an Origin gets the same, less the CORS headers."""
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
    """Our list, and whatever Mcp-Param-* headers the browser asks for."""
    asked = request.headers.get(b"access-control-request-headers", b"").split(b",")
    params = [name.strip() for name in asked if name.strip().lower().startswith(b"mcp-param-")]
    return b", ".join([_REQUEST_HEADERS, *params[:32]])


def _with_cors(send: Send, origin: bytes) -> Send:
    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
                (b"vary", b"Origin"),
            ]
        await send(message)

    return send_with_cors
