"""AdminRoute: what a request to the REST API goes through once it is known who asks: a rate, known parameters, UTF-8,
once for a key."""

import codecs
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.admin.idempotency import AnsweredOnce
from app.admin.parameters import known_parameters, require_known
from app.errors import ParseError
from app.http.dependencies import AuthenticatedRoute
from app.limits.rate_limiter import RateLimiter

READ_COST, WRITE_COST, ACTION_COST = 1.0, 2.0, 25.0  # an action is `:check`, `:restart`, `:import`


class AdminRoute(AuthenticatedRoute):
    """An authenticated route that no principal uses too often, and whose POST is done once for each Idempotency-Key."""

    def behind_authentication(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's application, less what is too much and what is repeated."""
        handle = self._once(super().behind_authentication())
        known = known_parameters(self.dependant)

        async def limited(request: Request) -> Response:
            rates: RateLimiter = request.app.state.admin.rates
            rates.spend(request.state.principal.identity, _cost(request.method, request.scope["path"]))
            require_known(request, known)
            if request.method != "GET":
                _require_utf8(await _body(request))
            return await handle(request)

        return limited

    def _once(
        self, handle: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if "POST" not in (self.methods or ()):
            return handle

        async def once(request: Request) -> Response:
            key = request.headers.get("idempotency-key")
            if key is None:
                return await handle(request)
            answered: AnsweredOnce = request.app.state.admin.answered_once
            body = await _body(request)
            claim = await answered.begin(request.state.principal, request.scope["path"], key, body)
            if isinstance(claim, Response):
                return claim
            response: Response | None = None
            try:
                response = await handle(request)
            finally:
                await answered.finish(claim, response)
            return response

        return once


async def _body(request: Request) -> bytes:
    """The whole body; who reads it again gets the same."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None


def _require_utf8(body: bytes) -> None:
    """JSON between systems is UTF-8 (RFC 8259, 8.1). Python's decoder would guess UTF-16 and UTF-32 as well, and read
    what another sees as something else."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise ParseError("the body is not UTF-8") from None
    if b"\0" in body or body.startswith(codecs.BOM_UTF8):
        raise ParseError("the body is not JSON in UTF-8 without a byte order mark")


def _cost(method: str, path: str) -> float:
    """What a request takes off its principal's rate. What is written, and a process that is started or stopped, stands
    in the audit trail for ever."""
    if ":" in path.rpartition("/")[2]:
        return ACTION_COST
    return READ_COST if method == "GET" else WRITE_COST
