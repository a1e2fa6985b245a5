"""Rest: everything that is no MCP endpoint: the REST API, its documents, metrics, what other nodes ask."""

import asyncio
import time
from collections.abc import Awaitable, Mapping

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain import Principal
from app.errors import GatewayError, ShuttingDown
from app.http.dependencies import BASE_URL
from app.http.errors import http_status
from app.http.hosts import HostPolicy
from app.http.problems import TOLD, ProblemResponse
from app.http.request_ids import named
from app.logs import LogContext, current
from app.transports.remote.inside import Inside
from app.transports.request import BODY_DEADLINE_S, ClientGone, McpRequest
from app.transports.request_log import RequestLog, Seen, rest_fields

LAST_WORD_S = 1.0  # for a client to take the answer to what was cancelled
_UNCHECKED = frozenset({"/livez", "/readyz"})  # asked by address or by any name, and they tell nothing
_METRICS = "/metrics"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Rest:
    """The door before FastAPI: names, sizes, ids and the log, and what is answered without it (`pages`)."""

    def __init__(  # noqa: PLR0913 - everything that stands behind the door
        self,
        app: ASGIApp,
        hosts: HostPolicy,
        pages: Mapping[str, ASGIApp],
        *,
        max_body_bytes: int,
        public_url: str | None = None,
        inside: Inside | None = None,
        requests: RequestLog | None = None,
    ) -> None:
        self._app, self._hosts, self._pages = app, hosts, pages
        self._max_body_bytes, self._public_url = max_body_bytes, public_url
        self._inside, self._requests = inside, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The routes know one spelling of a path, and have no limit for a body: both are seen to here."""
        path: str = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path = path[:-1]
        if path in _UNCHECKED:
            page = self._pages.get(path) if scope["method"] in ("GET", "HEAD") else None
            await (page or self._app)(scope, receive, send)
            return
        request = McpRequest(scope, receive, send, "", "", "")
        request.public_url = self._public_url
        request.ids = named(scope)
        context = LogContext(rest_fields(scope, request.ids))
        current.set(context)
        if self._inside is not None and path.startswith("/internal/") and await self._is_answered(request, path):
            context.end()
            return
        requests = self._requests
        seen = Seen(scope, send, requests) if requests is not None and requests.has_every_request else None
        try:
            await self._answer(request, path, self._told_of(request, request.send if seen is None else seen.send))
        finally:
            fields = context.fields() if seen is not None else {}
            context.end()
            if requests is not None and seen is not None:
                seen.error = scope.get(TOLD)
                about = {name: value for name, value in fields.items() if name not in ("request", "trace")}
                requests.rest_over(request, about, seen)

    async def _answer(self, request: McpRequest, path: str, send: Send) -> None:
        scope, receive = request.scope, request.receive
        try:
            if len(request.headers) != len(scope["headers"]):
                request.refuse_repeated_headers()
            self._check_names(request, path)
            request.refuse_declared_size(self._max_body_bytes)
        except GatewayError as error:
            if http_status(error) == 413:
                await request.discard_body()
            scope[TOLD] = error
            await ProblemResponse(http_status(error), error.reason, detail=str(error))(scope, receive, send)
            return
        page = self._pages.get(path) if scope["method"] in ("GET", "HEAD") else None
        if page is not None:
            await page(scope, receive, send)
            return
        await self._asked(scope, _limited(request, self._max_body_bytes), send)

    def _told_of(self, request: McpRequest, send: Send) -> Send:
        """A `send` that tells of refusals."""
        scope = request.scope

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and self._requests is not None:
                principal = scope.get("state", {}).get("principal")
                tenant = principal.tenant if isinstance(principal, Principal) else ""
                self._requests.problem(scope.get(TOLD), message["status"], tenant)
            await send(message)

        return telling

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
            stops = scope[TOLD] = ShuttingDown()
            if scope["method"] in _READING:
                problem = ProblemResponse(503, stops.reason, detail=str(stops))
            else:
                detail = "this node stopped before it knew whether the change was made: look first"
                problem = ProblemResponse(500, stops.reason, detail=detail)
            await last_word(problem(scope, receive, send))

    def _check_names(self, request: McpRequest, path: str) -> None:
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


def _limited(request: McpRequest, limit: int) -> Receive:
    """A `receive` that ends a request whose body is too long or too slow; nothing is read before it is asked for."""
    is_complete, deadline = False, time.monotonic() + BODY_DEADLINE_S

    async def limited() -> Message:
        nonlocal is_complete
        with anyio.move_on_after(None if is_complete else max(0.0, deadline - time.monotonic())):
            message = await request.receive()
            if message["type"] == "http.request":
                request.bytes_in += len(message.get("body", b""))
                if request.bytes_in > limit:
                    raise HTTPException(413, f"the body is over the limit of {limit} bytes")
                # What comes next is the client leaving, and may take its time.
                is_complete = not message.get("more_body")
            return message
        raise HTTPException(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s")

    return limited


async def last_word(answer: Awaitable[None]) -> None:
    """The answer of a request that was cancelled; a client that does not take it leaves it cancelled."""
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await answer
    except TimeoutError:
        raise asyncio.CancelledError from None
