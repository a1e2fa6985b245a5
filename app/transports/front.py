"""Front: the pure-ASGI door. Checks Host and Origin on everything, and takes `/t/…` before Starlette sees it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.auth.authenticator import Authenticator
from app.auth.policy import may_connect
from app.domain import Principal
from app.domain import Scope as Permission
from app.errors import BackendNotFound, Forbidden, GatewayError, NodeLost, ShuttingDown
from app.http.client_address import client_address, limited_address
from app.http.connections import BY_KEY, LET_IN
from app.http.dependencies import BASE_URL
from app.http.errors import HttpRefusal, http_status
from app.http.health import ALIVE
from app.http.hosts import HostPolicy
from app.http.problems import ProblemResponse
from app.routing.peers import FORWARDED
from app.sessions.registry import SessionRegistry
from app.transports.forwarding import forward_refused
from app.transports.inside import Inside
from app.transports.late_heads import LateSend
from app.transports.request import BODY_DEADLINE_S, ClientGone, McpRequest
from app.transports.sse import HttpSse
from app.transports.streamable_http import StreamableHttp

Endpoint = Callable[[McpRequest], Awaitable[None]]

_UNCHECKED = frozenset({"/livez", "/readyz"})  # asked by address or by any name, and they tell nothing
_METRICS = "/metrics"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
LAST_WORD_S = 1.0  # for a client to take the answer to what was cancelled
_PAGES: Mapping[str, ASGIApp] = {"/livez": ALIVE}
_REQUEST_HEADERS = (
    b"Authorization, Content-Type, Accept, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID"
)
_NO_NAMES = ("", "", "")
_EXPOSED_HEADERS = b"Mcp-Session-Id, WWW-Authenticate, Retry-After"


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
        pages: Mapping[str, ASGIApp] = _PAGES,
    ) -> None:
        self._app, self._hosts, self._authenticator = app, hosts, authenticator
        self._max_body_bytes, self._public_url = max_body_bytes, public_url
        self._inside = inside  # None: there are no other nodes, so nothing can come from one
        self._registry, self._pages = registry, pages
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
            await self._elsewhere(scope, receive, send)
            return
        request = McpRequest(scope, receive, send, *(_NO_NAMES if is_nowhere else _names(path)))
        request.public_url = self._public_url
        if self._registry is not None and self._registry.leaving:
            request.send = _with_close(request.send)
        await self._answer(request)

    async def _answer(self, request: McpRequest) -> None:
        late = None
        try:
            if FORWARDED in request.headers:
                late = await self._taken_from_a_node(request)
            await self._serve(request)
        except ClientGone:
            return
        except GatewayError as error:
            await request.answer_error(error)
        except asyncio.CancelledError:
            # At the end of a drain uvicorn waits for nobody any more, and who still waits has waited for the database:
            # to be let in, and then nothing was done; or later, and how far that has come is not known here.
            stops = "This node stops, and waits no longer; the request may have been carried out"
            with suppress(RuntimeError):  # an answer has begun, and ends here
                await _last_word(request.answer_error(NodeLost(stops) if request.is_let_in else ShuttingDown()))
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
        if self._registry is not None and self._registry.fence.is_closed():
            await self._registry.prove()
        await request.require_still_allowed()
        await endpoint(request)

    async def _admit(self, request: McpRequest) -> None:
        """Finds out who asks, and whether they may."""
        watch = self._authenticator.watch
        if request.is_forwarded:
            since = self._authenticator.known_good_since(request.principal)
            request.admit(request.principal, watch, since, self._confirm)
        else:
            seen = watch.count  # before anything is looked up
            authorization = request.headers.get(b"authorization")
            principal = None if authorization is None else self._authenticator.remembered(authorization, request.target)
            if principal is None:
                address = limited_address(client_address(request.scope))
                principal = await self._authenticator.authenticate(authorization, request.target(), address)
            request.admit(principal, watch, seen, self._authenticate)
            request.scope[LET_IN] = BY_KEY
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

    def _check_names(self, request: McpRequest) -> None:
        """By which name the client calls us, and from which web page; a page that may is told so."""
        self._hosts.require_host(request.headers.get(b"host"))
        origin = request.headers.get(b"origin")
        if origin is not None:
            self._hosts.require_origin(origin)
            request.send = _with_cors(request.send, origin)

    async def _elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What FastAPI answers: its routes know one spelling, and have no limit for a body."""
        path: str = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path = path[:-1]
        page = self._pages.get(path) if scope["method"] == "GET" else None
        if path in _UNCHECKED:
            await (page or self._app)(scope, receive, send)
            return
        request = McpRequest(scope, receive, send, "", "", "")
        request.public_url = self._public_url
        if self._inside is not None and path.startswith("/internal/") and await self._is_answered(request, path):
            return
        try:
            if len(request.headers) != len(scope["headers"]):
                request.refuse_repeated_headers()
            self._check_names_elsewhere(request, path)
            request.refuse_declared_size(self._max_body_bytes)
        except GatewayError as error:
            if http_status(error) == 413:
                await request.discard_body()
            await ProblemResponse(http_status(error), error.reason, detail=str(error))(scope, receive, send)
            return
        if page is not None:
            await page(scope, receive, send)
            return
        await self._asked(scope, _limited(receive, self._max_body_bytes), send)

    async def _asked(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What FastAPI says; at the end of a drain, when uvicorn waits for nobody any more, that there is no answer."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if has_begun:
                raise
            stops = ShuttingDown()
            if scope["method"] in _READING:
                problem = ProblemResponse(503, stops.reason, detail=str(stops))
            else:
                detail = "this node stopped before it knew whether the change was made: look first"
                problem = ProblemResponse(500, stops.reason, detail=detail)
            await _last_word(problem(scope, receive, send))

    def _check_names_elsewhere(self, request: McpRequest, path: str) -> None:
        """As `_check_names`; the metrics may be asked for by address, and then no token is meant for us."""
        host, origin = request.headers.get(b"host"), request.headers.get(b"origin")
        if path == _METRICS:
            self._hosts.require_host_or_address(host)
        else:
            self._hosts.require_host(host)
            request.scope[BASE_URL] = request.base_url()
        if origin is not None:
            self._hosts.require_origin(origin)

    async def _is_answered(self, request: McpRequest, path: str) -> bool:
        """Whether another node has asked this."""
        assert self._inside is not None
        try:
            return await self._inside.has_answered(request, path)
        except ClientGone:
            return True
        except GatewayError as error:
            await request.answer_error(error)
            return True


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
    raise Forbidden([f"{Permission.CONNECT}", f"{Permission.CONNECT}:{request.backend}"])


def _limited(receive: Receive, limit: int) -> Receive:
    """A `receive` that ends a request whose body is too long or too slow; nothing is read before it is asked for."""
    size, deadline = 0, time.monotonic() + BODY_DEADLINE_S

    async def limited() -> Message:
        nonlocal size
        with anyio.move_on_after(max(0.0, deadline - time.monotonic()) if size >= 0 else None):
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > limit:
                    raise HTTPException(413, f"the body is over the limit of {limit} bytes")
                if not message.get("more_body"):
                    size = -1  # complete: what comes next is the client leaving, and may take its time
            return message
        raise HTTPException(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s")

    return limited


async def _last_word(answer: Awaitable[None]) -> None:
    """The answer of a request that was cancelled; a client that does not take it leaves it cancelled."""
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await answer
    except TimeoutError:
        raise asyncio.CancelledError from None


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


def _with_close(send: Send) -> Send:
    """A node that is about to stop sends its clients away one by one, before it has to cut connections."""

    async def send_with_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return send_with_close


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
