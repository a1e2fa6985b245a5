"""Rest: all that is no MCP endpoint: the REST API, its documents, metrics, questions of other nodes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain import Principal
from app.errors import GatewayError, ShuttingDown
from app.http.dependencies import BASE_URL
from app.http.errors import http_status
from app.http.header_fields import trimmed
from app.http.hosts import HostPolicy
from app.http.problems import TOLD, ProblemResponse
from app.http.remote.peer_requests import PeerRequests
from app.http.resource_metadata import Remembered
from app.http.transports.request import BODY_DEADLINE_S, ClientGone, McpRequest
from app.http.transports.request_log import RequestLog, rest_fields
from app.telemetry.logs import LogContext, current
from app.telemetry.tracing.tracer import Tracer

log = logging.getLogger(__name__)

LAST_WORD_S = 1.0  # for a client to read the answer to a cancelled request
_UNCHECKED = frozenset({"/livez", "/readyz"})  # open to any Host: they reveal nothing
_METRICS, _REGISTRIES = "/metrics", ("/registry/", "/v0.1/")
_BUG = "Internal error; this node's log has the details."
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Door(NamedTuple):
    """What requests to MCP endpoints and to everything else have in common."""

    hosts: HostPolicy
    requests: RequestLog
    public_url: str | None = None
    inside: PeerRequests | None = None  # None: there are no other nodes
    tracer: Tracer | None = None  # of MCP endpoints
    issuers: Remembered | None = None  # of tenants


class Rest:
    """Checks Host, Origin and sizes, and logs, before FastAPI (`app`); answers `pages` without it."""

    def __init__(self, app: ASGIApp, door: Door, pages: Mapping[str, ASGIApp], *, max_body_bytes: int) -> None:
        self.app, self.door, self._pages, self._max_body_bytes = app, door, pages, max_body_bytes
        self._hosts, self._requests, self._public_url, self._inside = door[:4]
        self._path = urlsplit(self._public_url or "").path.encode()  # which a proxy strips from what it passes on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Removes a trailing slash, which the routes do not know."""
        path: str = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path = path[:-1]
        if path in _UNCHECKED:
            page = self._pages.get(path) if scope["method"] in ("GET", "HEAD") else None
            await (page or self.app)(scope, receive, send)
            return
        request = McpRequest(scope, receive, send, public_url=self._public_url)
        context = LogContext(partial(rest_fields, scope, request.ids), request.ids)
        current.set(context)
        if self._inside is not None and path.startswith("/internal/") and await self._is_answered(request, path):
            context.end()
            return
        seen = self._requests.watch(request) if self._requests.has_every_request else None
        try:
            await self._answer(request, path, self._counting(request))
        finally:
            fields = {} if seen is None else context.fields()
            context.end()
            told = scope.pop(TOLD, None)  # its traceback leads back to the scope
            if seen is not None:
                if told is not None:
                    seen.told(told)
                about = {name: value for name, value in fields.items() if name not in ("request", "trace")}
                self._requests.over(request, seen, about)

    async def _answer(self, request: McpRequest, path: str, send: Send) -> None:
        scope, receive = request.scope, request.receive
        try:
            request.settle_headers()
            request.take(trimmed(request.scope["headers"]))
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

    def _counting(self, request: McpRequest) -> Send:
        """A `send` that counts and logs refusals, and has addresses lead back through the proxy."""
        scope = request.scope

        async def counting(message: Message) -> None:
            if self._path and message["type"] == "http.response.start":
                message["headers"] = [_below(self._path, *pair) for pair in message["headers"]]
            if message["type"] == "http.response.start" and message["status"] >= 400:
                principal = scope.get("state", {}).get("principal")
                let_in = principal if isinstance(principal, Principal) else None
                self._requests.problem(scope.get(TOLD), message["status"], let_in, request.client_address())
            await request.send(message)

        return counting

    async def _asked(self, scope: Scope, receive: Receive, send: Send) -> None:
        """FastAPI's answer; or an error where uvicorn cancels the request at the end of a drain, or after a bug. That
        is logged here: later its request is not known."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if has_begun:
                raise
            stops = scope[TOLD] = ShuttingDown()
            if scope["method"] in _READING:
                problem = ProblemResponse(503, stops.reason, detail=str(stops))
            else:
                detail = "this node stopped before it knew whether the change was made; check before repeating it"
                problem = ProblemResponse(500, stops.reason, detail=detail)
            await last_word(problem(scope, receive, send))
        except HTTPException:  # of `_limited`, which FastAPI answers
            raise
        except Exception:
            log.exception("Request failed with an unexpected exception: a bug in the gateway")
            if not has_begun:  # outside of FastAPI, which has answered already
                await ProblemResponse(500, "internal_error", detail=_BUG)(scope, receive, send)

    def _check_names(self, request: McpRequest, path: str) -> None:
        """Without a base URL for /metrics, where Host may be an address: so no token can be valid there."""
        host, origin = request.headers.get(b"host"), request.headers.get(b"origin")
        if path == _METRICS:
            self._hosts.require_host_or_address(host)
        else:
            self._hosts.require_host(host)
            request.scope[BASE_URL] = request.base_url()
        if origin is not None and not path.startswith(_REGISTRIES):  # any page may read those: they have no cookies
            self._hosts.require_origin(origin)

    async def _is_answered(self, request: McpRequest, path: str) -> bool:
        """Whether this was a question of another node."""
        assert self._inside is not None
        try:
            return await self._inside.has_answered(request, path)
        except ClientGone:
            return True
        except GatewayError as error:
            await request.answer_error(error)
            return True


def _below(path: bytes, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A header of an answer; where it leads is below `path`."""
    return (name, path + value) if name == b"location" and value.startswith(b"/") else (name, value)


def _limited(request: McpRequest, limit: int) -> Receive:
    """A `receive` that refuses a body that is too long or too slow; it reads nothing ahead."""
    is_complete, deadline = False, time.monotonic() + BODY_DEADLINE_S

    async def limited() -> Message:
        nonlocal is_complete
        with anyio.move_on_after(None if is_complete else max(0.0, deadline - time.monotonic())):
            message = await request.receive_part()
            if message["type"] == "http.request":
                if request.bytes_in > limit:
                    raise HTTPException(413, f"the body is over the limit of {limit} bytes")
                # After the body only a disconnect can follow, which has no deadline.
                is_complete = not message.get("more_body")
            return message
        raise HTTPException(408, f"the body did not arrive within {BODY_DEADLINE_S:.0f} s")

    return limited


async def last_word(answer: Awaitable[None]) -> None:
    """Sends the answer to a cancelled request; raises CancelledError where the client does not read it in time."""
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await answer
    except TimeoutError:
        raise asyncio.CancelledError from None
